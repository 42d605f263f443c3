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
from app.db.queue.lease import ClaimedJob, ClaimedMerge, Lease, StaleLeaseError, heartbeat
from app.db.queue.leftovers import drop_leftovers
from app.db.queue.output import StoredOutput, begin_output, extend_output, finish_merged
from app.db.queue.progress import record_progress, save_checkpoint
from app.db.queue.snapshots import SavedSnapshot, load_snapshot, save_snapshot

__all__ = [
    "ClaimedJob",
    "ClaimedMerge",
    "Lease",
    "NewVersion",
    "PublishError",
    "SavedSnapshot",
    "StaleLeaseError",
    "StoredOutput",
    "begin_output",
    "claim",
    "drop_leftovers",
    "extend_output",
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
