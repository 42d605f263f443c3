"""Tenants with their limits, and their API keys. A key is stored as its SHA-256: 256 random bits need no slow hash."""

from sqlalchemy import BigInteger, Boolean, Float, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables.base import Base, db_now


class Tenant(Base):
    """An owner of keys, files, jobs and adapters."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
    weight: Mapped[float] = mapped_column(Float(53), server_default="1")
    """Its share of the workers relative to other tenants."""
    max_running_jobs: Mapped[int | None] = mapped_column(Integer)
    max_queued_jobs: Mapped[int | None] = mapped_column(Integer)
    """Instead of the setting for all tenants."""
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)
    """Once as many were trained since midnight UTC, no more of its jobs start that day."""


class DailyTokens(Base):
    """Tokens trained for a tenant in a day, in UTC days since the epoch."""

    __tablename__ = "daily_tokens"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    day: Mapped[int] = mapped_column(Integer, primary_key=True)
    tokens: Mapped[int] = mapped_column(BigInteger)


class ApiKey(Base):
    """A Bearer key; `hint` is its first characters, for lists."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    hint: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    admin: Mapped[bool] = mapped_column(Boolean, server_default="0")
    """Whether it may also see what belongs to the deployment."""
    created_at: Mapped[float] = mapped_column(Float(53), server_default=db_now())
    revoked_at: Mapped[float | None] = mapped_column(Float(53))
    last_used_at: Mapped[float | None] = mapped_column(Float(53))
