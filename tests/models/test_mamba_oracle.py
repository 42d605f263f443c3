"""Mamba-1, FalconMamba and Mamba-2 against transformers, on models saved by it."""

from pathlib import Path

import pytest
from transformers import FalconMambaConfig, Mamba2Config, MambaConfig

from tests.models.families import assert_equals_theirs

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize("options", [{}, {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False}])
def test_mamba(tmp_path: Path, options: dict[str, bool]) -> None:
    base = assert_equals_theirs(tmp_path, MambaConfig(**SIZES, state_size=8, **options))
    assert base.info.architecture == "MambaForCausalLM"
    assert base.info.selective == [f"backbone.layers.{i}.mixer.x_proj.weight" for i in range(3)]
    assert base.info.default_targets == ["dt_proj", "in_proj", "out_proj", "x_proj"]
    assert base.info.tensors["backbone.layers.0.mixer.A_log"] == [64, 8]
    assert base.info.tensors["backbone.layers.0.mixer.conv1d.weight"] == [64, 1, 4]
    assert "backbone.layers.0.mixer.dt_proj.bias" in base.info.tensors


@pytest.mark.parametrize("options", [{}, {"use_bias": True, "tie_word_embeddings": False}])
def test_falcon_mamba(tmp_path: Path, options: dict[str, bool]) -> None:
    assert_equals_theirs(tmp_path, FalconMambaConfig(**SIZES, state_size=8, mixer_rms_eps=1e-3, **options))


@pytest.mark.parametrize(
    "options",
    [{}, {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True, "time_step_limit": (0.5, 0.8)}],
)
def test_mamba2(tmp_path: Path, options: dict[str, object]) -> None:
    config = Mamba2Config(**SIZES, state_size=16, num_heads=8, head_dim=8, n_groups=2, chunk_size=8, **options)
    base = assert_equals_theirs(tmp_path, config)
    assert base.info.selective == [f"backbone.layers.{i}.mixer.in_proj.weight" for i in range(3)]
    assert {name.rpartition(".")[2] for name in base.info.tensors} >= {"A_log", "D", "dt_bias", "weight"}
