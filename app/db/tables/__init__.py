"""All tables, a file per resource."""

from app.db.tables.adapters import Adapter, AdapterVersion
from app.db.tables.base import Base, db_now
from app.db.tables.files import Blob, BlobChunk, File
from app.db.tables.jobs import IdempotencyKey, Job, JobCheckpoint, JobEvent, JobSnapshot
from app.db.tables.queue import QueueAccount
from app.db.tables.tenants import ApiKey, DailyTokens, Tenant
from app.db.tables.workers import BaseModelRow, WorkerRow

__all__ = [
    "Adapter",
    "AdapterVersion",
    "ApiKey",
    "Base",
    "BaseModelRow",
    "Blob",
    "BlobChunk",
    "DailyTokens",
    "File",
    "IdempotencyKey",
    "Job",
    "JobCheckpoint",
    "JobEvent",
    "JobSnapshot",
    "QueueAccount",
    "Tenant",
    "WorkerRow",
    "db_now",
]
