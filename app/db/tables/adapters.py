"""Adapters and their immutable versions. Activating, rolling back and publishing move one pointer."""

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, db_now


class Adapter(Base):
    """A tenant's named delta on one base model."""

    __tablename__ = "adapters"
    __table_args__ = (
        Index(
            "uq_adapters_tenant_id_name",
            "tenant_id",
            "name",
            unique=True,
            sqlite_where=text("deleted_at IS NULL"),
            postgresql_where=text("deleted_at IS NULL"),
        ),
    )

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(64))
    base_model: Mapped[str] = mapped_column(String(96))
    latest_version: Mapped[int] = mapped_column(Integer, server_default="0")
    """The highest version number given out; none is used twice under one name, not even after a deletion."""
    active_version: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
    deleted_at: Mapped[float | None] = mapped_column(Float(53))


class AdapterVersion(Base):
    """One immutable version: safetensors bytes in a blob, PEFT configuration beside them."""

    __tablename__ = "adapter_versions"
    __table_args__ = (UniqueConstraint("adapter_id", "version"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapters.id"))
    version: Mapped[int] = mapped_column(Integer)
    parent_version: Mapped[int | None] = mapped_column(Integer)
    """The version of the same adapter that training started from."""
    job_id: Mapped[str | None] = mapped_column(String(40), unique=True)
    """The job that made it; unique, so a job takes effect once."""
    weights_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"), index=True)
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    config: Mapped[dict[str, object]]
    """PEFT `adapter_config.json`."""
    metrics: Mapped[dict[str, object]]
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
