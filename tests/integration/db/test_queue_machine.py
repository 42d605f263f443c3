"""Whatever tenants and workers do, a claim takes a job exactly when one may be taken, and never beyond a limit."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import select

from app.db import queue
from app.db.repositories import jobs, pauses, tenants
from app.db.session import Database
from app.db.tables import Job
from tests.integration.db import rows

BASES = ("one", "two")
CAPS, QUOTAS = st.sampled_from([None, None, 0, 1, 2]), st.sampled_from([None, None, None, 0, 1000])
PRIORITIES = st.lists(st.sampled_from(["high", "low"]), min_size=1, max_size=2)
ERROR = {"code": "x", "message": "y", "param": None}


class Machine(RuleBasedStateMachine):
    """Two tenants, two base models, and the claims that are held."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "graft.db"
        shutil.copyfile(self.template, path)
        self.database = Database(f"sqlite:///{path}")
        with self.database.write() as session:
            self.owners = [tenants.create(session, name).id for name in "ab"]
        self.caps: dict[str, int | None] = dict.fromkeys(self.owners)
        self.quotas: dict[str, int | None] = dict.fromkeys(self.owners)
        self.trained = dict.fromkeys(self.owners, 0)
        self.held: list[queue.ClaimedJob] = []

    def teardown(self) -> None:
        self.database.dispose()
        self.directory.cleanup()

    def in_status(self, status: str, base: str | None = None) -> list[Job]:
        """Return the jobs in a status, oldest first."""
        query = select(Job).where(Job.status == status).order_by(Job.id)
        with self.database.read() as session:
            return [job for job in session.scalars(query) if base in (None, job.base_model)]

    def may_run(self, owner: str) -> bool:
        """Say whether the tenant is at no limit."""
        cap, quota = self.caps[owner], self.quotas[owner]
        running = sum(job.tenant_id == owner for job in self.in_status("running"))
        return (cap is None or running < cap) and (quota is None or self.trained[owner] < quota)

    @rule(owner=st.integers(0, 1), base=st.sampled_from(BASES), priorities=PRIORITIES)
    def add(self, owner: int, base: str, priorities: list[str]) -> None:
        with self.database.write() as session:
            for priority in priorities:
                rows.add_job(session, self.owners[owner], base_model=base, priority=priority)

    @rule(owner=st.integers(0, 1), cap=CAPS, quota=QUOTAS)
    def limit(self, owner: int, cap: int | None, quota: int | None) -> None:
        tenant = self.owners[owner]
        self.caps[tenant], self.quotas[tenant] = cap, quota
        with self.database.write() as session:
            tenants.set_limits(session, tenant, max_running_jobs=cap, tokens_per_day=quota)

    @rule(base=st.sampled_from(BASES), count=st.sampled_from([1, 20]))
    def claim(self, base: str, count: int) -> None:
        while count and self.claims(base):
            count -= 1

    def claims(self, base: str) -> bool:
        """Claim, check that it was right, and return whether there was a job to take."""
        allowed = [job for job in self.in_status("queued", base) if self.may_run(job.tenant_id)]
        claimed = rows.claim(self.database, base_model=base)
        if claimed is None:
            assert allowed == []
            return False
        assert isinstance(claimed, queue.ClaimedJob)
        mine = [job for job in allowed if job.tenant_id == claimed.lease.tenant_id]
        assert claimed.lease.job_id == min(mine, key=lambda job: (job.priority, job.id)).id
        self.held.append(claimed)
        return True

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["fail", "give back", "train"]))
    def work(self, data: st.DataObject, how: str) -> None:
        job = data.draw(st.sampled_from(self.held))
        if how == "train":
            tokens = rows.read_job(self.database, job.lease.job_id).trained_tokens + 700
            queue.record_progress(self.database, job.lease, rows.METRICS.model_copy(update={"tokens": tokens}))
            self.trained[job.lease.tenant_id] += 700
            return
        self.held.remove(job)
        if how == "fail":
            queue.finish_failed(self.database, job.lease, ERROR)
        else:
            queue.give_back(self.database, job.lease)

    @rule(data=st.data(), how=st.sampled_from([jobs.request_cancel, pauses.request, pauses.resume]))
    def ask(self, data: st.DataObject, how: object) -> None:
        open_jobs = [job for status in ("queued", "running", "paused") for job in self.in_status(status)]
        if open_jobs and callable(how):
            job = data.draw(st.sampled_from(open_jobs))
            with self.database.write() as session:
                how(session, job.tenant_id, job.id)

    @invariant()
    def only_held_jobs_run(self) -> None:
        assert {job.id for job in self.in_status("running")} == {job.lease.job_id for job in self.held}


def test_the_queue_as_a_machine(sqlite_template: Path) -> None:
    Machine.template = sqlite_template
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            suppress_health_check=checks,
            phases=[Phase.generate],
        ),
    )
