"""Llama's kin against transformers, on models saved by it: biases, norms on heads, windows and stretched rotations."""

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from tests.models.conftest import load_small, save_llama
from tests.models.families import assert_equals_theirs
from workers.kernels.causal_attention import causal_attention, fused_attention, seen_mask
from workers.loading import LoadingError

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}


@pytest.mark.parametrize(
    "options", [{}, {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}], ids=["full", "windows"]
)
def test_qwen2(tmp_path: Path, options: dict[str, object]) -> None:
    base = assert_equals_theirs(tmp_path, Qwen2Config(**SIZES, **options))
    assert "model.layers.0.self_attn.q_proj.bias" in base.info.weights
    assert "model.layers.0.self_attn.o_proj.bias" not in base.info.weights


@pytest.mark.parametrize("options", [{}, {"attention_bias": True, "tie_word_embeddings": True}], ids=["plain", "bias"])
def test_qwen3(tmp_path: Path, options: dict[str, bool]) -> None:
    base = assert_equals_theirs(tmp_path, Qwen3Config(**SIZES, head_dim=16, **options))
    assert base.info.weights["model.layers.2.self_attn.k_norm.weight"] == [16]


@pytest.mark.parametrize("window", [None, 1, 4, 64])
def test_mistral(tmp_path: Path, window: int | None) -> None:
    assert_equals_theirs(tmp_path, MistralConfig(**SIZES, sliding_window=window, head_dim=12))


@pytest.mark.parametrize(
    "options",
    [{"attention_bias": True, "mlp_bias": True}, {"rope_parameters": LLAMA3}, {"rope_parameters": LINEAR}],
    ids=["biases", "llama3", "linear"],
)
def test_llama(tmp_path: Path, options: dict[str, object]) -> None:
    assert_equals_theirs(tmp_path, LlamaConfig(**SIZES, **options))


@pytest.mark.parametrize("window", [1, 37, 200])
def test_a_window_across_blocks_of_training(window: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 300, heads, 4, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    ours = causal_attention(q, k, v, window)
    theirs = fused_attention(q, k, v, seen_mask(300, 0, window, q.device), causal=False)
    weights = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    assert torch.allclose(ours, theirs, atol=1e-12)
    expected = torch.autograd.grad((theirs * weights).sum(), leaves)
    for got, wanted in zip(torch.autograd.grad((ours * weights).sum(), leaves), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-11)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn' is not supported, only default, linear, llama3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope field factor is missing"),
        ({"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0}}, r"low_freq_factor 4.0 is not below"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window 0 must be at least 1"),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["x"]}, "layer_types is not supported"),
        ({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["chunked"] * 3}, r"layer_types\[0\] 'chunked'"),
        ({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention"]}, "1 layer_types for 3"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = save_llama(tmp_path, tied=True) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LoadingError, match=words):
        load_small(tmp_path)
