"""Ends a job whose work raised: failed with a reason, refused, or left alone because it is no longer ours."""

import structlog

from app.db import queue
from app.db.queue import Lease, PublishError, StaleLeaseError
from app.db.session import Database
from workers.runtime.job_errors import job_error
from workers.runtime.recorder import Recorder
from workers.runtime.retry import DATABASE_AWAY, patiently
from workers.training.work import Working

log = structlog.get_logger()
FINISH_PATIENCE = 300.0


def settle(database: Database, lease: Lease, recorder: Recorder, work: Working[float, bool]) -> Working[float, bool]:
    """Do `work`, which returns whether it ended the job; an exception of its own fails the job.

    Returns whether this ended the job; False when it was given back or left to another worker.
    """
    try:
        try:
            return (yield from work)
        except (StaleLeaseError, PublishError, *DATABASE_AWAY):
            raise
        except Exception as error:
            recorder.flush()
            details = job_error(error)
            yield from patiently(
                lambda: queue.finish_failed(database, lease, details), what="fail", patience=FINISH_PATIENCE
            )
            return True
    except StaleLeaseError:
        log.info("lease lost, the work is dropped", job=lease.job_id)
    except PublishError as error:
        log.info("adapter refused, the job has failed", job=lease.job_id, code=error.code)
        return True
    except DATABASE_AWAY as error:
        log.error("database away too long, the job is left to its lease", job=lease.job_id, error=str(error))
    return False
