"""A version merged over HTTP by a real worker: what comes out is the base with the adapter, for any program to load."""

import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.contracts.training import LoRAConfig
from tests.e2e.conftest import running_server
from tests.faults.jobs import CHATS
from tests.tiny_model import save_tiny_model
from workers.loading import LoadedBase, load_base_model
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import to_peft
from workers.lora.bank import AdapterBank
from workers.lora.new_adapter import new_lora
from workers.models.batch import pack

PROMPT = [5, 17, 80, 3, 44, 9, 61, 2, 33, 70, 12]
TARGETS = ["q_proj", "o_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's directory."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def base(model: Path) -> LoadedBase:
    """The tiny model in this process, to compare with."""
    return load_base_model(f"hf:{model}", model_id="tiny", device="cpu", dtype="float32", quantization="none")


@pytest.fixture(scope="module")
def rest(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server whose one base is the tiny model."""
    config = f'[[base_models]]\nid = "tiny"\nsource = "hf:{model}"\ndtype = "float32"\n'
    with running_server(tmp_path_factory.mktemp("merge"), config) as server:
        headers = {"Authorization": f"Bearer {server.new_tenant('acme')}"}
        with httpx.Client(base_url=f"{server.url}/v1", headers=headers, timeout=60.0) as http:
            yield http


@pytest.fixture(scope="module")
def adapter(base: LoadedBase, rest: httpx.Client) -> AdapterWeights:
    """An adapter of linear modules and the tied embedding, uploaded as version 1 of `mine`."""
    fresh = new_lora(base.info, LoRAConfig(rank=3, alpha=6, targets=TARGETS, seed=3))
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    tensors = {name: (a_RK, random(*b_NR.shape)) for name, (a_RK, b_NR) in fresh.tensors.items()}
    tensors[base.info.embedding] = (random(3, base.info.hidden_size), random(base.info.vocab_size, 3))
    made = AdapterWeights(tensors, dict.fromkeys(tensors, 2.0), 6.0, 3, [*TARGETS, "embeddings"])
    config, weights = to_peft(made, base.info)
    files = {"config": ("adapter_config.json", json.dumps(config)), "weights": ("adapter_model.safetensors", weights)}
    answer = rest.post("/adapters", data={"name": "mine", "base_model": "tiny"}, files=files)
    assert answer.status_code == 200, answer.text
    return made


def logits_of(base: LoadedBase, adapter: AdapterWeights | None) -> torch.Tensor:
    """Return the logits of the prompt, computed here."""
    bank = AdapterBank(base.model)
    if adapter is not None:
        bank.load(0, adapter)
    slot = -1 if adapter is None else 0
    with torch.no_grad():
        return base.model.logits(base.model.hidden(pack([PROMPT], [slot], "cpu")), [slot] * len(PROMPT))


def ended(rest: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """Wait until a job has succeeded and return it."""
    deadline = time.monotonic() + 60
    while job["status"] in ("queued", "running"):
        assert time.monotonic() < deadline, job
        time.sleep(0.1)
        job = rest.get(f"/fine_tuning/jobs/{job['id']}").raise_for_status().json()
    assert job["status"] == "succeeded", job["error"]
    return job


def merged(rest: httpx.Client, name: str, form: str) -> bytes:
    """Ask for a merge of version 1, wait for it, and return the file."""
    job = ended(rest, rest.post(f"/adapters/{name}/versions/1/merge", json={"format": form}).raise_for_status().json())
    (file_id,) = job["result_files"]
    content = rest.get(f"/files/{file_id}/content").raise_for_status().content
    assert len(content) == job["result"]["bytes"]
    return content


def load_archive(content: bytes, directory: Path) -> PreTrainedModel:
    """Return the model in an archive, as transformers loads it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(directory, filter="data")
    (config,) = directory.rglob("config.json")
    return AutoModelForCausalLM.from_pretrained(config.parent, dtype=torch.float32).eval()


def test_transformers_loads_the_archive_and_computes_the_same(
    rest: httpx.Client, base: LoadedBase, adapter: AdapterWeights, tmp_path: Path
) -> None:
    model = load_archive(merged(rest, "mine", "hf"), tmp_path)
    with torch.no_grad():
        theirs = model(torch.tensor([PROMPT])).logits[0]
    ours = logits_of(base, adapter)
    assert (ours - logits_of(base, None)).abs().max() > 1e-1
    assert (theirs - ours).abs().max() < 1e-4


def test_the_gguf_file_holds_the_same_model(
    rest: httpx.Client, base: LoadedBase, adapter: AdapterWeights, tmp_path: Path
) -> None:
    path = tmp_path / "merged.gguf"
    path.write_bytes(merged(rest, "mine", "gguf"))
    model = load_base_model(f"gguf:{path}", model_id="merged", device="cpu", dtype="float32", quantization="none")
    assert (logits_of(model, None) - logits_of(base, adapter)).abs().max() < 1e-4


def test_a_run_of_mode_full_is_served_whole_and_merges_to_its_own_weights(rest: httpx.Client, tmp_path: Path) -> None:
    file = rest.post("/files", data={"purpose": "fine-tune"}, files={"file": ("chats.jsonl", CHATS)}).json()
    body = {
        "model": "tiny", "training_file": file["id"], "adapter": "whole", "mode": "full", "training": {"epochs": 1}
    }  # fmt: skip
    job = ended(rest, rest.post("/fine_tuning/jobs", json=body).raise_for_status().json())
    assert (job["mode"], job["lora"], job["result"]["rolled_back"]) == ("full", None, False)
    footprint = rest.get("/adapters/whole").json()["footprint"]
    assert footprint["trainable_parameters"] == footprint["base_parameters"] == job["trainable_parameters"]
    prompt = {"prompt": "what is", "max_tokens": 4, "temperature": 0, "logprobs": 1}
    answers = [rest.post("/completions", json={"model": name, **prompt}).json() for name in ("tiny", "whole")]
    base, whole = (answer["choices"][0]["logprobs"]["token_logprobs"] for answer in answers)
    assert base != whole
    stored = rest.get("/adapters/whole/versions/1/download", params={"file": "adapter_model.safetensors"}).content
    state = load_archive(merged(rest, "whole", "hf"), tmp_path).state_dict()
    for name, tensor in load(stored).items():
        assert torch.equal(state[name], tensor), name
