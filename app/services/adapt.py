"""Plans adapts: a text or a conversation is learnt in seconds, and the client may wait for the outcome."""

import asyncio
import time
from collections.abc import Mapping, Sequence

from anyio import to_thread
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError
from sqlalchemy.orm import Session

from app.bus.wakeups import wait_for_job
from app.contracts.training import TERMINAL_STATUSES, Priority
from app.db.session import Database
from app.db.tables import Job
from app.services.job_config import resolve_config
from app.services.job_options import JobOptions
from app.services.jobs import JobPlan, get_job
from app.services.start_point import resolve_start
from app.services.trained_part import trainable_parameters
from app.services.training_data import at_least_two_tokens, one_example, tokenize
from app.services.whole_models import refuse_large_run

POLL_SECONDS = 1.0
"""How long a lost notice can delay the answer."""


def plan_adapt(
    session: Session,
    tenant_id: str,
    *,
    model: str,
    adapter: str | None,
    text: str | None,
    messages: Sequence[object] | None,
    options: JobOptions,
    request: Mapping[str, object],
    priority: Priority,
    max_checkpoint_bytes: int,
) -> JobPlan:
    """Return a checked plan. Raises ServiceError naming the field at fault; writes nothing."""
    start = resolve_start(session, tenant_id, model, adapter, None)
    example, line = one_example(text, messages)
    param = "text" if messages is None else "messages"
    at_least_two_tokens(tokenize(start.info, example, param=param), param=param)
    config = resolve_config("adapt", start.info, options, 1, start.shape)
    refuse_large_run(start.info, config, max_checkpoint_bytes)
    return JobPlan(
        kind="adapt",
        model=model,
        start=start,
        config=config,
        trainable_parameters=start.shape.parameters if start.shape else trainable_parameters(start.info, config),
        request=request,
        priority=priority,
        line=line,
    )


async def wait_for_end(database: Database, client: AsyncRedis, job: Job, seconds: float) -> Job:
    """Return the job as soon as it has ended, or as it is after `seconds`."""
    deadline = time.monotonic() + seconds
    while job.status not in TERMINAL_STATUSES and (left := deadline - time.monotonic()) > 0:
        try:
            await wait_for_job(client, job.id, min(left, POLL_SECONDS))
        except RedisError:
            await asyncio.sleep(min(left, POLL_SECONDS))
        job = await to_thread.run_sync(_reread, database, job)
    return job


def _reread(database: Database, job: Job) -> Job:
    with database.read() as session:
        return get_job(session, job.tenant_id, job.id)
