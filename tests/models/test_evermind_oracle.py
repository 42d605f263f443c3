"""EvermindLM against what the seeds' own engine computed: logits, every gradient, training, adapters, files."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.evermind import file, oracle
from tests.models.conftest import save_tokenizer
from tests.models.exactness import assert_every_target, assert_every_weight, own_weights
from tests.models.families import logits_of, logits_token_by_token
from workers.loading import LoadedBase, LoadingError, load_base_model
from workers.loading.architectures.evermind import from_seed_names, read_config, to_seed_names
from workers.loading.evl0 import parse_evl0, serialize_evl0
from workers.loading.evl0_source import config_of
from workers.loading.seed_quantization import seed_view
from workers.lora.adapter import AdapterWeights, count_parameters
from workers.lora.bank import AdapterBank
from workers.lora.seed_adapter import SeedAdapter, parse_seed_adapter, serialize_seed_adapter
from workers.models.batch import pack
from workers.models.language_model import LanguageModel
from workers.training.adamw import AdamWConfig, Moments, adamw_step

EMBEDDING = "model.embedding"


def _model(name: str = "evermind_f32.evl0", dtype: torch.dtype = torch.float64) -> LanguageModel:
    shape, tensors = parse_evl0(file(name))
    model = LanguageModel(read_config(config_of(shape)), torch.device("cpu"), dtype)
    weights = model.weights()
    for ours, tensor in from_seed_names(tensors, shape.layers, shape.experts):
        weights[ours].base.copy_(tensor)
    return model


def _loss(model: LanguageModel, ids: list[int], slot: int = -1) -> Tensor:
    """Mean next-token cross-entropy over all positions but the last."""
    hidden_TD = model.hidden(pack([ids], [slot], "cpu"))
    return model.nll(hidden_TD[:-1], torch.tensor(ids[1:]), slot).mean()


def _by_seed_name(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    config = oracle()["config"]
    return to_seed_names(tensors, config["numLayers"], config["numExperts"])


def _flat(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_logits_in_one_shot_and_token_by_token() -> None:
    model, ids = _model(), oracle()["sequences"][0]
    expected = torch.tensor(oracle()["logits_seq0"], dtype=torch.float64)
    assert (logits_of(model, ids) - expected).abs().max() < 1e-5
    assert (logits_token_by_token(model, ids, 2) - expected).abs().max() < 1e-5
    _assert_batch_equals_rows(model)


def _assert_batch_equals_rows(model: LanguageModel) -> None:
    rows = oracle()["sequences"]
    together = model.hidden(pack(rows, [-1] * len(rows), "cpu"))
    alone = torch.cat([model.hidden(pack([row], [-1], "cpu")) for row in rows])
    assert (together - alone).abs().max() < 1e-12


def test_loss_and_every_gradient() -> None:
    model = _model()
    bank = AdapterBank(model)
    bank.load(0, own_weights(model), trainable=True)
    loss = _loss(model, oracle()["sequences"][0], 0)
    assert abs(loss.item() - oracle()["loss_seq0"]) < 1e-6
    loss.backward()
    leaves = bank.parameters(0)
    gradients = {n.removesuffix(".own"): torch.zeros_like(p) if p.grad is None else p.grad for n, p in leaves.items()}
    found = _by_seed_name(gradients)
    assert set(found) == set(oracle()["parameter_order"])
    for name, expected in zip(oracle()["parameter_order"], oracle()["gradients_seq0"], strict=True):
        assert (found[name].flatten() - _flat(expected)).abs().max() < 1e-5, name


def _greedy(model: LanguageModel, ids: list[int], count: int, slot: int = -1) -> list[int]:
    cache = model.new_cache(64)
    hidden_TD = model.hidden(pack([ids], [slot], "cpu"), [cache])
    produced: list[int] = []
    while len(produced) < count:
        produced.append(int(model.logits(hidden_TD[-1:], [slot]).argmax()))
        hidden_TD = model.hidden(pack([produced[-1:]], [slot], "cpu", [cache.length]), [cache])
    return produced


def test_greedy_tokens() -> None:
    assert _greedy(_model(), oracle()["sequences"][1], 12) == oracle()["greedy_from_seq1"]


def _adamw(**options: float) -> AdamWConfig:
    """The seeds' step: no clip, no trust region."""
    return AdamWConfig(0.9, 0.999, 1e-8, options.get("weight_decay", 0.0), max_grad_norm=0.0, max_delta=0.0)


def test_full_training() -> None:
    given, model = oracle()["adamw_full"], _model()
    bank = AdapterBank(model)
    bank.load(0, own_weights(model), trainable=True)
    leaves, moments = dict(bank.parameters(0)), dict[str, Moments]()
    losses = []
    for ids in oracle()["sequences"] * 2:
        loss = _loss(model, ids, 0)
        losses.append(loss.item())
        loss.backward()
        gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in leaves.items()}
        config = _adamw(weight_decay=given["weight_decay"])
        adamw_step(leaves, gradients, moments, learning_rate=given["lr"], config=config)
        for leaf in leaves.values():
            leaf.grad = None
    assert losses == pytest.approx(given["losses"], abs=1e-4)
    embedding = leaves[f"{EMBEDDING}.weight.own"].detach().flatten()
    assert (embedding - _flat(given["final_embedding"])).abs().max() < 1e-4


def _start(given: dict[str, object]) -> AdapterWeights:
    rank = given["rank"]
    a_RD = _flat(given["initial_A"]).view(rank, 16)
    b_VR = _flat(given["initial_B"]).view(48, rank)
    return AdapterWeights({EMBEDDING: (a_RD, b_VR)}, {EMBEDDING: given["scale"]}, given["alpha"], rank, ["embeddings"])


def _fit(model: LanguageModel, given: dict[str, object]) -> tuple[list[float], AdapterBank]:
    """Train the adapter as the seeds do: a step for each `accum_steps` sequences, mean losses of each epoch."""
    bank = AdapterBank(model)
    bank.load(0, _start(given), trainable=True)
    leaves, moments, losses = dict(bank.parameters(0)), dict[str, Moments](), []
    for _ in range(given["epochs"]):
        total = 0.0
        for group in _groups(oracle()["sequences"], given["accum_steps"]):
            for ids in group:
                loss = _loss(model, ids, 0)
                total += loss.item()
                (loss / len(group)).backward()
            gradients = {name: leaf.grad for name, leaf in leaves.items()}
            adamw_step(leaves, gradients, moments, learning_rate=given["lr"], config=_adamw())
            for leaf in leaves.values():
                leaf.grad = None
        losses.append(total / len(oracle()["sequences"]))
    return losses, bank


def _groups(items: list[list[int]], size: int) -> Iterator[list[list[int]]]:
    return (items[i : i + size] for i in range(0, len(items), size))


@pytest.mark.parametrize("how", ["none", "fp16", "int8"])
def test_low_rank_training_through_the_tied_embedding(how: str) -> None:
    given, model = oracle()[f"lora_{how}"], _model()
    view, size = seed_view(model.vocabulary.weight.base, how)
    assert size == given["footprint"]["baseBytes"]
    model.vocabulary.weight.base.copy_(view)
    before = model.vocabulary.weight.base.clone()
    losses, bank = _fit(model, given)
    assert losses == pytest.approx(given["losses"], abs=1e-4)
    leaves = bank.parameters(0)
    for name in "AB":
        found = leaves[f"{EMBEDDING}.lora_{name}"].detach().flatten()
        assert (found - _flat(given[f"final_{name}"])).abs().max() < 1e-4, name
    assert _greedy(model, oracle()["sequences"][1], 8, slot=0) == given["greedy"]
    assert count_parameters(bank.weights(0)) == given["footprint"]["trainableParams"]
    blob = serialize_seed_adapter(SeedAdapter(*bank.weights(0).tensors[EMBEDDING], given["alpha"]))
    assert len(blob) == given["footprint"]["adapterBytes"]
    assert given["base_unmoved"]
    assert torch.equal(model.vocabulary.weight.base, before)


def test_a_merged_checkpoint() -> None:
    """Base + alpha / rank · B A on the embedding, written as EVL0, is the seeds' merged file."""
    shape, tensors = parse_evl0(file("evermind_f32.evl0"))
    adapter = parse_seed_adapter(file("evermind_adapter.bin"))
    tensors["embedding"] = tensors["embedding"] + adapter.alpha / len(adapter.a_RK) * adapter.b_NR @ adapter.a_RK
    expected = parse_evl0(file("evermind_merged.evl0"))[1]
    written = parse_evl0(serialize_evl0(shape, tensors))[1]
    for name, tensor in expected.items():
        assert (written[name] - tensor).abs().max() < 1e-6, name
    base, merged = _model(), _model("evermind_merged.evl0")
    bank = AdapterBank(base)
    bank.load(0, AdapterWeights({EMBEDDING: (adapter.a_RK, adapter.b_NR)}, {EMBEDDING: 2.0}, 8.0, 4, ["embeddings"]))
    ids = oracle()["sequences"][2]
    adapted = base.logits(base.hidden(pack([ids], [0], "cpu")), [0] * len(ids))
    assert (adapted - logits_of(merged, ids)).abs().max() < 1e-5


def _load(path: Path, kind: str = "evl0") -> LoadedBase:
    return load_base_model(f"{kind}:{path}", model_id="ever", device="cpu", dtype="float32", quantization="none")


@pytest.mark.parametrize(("name", "tolerance"), [("evermind_f32.evl0", 1e-4), ("evermind_f16.evl0", 0.05)])
def test_an_evl0_file_is_a_base_model(tmp_path: Path, name: str, tolerance: float) -> None:
    (tmp_path / name).write_bytes(file(name))
    with pytest.raises(LoadingError, match="a vocabulary of 48 has no room"):
        _load(tmp_path / name)
    save_tokenizer(tmp_path)
    with pytest.raises(LoadingError, match="no room for the tokenizer's 94"):
        _load(tmp_path / name)
    small = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(_shrunk(small))
    base = _load(tmp_path / name)
    assert base.info.architecture == "EvermindForCausalLM"
    expected = torch.tensor(oracle()["logits_seq0"])
    assert (logits_of(base.model, oracle()["sequences"][0]) - expected).abs().max() < tolerance


def _shrunk(tokenizer: str) -> str:
    content = json.loads(tokenizer)
    content["model"]["vocab"] = dict(list(content["model"]["vocab"].items())[:48])
    return json.dumps(content)


def test_the_hf_layout_of_the_same_model(tmp_path: Path) -> None:
    shape, _ = parse_evl0(file("evermind_f32.evl0"))
    model = _model(dtype=torch.float32)
    save_file(
        {name: weight.base.contiguous() for name, weight in model.weights().items()}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(config_of(shape)))
    save_tokenizer(tmp_path)
    loaded = _load(tmp_path, "hf")
    for name, weight in loaded.model.weights().items():
        assert torch.equal(weight.base, model.weights()[name].base), name
    # Products of a matrix that starts elsewhere in memory may round otherwise, so the last bits are not compared.
    ids = oracle()["sequences"][0]
    torch.testing.assert_close(logits_of(loaded.model, ids), logits_of(model, ids), rtol=1e-5, atol=1e-5)


def test_every_weight_and_target_against_finite_differences() -> None:
    sizes = {"vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 2, "conv_kernel": 3}
    config = read_config({**sizes, "expert_size": 3, "num_experts": 3, "top_k": 2})
    assert_every_weight(config)
    assert_every_target(config)
