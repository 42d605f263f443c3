"""SIGTERM: streams finish, the training goes back to the queue uncharged, and ends elsewhere as if undisturbed."""

import hashlib

import torch

from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import DoneEvent, FinishEvent
from app.text.examples import read_examples
from app.text.tokenize import tokenize_example
from tests.faults.conftest import Deployment
from tests.faults.jobs import chats, config_of
from tests.faults.streams import read, read_first_text, send, stream
from workers.loading import load_base_model
from workers.lora.adapter import init_adapter
from workers.lora.adapter_file import to_peft
from workers.lora.bank import AdapterBank
from workers.training.events import Finished
from workers.training.trainer import TrainingRun

DATA = chats(40)
CONFIG = config_of(epochs=8)
CHOICES = 8


def sha256_of_a_quiet_run(source: str, info: BaseModelInfo) -> str:
    """Train the job in this process, alone and without a break; return its adapter's SHA-256."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        base = load_base_model(source, model_id="tiny", device="cpu", dtype=info.dtype, quantization="none")
        examples = [tokenize_example(info, example) for example in read_examples(DATA.splitlines())]
        start = init_adapter(info.modules, CONFIG.lora)
        run = TrainingRun(base.model, AdapterBank(base.model), 0, CONFIG, start, examples, None)
        *_, last = run.slices()
    finally:
        torch.set_num_threads(threads)
    assert isinstance(last, Finished)
    assert last.adapter is not None
    return hashlib.sha256(to_peft(last.adapter, info)[1]).hexdigest()


def test_sigterm_finishes_streams_and_gives_the_job_back_uncharged(deployment: Deployment, tiny_model: object) -> None:
    job_id = deployment.enqueue(CONFIG, data=DATA)
    first = deployment.start()
    deployment.wait_steps(job_id, 5)
    send(deployment.redis_url, stream("req-1", tokens=300, n=CHOICES))
    read_first_text(deployment.redis_url, "req-1")
    assert first.terminate() == 0, first.log()
    first.wait_for_log('"ended": false, "event": "job left"')

    job = deployment.job(job_id)
    assert (job.status, job.attempts, job.lease_owner) == ("queued", 0, None)
    steps = deployment.snapshots(job_id)
    assert steps
    events = read(deployment.redis_url, "req-1")
    assert isinstance(events[-1], DoneEvent)
    assert sum(isinstance(event, FinishEvent) for event in events) == CHOICES

    deployment.start()
    job = deployment.wait_status(job_id, "succeeded")
    (version,) = deployment.versions()
    assert job.attempts == 1
    assert f"Resumed after step {steps[-1]}" in deployment.messages(job_id)
    assert version.sha256 == sha256_of_a_quiet_run(f"hf:{tiny_model}", deployment.wait_registered())
