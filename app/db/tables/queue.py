"""What the queue keeps of tenants besides their jobs: who waits, and who has had how much of a base model's workers."""

from sqlalchemy import Float, ForeignKey, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base


class QueueAccount(Base):
    """A tenant in the queue of one base model. Of the tenants in line the one who has had least comes first."""

    __tablename__ = "queue_accounts"
    __table_args__ = (Index("ix_queue_accounts_line", "base_model", "state", "had", "in_line_since"),)

    base_model: Mapped[str] = mapped_column(String(96), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    state: Mapped[str] = mapped_column(String(8))
    """`in_line` from the time a job is queued until a claim finds none of its jobs; then `away`.

    `held` while it waits for nothing but a limit of its own.
    """
    had: Mapped[float] = mapped_column(Float(53))
    """Tokens trained for the tenant, each divided by its weight; raised to the others' level when it joins the line."""
    in_line_since: Mapped[float] = mapped_column(Float(53))
    held_until: Mapped[float] = mapped_column(Float(53), server_default="0")
    """No use in looking before whether it is still at its limit."""
    arrivals: Mapped[int] = mapped_column(Integer)
    """Grows with every queued job: who saw no job under an older number must look again."""
