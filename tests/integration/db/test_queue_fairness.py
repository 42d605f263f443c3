"""Whose job comes next: tenants by what was trained for them, their jobs by priority and age."""

import threading
import time
from collections import Counter

import pytest
from sqlalchemy import select, text, update

from app.db import queue
from app.db.queue.accounts import CLAIM_TOKENS
from app.db.repositories import tenants
from app.db.session import Database
from app.db.tables import QueueAccount, Tenant
from tests.integration.db import rows

SOME = 10 * CLAIM_TOKENS


def add_jobs(database: Database, tenant: str, count: int, **changes: object) -> list[str]:
    with database.write() as session:
        return [rows.add_job(session, tenant, **changes).id for _ in range(count)]


def train(database: Database, job: queue.ClaimedJob, tokens: int) -> None:
    """Report that a job has trained so many tokens since its start."""
    queue.record_progress(database, job.lease, rows.METRICS.model_copy(update={"tokens": tokens}))


def finish(database: Database, job: queue.ClaimedJob, tokens: int) -> None:
    """End a job that trained so many tokens, of which nothing was reported before."""
    queue.finish_succeeded(database, job.lease, rows.RESULT.model_copy(update={"trained_tokens": tokens}), None)


def set_weight(database: Database, tenant: str, weight: float) -> None:
    with database.write() as session:
        session.execute(update(Tenant).where(Tenant.id == tenant).values(weight=weight))


def owners_of_next(database: Database, count: int) -> list[str]:
    return [rows.claim_one(database).lease.tenant_id for _ in range(count)]


def had(database: Database, tenant: str, base_model: str = rows.BASE) -> float:
    with database.read() as session:
        return session.get_one(QueueAccount, (base_model, tenant)).had


def test_a_burst_of_claims_spreads_before_anything_is_trained(
    database: Database, tenant: str, other_tenant: str
) -> None:
    add_jobs(database, tenant, 3)
    add_jobs(database, other_tenant, 3)
    assert owners_of_next(database, 6) == [tenant, other_tenant] * 3


def test_who_had_more_tokens_waits_until_the_other_had_as_many(
    database: Database, tenant: str, other_tenant: str
) -> None:
    add_jobs(database, tenant, 3)
    add_jobs(database, other_tenant, 12)
    train(database, rows.claim_one(database), SOME)
    assert owners_of_next(database, 11) == [other_tenant] * 10 + [tenant]


def test_a_weight_of_two_gets_two_claims_for_one(database: Database, tenant: str, other_tenant: str) -> None:
    set_weight(database, tenant, 2.0)
    for owner in (tenant, other_tenant):
        add_jobs(database, owner, 20)
    assert Counter(owners_of_next(database, 15)) == {tenant: 10, other_tenant: 5}


def test_tokens_count_once_and_divided_by_the_weight(database: Database, tenant: str) -> None:
    set_weight(database, tenant, 4.0)
    add_jobs(database, tenant, 1)
    job = rows.claim_one(database)
    assert had(database, tenant) == CLAIM_TOKENS / 4
    train(database, job, CLAIM_TOKENS // 2)
    assert had(database, tenant) == CLAIM_TOKENS / 4, "the claim was charged as the first tokens"
    train(database, job, SOME)
    rows.expire_lease(database, job.lease.job_id)
    again = rows.claim_one(database, "worker-2")
    train(database, again, SOME // 2)
    assert had(database, tenant) == SOME / 4, "a takeover and tokens trained again cost nothing"
    finish(database, again, SOME + 8)
    assert had(database, tenant) == (SOME + 8) / 4


def test_nothing_is_owed_for_time_spent_away(database: Database, tenant: str, other_tenant: str) -> None:
    add_jobs(database, tenant, 5)
    for _ in range(2):
        finish(database, rows.claim_one(database), SOME)
    add_jobs(database, other_tenant, 5)
    assert owners_of_next(database, 6) == [tenant, other_tenant] * 3
    assert had(database, other_tenant) >= 2 * SOME


def test_nobody_pays_for_what_was_free_while_nobody_waited(database: Database, tenant: str, other_tenant: str) -> None:
    for owner in (other_tenant, tenant):  # one after the other, each alone
        add_jobs(database, owner, 1)
        finish(database, rows.claim_one(database), 100 * SOME if owner == tenant else 1)
    add_jobs(database, other_tenant, 3)
    add_jobs(database, tenant, 3)
    assert Counter(owners_of_next(database, 4)) == {tenant: 2, other_tenant: 2}


def test_leaving_the_line_does_not_wipe_out_what_was_had(database: Database, tenant: str, other_tenant: str) -> None:
    add_jobs(database, other_tenant, 30)
    for _ in range(3):  # one job at a time, each coming back after it ended
        add_jobs(database, tenant, 1)
        before = owners_of_next(database, 1)
        while before[-1] != tenant:
            before += owners_of_next(database, 1)
        with database.read() as session:
            token = session.scalars(select(QueueAccount.had).where(QueueAccount.tenant_id == tenant)).one()
        assert token == had(database, tenant)
    assert had(database, tenant) <= had(database, other_tenant) + CLAIM_TOKENS


def test_base_models_have_accounts_of_their_own(database: Database, tenant: str, other_tenant: str) -> None:
    add_jobs(database, tenant, 1, base_model="another")
    claimed = rows.claim_one(database, base_model="another")
    train(database, claimed, 100 * SOME)
    add_jobs(database, tenant, 2)
    add_jobs(database, other_tenant, 2)
    assert owners_of_next(database, 4) == [tenant, other_tenant] * 2


def test_within_a_tenant_priority_comes_before_age(database: Database, tenant: str, other_tenant: str) -> None:
    low, normal = (add_jobs(database, tenant, 2, priority=priority) for priority in ("low", "normal"))
    (high,) = add_jobs(database, tenant, 1, priority="high")
    claimed = [rows.claim_one(database).lease.job_id for _ in range(5)]
    assert claimed == [high, *normal, *low]


def test_priority_moves_nobody_before_another_tenant(database: Database, tenant: str, other_tenant: str) -> None:
    add_jobs(database, tenant, 3, priority="low")
    add_jobs(database, other_tenant, 3, priority="high")
    assert owners_of_next(database, 6) == [tenant, other_tenant] * 3


def test_a_lost_job_comes_before_those_that_had_no_turn_yet(database: Database, tenant: str, other_tenant: str) -> None:
    add_jobs(database, tenant, 1)
    lost = rows.claim_one(database)
    train(database, lost, SOME)
    add_jobs(database, other_tenant, 1)
    rows.expire_lease(database, lost.lease.job_id)
    assert rows.claim_one(database, "worker-2").lease.job_id == lost.lease.job_id


def test_nothing_overtakes_the_job_in_turn_that_does_not_fit(
    database: Database, tenant: str, other_tenant: str
) -> None:
    (large,) = add_jobs(database, tenant, 1, kind="fine_tune")
    add_jobs(database, other_tenant, 1, kind="adapt")
    assert rows.claim(database, fits=lambda kind, _config: kind == "adapt") is None
    assert rows.claim_one(database).lease.job_id == large


@pytest.mark.parametrize("count", [0, 3])
def test_an_empty_line_is_left(database: Database, tenant: str, count: int) -> None:
    add_jobs(database, tenant, count)
    for _ in range(count):
        rows.claim_one(database)
    assert rows.claim(database) is None
    with database.read() as session:
        assert set(session.scalars(select(QueueAccount.state))) <= {"away"}


def test_newcomers_without_end_do_not_hold_up_who_waits(database: Database, tenant: str) -> None:
    add_jobs(database, tenant, 1)
    with database.write() as session:
        crowd = [tenants.create(session, f"tenant-{n}").id for n in range(20)]
    add_jobs(database, crowd[0], 1)
    order = []
    for newcomer in crowd[1:]:
        order += owners_of_next(database, 1)
        add_jobs(database, newcomer, 2)
    assert tenant in order[:2]


def waits_for_a_lock(database: Database) -> bool:
    with database.read() as session:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return session.scalars(text(waiting)).one() > 0


def test_a_job_queued_while_its_tenant_is_let_go_is_not_forgotten(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.write() as session:
        owner = tenants.create(session, "acme").id
    add_jobs(database, owner, 1)
    rows.claim_one(database)  # The tenant stays in line until a claim finds nothing of it.
    claimed: list[object] = []
    thread = threading.Thread(target=lambda: claimed.append(rows.claim(database)))
    with database.write() as session:
        job = rows.add_job(session, owner)
        thread.start()
        deadline = time.monotonic() + 20
        while not waits_for_a_lock(database):
            assert time.monotonic() < deadline
    thread.join()
    (found,) = claimed
    assert isinstance(found, queue.ClaimedJob)
    assert found.lease.job_id == job.id
    database.dispose()
