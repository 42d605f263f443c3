"""Hybrids of Mamba, attention and experts against transformers, on models saved by it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BambaConfig, GraniteMoeHybridConfig, JambaConfig, PreTrainedConfig

from tests.models.conftest import load_small
from tests.models.families import PROMPT, assert_equals_theirs, logits_of, save_family
from workers.loading import LoadingError

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA2 = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 8}
ROPE = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
KINDS = ["linear_attention", "full_attention", "linear_attention"]
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.5,
    "logits_scaling": 0.7,
}


def granite(**options: object) -> GraniteMoeHybridConfig:
    sizes = {**SIZES, **MAMBA2, "shared_intermediate_size": 40, "num_local_experts": 0, "layer_types": KINDS}
    return GraniteMoeHybridConfig(**sizes | options)


def bamba(**options: object) -> BambaConfig:
    return BambaConfig(**{**SIZES, **MAMBA2, "attn_layer_indices": [1], **options})


def jamba(**options: object) -> JambaConfig:
    return JambaConfig(**{**SIZES, "num_experts": 4, "attn_layer_period": 3, "attn_layer_offset": 1, **options})


@pytest.mark.parametrize(
    "options",
    [
        MULTIPLIERS,
        {"position_embedding_type": "rope", "attention_bias": True, "mamba_proj_bias": True, "rope_parameters": ROPE},
        {"num_local_experts": 5, "num_experts_per_tok": 2, **MULTIPLIERS},
    ],
    ids=["multipliers", "rope and biases", "experts"],
)
def test_granite(tmp_path: Path, options: dict[str, object]) -> None:
    base = assert_equals_theirs(tmp_path, granite(**options))
    prefix = "model.layers.1.block_sparse_moe"
    assert (f"{prefix}.router.layer.weight" in base.info.weights) == ("num_local_experts" in options)
    assert "model.layers.1.shared_mlp.input_linear" in base.info.modules
    assert base.info.selective == [f"model.layers.{i}.mamba.in_proj.weight" for i in (0, 2)]


def test_granite_with_the_older_names_of_layers(tmp_path: Path) -> None:
    save_family(tmp_path, granite())
    expected = logits_of(load_small(tmp_path).model, PROMPT)
    rewrite(tmp_path, {"layer_types": ["mamba", "attention", "mamba"], "position_embedding_type": "nope"})
    assert torch.equal(logits_of(load_small(tmp_path).model, PROMPT), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention_bias": True, "mlp_bias": True, "mamba_conv_bias": False, "time_step_limit": (0.5, 0.8)},
        {"num_attention_heads": 2, "rope_parameters": ROPE},
    ],
    ids=["plain", "biases", "linear rope"],
)
def test_bamba(tmp_path: Path, options: dict[str, object]) -> None:
    assert_equals_theirs(tmp_path, bamba(**options))


def test_bamba_that_names_how_many_dimensions_turn(tmp_path: Path) -> None:
    save_family(tmp_path, bamba())
    expected = logits_of(load_small(tmp_path).model, PROMPT)
    rewrite(tmp_path, {"attn_rotary_emb": 4, "rope_parameters": None, "rope_theta": 10000.0})
    assert torch.equal(logits_of(load_small(tmp_path).model, PROMPT), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mamba_proj_bias": True, "mamba_dt_rank": 5, "expert_layer_period": 1, "expert_layer_offset": 0},
        {"num_experts": 1, "tie_word_embeddings": True},
    ],
    ids=["plain", "experts everywhere", "dense"],
)
def test_jamba(tmp_path: Path, options: dict[str, object]) -> None:
    base = assert_equals_theirs(tmp_path, jamba(**options))
    assert ("model.layers.1.feed_forward.experts.3.up_proj.weight" in base.info.weights) != ("num_experts" in options)
    assert ("model.layers.0.feed_forward.up_proj" in base.info.modules) != ("expert_layer_period" in options)


def test_jamba_with_stacked_experts(tmp_path: Path) -> None:
    save_family(tmp_path, jamba())
    expected = logits_of(load_small(tmp_path).model, PROMPT)
    path, prefix = tmp_path / "model.safetensors", "model.layers.1.feed_forward.experts"
    tensors = load_file(path)
    each = [[tensors.pop(f"{prefix}.{e}.{p}_proj.weight") for p in ("gate", "up", "down")] for e in range(4)]
    tensors[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat([gate, up]) for gate, up, _ in each])
    tensors[f"{prefix}.down_proj"] = torch.stack([down for _, _, down in each])
    save_file(tensors, path)
    assert torch.equal(logits_of(load_small(tmp_path).model, PROMPT), expected)


def rewrite(directory: Path, change: dict[str, object]) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        (granite(), {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi' is not supported"),
        (granite(), {"layer_types": ["mamba", "attention", "conv"]}, r"layer_types\[2\] 'conv' is none of mamba"),
        (granite(), {"layer_types": ["mamba"]}, "1 layer_types for 3 num_hidden_layers"),
        (granite(), {"num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok 3 of 2"),
        (granite(), {"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        (bamba(), {"attn_layer_indices": [1, 7]}, "attn_layer_indices names layer 7"),
        (bamba(), {"attn_rotary_emb": 8}, "attn_rotary_emb 8 is not the 4"),
        (bamba(), {"mamba_n_heads": 7}, "mamba_n_heads 7 of mamba_d_head 8 do not make 64"),
        (bamba(), {"mamba_n_groups": 3}, "mamba_n_heads 8 cannot share mamba_n_groups 3"),
        (jamba(), {"attn_layer_offset": 3}, "attn_layer_offset 3 is not below attn_layer_period 3"),
        (jamba(), {"num_experts_per_tok": 9}, "num_experts_per_tok 9 of 4 num_experts"),
        (jamba(), {"num_experts": 5}, r"router.weight has shape \(4, 32\), expected \(5, 32\)"),
        (jamba(), {"expert_layer_offset": 0}, "tensor model.layers.0.feed_forward.down_proj.weight is unknown"),
        (jamba(), {"mamba_inner_layernorms": False}, "mamba_inner_layernorms False is not supported"),
        (granite(), {"normalization_function": "layernorm"}, "normalization_function 'layernorm' is not supported"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, config: PreTrainedConfig, change: dict[str, object], words: str
) -> None:
    save_family(tmp_path, config)
    rewrite(tmp_path, change)
    with pytest.raises(LoadingError, match=words):
        load_small(tmp_path)
