"""Bases in fewer bits: what they take, how near they are, that adapters train on them exactly, and the seeds' views."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, Mamba2Config, MambaConfig

from tests.evermind import oracle
from tests.models.exactness import every_target, model_loss
from tests.models.families import PROMPT, assert_batch_equals_rows, logits_of, logits_token_by_token, save_family
from workers.export.merge import merged_weights
from workers.kernels.quantized_weight import KINDS, Kind, quantize, quantized_linear
from workers.loading import LoadedBase, LoadingError, load_base_model
from workers.loading.seed_quantization import seed_view
from workers.lora.bank import AdapterBank
from workers.models.batch import pack
from workers.models.language_model import LanguageModel

SHARE = {"fp16": 0.52, "int8": 0.27, "nf4": 0.16}
ERROR = {"fp16": 5e-4, "int8": 1.2e-2, "nf4": 0.12}
SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}
FAMILIES = {
    "llama": lambda: LlamaConfig(
        **SIZES, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128
    ),
    "mamba": lambda: MambaConfig(**SIZES, state_size=8),
    "mamba2": lambda: Mamba2Config(**SIZES, state_size=16, num_heads=8, head_dim=16, n_groups=1, use_bias=True),
}


def _load(directory: Path, kind: str, dtype: str = "float32") -> LoadedBase:
    return load_base_model(f"hf:{directory}", model_id="small", device="cpu", dtype=dtype, quantization=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(96, 256), (7, 65)])
def test_bytes_and_error_of_a_matrix(kind: Kind, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.05
    held = quantize(weight, kind)
    dense = held.dense(torch.float32)
    assert (dense.shape, held.shape) == (weight.shape, weight.shape)
    assert (dense - weight).norm() / weight.norm() < ERROR[kind]
    if shape[0] > 50:
        assert held.nbytes <= SHARE[kind] * weight.nbytes


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros_and_what_is_not_finite_is_refused(kind: Kind) -> None:
    assert torch.equal(quantize(torch.zeros(8, 64), kind).dense(torch.float32), torch.zeros(8, 64))
    for value in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="not finite"):
            quantize(torch.full((2, 64), value), kind)
    if kind != "nf4":
        with pytest.raises(ValueError, match="too large"):
            quantize(torch.full((2, 64), 1e6), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_and_its_gradient_are_those_of_the_dense_matrix(kind: Kind) -> None:
    held = quantize(torch.randn(24, 64, generator=torch.Generator().manual_seed(1)), kind)
    x_TK = torch.randn(5, 64, dtype=torch.float64, requires_grad=True)
    dense_NK, seed_TN = held.dense(torch.float64), torch.randn(5, 24, dtype=torch.float64)
    (quantized_linear(x_TK, held) * seed_TN).sum().backward()
    assert torch.allclose(quantized_linear(x_TK, held), x_TK @ dense_NK.T)
    assert torch.allclose(x_TK.grad, seed_TN @ dense_NK)


def _dense_twin(base: LoadedBase, dtype: torch.dtype) -> LanguageModel:
    """Return a model of the quantised values, held dense."""
    twin = LanguageModel(base.model.config, torch.device("cpu"), dtype)
    for name, weight in base.model.weights().items():
        twin.weights()[name].base.copy_(weight.base)
    return twin


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_serves_and_trains_as_its_dense_twin(tmp_path: Path, family: str, kind: Kind) -> None:
    save_family(tmp_path, FAMILIES[family]())
    base = _load(tmp_path, kind)
    plain = _load(tmp_path, "none")
    linear = {f"{name}.weight" for name in base.model.linears()}
    sizes = [sum(w.nbytes for n, w in b.model.weights().items() if n in linear) for b in (base, plain)]
    assert sizes[0] <= SHARE[kind] * sizes[1]
    assert base.info.bytes == plain.info.bytes - sizes[1] + sizes[0]
    assert (base.info.quantization, base.info.parameters) == (kind, plain.info.parameters)
    twin = _dense_twin(base, torch.float32)
    expected = logits_of(twin, PROMPT)
    assert (logits_of(base.model, PROMPT) - expected).abs().max() < 1e-4
    assert (logits_token_by_token(base.model, PROMPT, 5) - expected).abs().max() < 1e-4
    assert_batch_equals_rows(base.model)
    found, wanted = (_gradients(model) for model in (base.model, twin))
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert (found[name] - gradient).norm() <= 1e-4 * gradient.norm(), name


def _gradients(model: LanguageModel) -> dict[str, Tensor]:
    """Of every target, dense deltas among them, and of one delta on a projection, as mode wsla trains it."""
    adapter = every_target(model, seed=1)
    name = next(f"{n}.weight" for n in model.linears())
    adapter.dense[name] = torch.full(model.weights()[name].shape, 0.01)
    bank = AdapterBank(model)
    bank.load(0, adapter, trainable=True)
    model_loss(model, [0, -1, 0, 0]).backward()
    leaves = bank.parameters(0)
    bank.clear(0)
    return {name: leaf.grad for name, leaf in leaves.items()}


def test_served_deltas_and_merging_start_from_the_quantised_values(tmp_path: Path) -> None:
    save_family(tmp_path, FAMILIES["mamba"]())
    base = _load(tmp_path, "nf4")
    adapter = every_target(base.model, seed=1)
    bank = AdapterBank(base.model)
    bank.load(0, adapter)
    with torch.no_grad():
        hidden_TD = base.model.hidden(pack([PROMPT], [0], "cpu"))
        served = base.model.logits(hidden_TD, [0] * len(PROMPT))
    twin = LanguageModel(base.model.config, torch.device("cpu"), torch.float32)
    for name, tensor in merged_weights(base.model, adapter):
        twin.weights()[name].base.copy_(tensor)
    assert (logits_of(twin, PROMPT) - served).abs().max() < 1e-3 * served.abs().max()


def test_an_unknown_format_and_a_value_beyond_it_are_refused(tmp_path: Path) -> None:
    save_family(tmp_path, FAMILIES["llama"]())
    with pytest.raises(LoadingError, match="quantization 'int3' is not supported, only none, fp16, int8, nf4"):
        _load(tmp_path, "int3")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = 1e6
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadingError, match=r"fp16: model.layers.1.mlp.down_proj: a value is too large for float16"):
        _load(tmp_path, "fp16")


@pytest.mark.parametrize("kind", ["none", "fp16", "int8"])
def test_the_seeds_views(kind: str) -> None:
    given = oracle()["quantize"]
    view, size = seed_view(torch.tensor(given["input"]), kind)
    expected = torch.tensor(given["input"] if kind == "none" else given[kind])
    assert (view - expected).abs().max() < 1e-6
    assert size == given["bytes"][kind]
