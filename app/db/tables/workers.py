"""Workers and the base models they host, as they registered themselves."""

from sqlalchemy import JSON, Float, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, db_now


class BaseModelRow(Base):
    """A base model that some worker has registered: everything the service needs without reading model files."""

    __tablename__ = "base_models"

    id: Mapped[str] = mapped_column(String(96), primary_key=True)
    info: Mapped[dict[str, object]] = mapped_column(deferred=True)
    """BaseModelInfo: megabytes with its tokenizer, so it is read only where it is asked for."""
    sha256: Mapped[str] = mapped_column(String(64))
    """Of `info`: who has parsed this content need not read it again."""
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())


class WorkerRow(Base):
    """A worker process; alive while `heartbeat_at` is recent by the database's clock."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    base_model: Mapped[str] = mapped_column(ForeignKey("base_models.id"))
    device: Mapped[str] = mapped_column(String(64))
    started_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
    heartbeat_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
    role: Mapped[str] = mapped_column(String(16), server_default="serve_and_train")
    training_slots: Mapped[int] = mapped_column(Integer, server_default="0")
    """These, down to the counts, are the WorkerState that it told last."""
    training_slots_free: Mapped[int] = mapped_column(Integer, server_default="0")
    serving_places: Mapped[int] = mapped_column(Integer, server_default="0")
    serving_places_free: Mapped[int] = mapped_column(Integer, server_default="0")
    open_requests: Mapped[int] = mapped_column(Integer, server_default="0")
    adapters: Mapped[list[tuple[str, str, str]]] = mapped_column(JSON, server_default="[]")
    counts: Mapped[dict[str, int]] = mapped_column(JSON, server_default="{}")
