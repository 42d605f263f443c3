"""The fenced job queue. A job runs at least once and takes effect exactly once.

A worker's right to a job is a lease with a token that grows at every claim. Everything a worker writes about a job is
one transaction that begins by checking the token: whoever lost the lease gets StaleLeaseError and has written nothing.
Time is the database's clock, never a worker's.
"""

from app.db.queue.claim import claim
from app.db.queue.finish import (
    NewVersion,
    PublishError,
    finish_cancelled,
    finish_failed,
    finish_succeeded,
    give_back,
)
from app.db.queue.lease import Asked, ClaimedJob, ClaimedMerge, Lease, StaleLeaseError, heartbeat
from app.db.queue.leftovers import drop_leftovers
from app.db.queue.output import finish_merged
from app.db.queue.progress import record_progress, save_checkpoint
from app.db.queue.snapshots import SavedSnapshot, load_snapshot, save_snapshot
from app.db.queue.staging import StagedBytes, begin_staging, extend_staged

__all__ = [
    "Asked",
    "ClaimedJob",
    "ClaimedMerge",
    "Lease",
    "NewVersion",
    "PublishError",
    "SavedSnapshot",
    "StagedBytes",
    "StaleLeaseError",
    "begin_staging",
    "claim",
    "drop_leftovers",
    "extend_staged",
    "finish_cancelled",
    "finish_failed",
    "finish_merged",
    "finish_succeeded",
    "give_back",
    "heartbeat",
    "load_snapshot",
    "record_progress",
    "save_checkpoint",
    "save_snapshot",
]
