"""Uploaded files and the blobs that hold all large bytes, in chunks, addressed by content within a tenant."""

from sqlalchemy import BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, db_now


class Blob(Base):
    """Immutable bytes of one tenant: the same content is stored once per tenant."""

    __tablename__ = "blobs"
    __table_args__ = (UniqueConstraint("tenant_id", "sha256"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())


class BlobChunk(Base):
    """One chunk (at most 1 MiB) of a blob."""

    __tablename__ = "blob_chunks"

    blob_id: Mapped[str] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class File(Base):
    """An uploaded JSONL file that passed validation."""

    __tablename__ = "files"
    __table_args__ = (Index("ix_files_tenant_id_id", "tenant_id", "id"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    blob_id: Mapped[str] = mapped_column(ForeignKey("blobs.id"), index=True)
    filename: Mapped[str] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(32))
    bytes: Mapped[int] = mapped_column(BigInteger)
    examples: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
    deleted_at: Mapped[float | None] = mapped_column(Float(53))
    """Set where a job refers to the file: it is gone for the tenant, and its row and blob stay."""
