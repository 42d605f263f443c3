"""Mamba-1, FalconMamba and Mamba-2 against transformers, on models saved by it."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import FalconMambaConfig, Mamba2Config, MambaConfig

from tests.models.conftest import load_small
from tests.models.families import PROMPT, assert_equals_theirs, logits_of
from workers.loading import LoadingError

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


def _as_mamba_ssm(directory: Path, ssm_cfg: dict[str, object]) -> None:
    """Rewrite a saved model in the layout of mamba_ssm, with the head's copy that it keeps."""
    config = {"d_model": 32, "n_layer": 3, "vocab_size": 93, "ssm_cfg": ssm_cfg, "rms_norm": True}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = load_file(directory / "model.safetensors")
    embedding = tensors.pop("backbone.embeddings.weight", None)
    if embedding is None:
        embedding = tensors["backbone.embedding.weight"]
    tensors |= {"backbone.embedding.weight": embedding, "lm_head.weight": embedding.clone()}
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("kind", ["Mamba1", "Mamba2"])
def test_the_layout_of_mamba_ssm(tmp_path: Path, kind: str) -> None:
    if kind == "Mamba1":
        theirs, options = MambaConfig(**SIZES, state_size=8), {"d_state": 8}
    else:
        theirs = Mamba2Config(**SIZES, state_size=16, num_heads=8, head_dim=8, n_groups=1, tie_word_embeddings=True)
        options = {"layer": "Mamba2", "d_state": 16, "headdim": 8}
    expected = logits_of(assert_equals_theirs(tmp_path, theirs).model, PROMPT)
    _as_mamba_ssm(tmp_path, options)
    base = load_small(tmp_path)
    assert base.info.architecture == "MambaLMHeadModel"
    assert (logits_of(base.model, PROMPT) - expected).abs().max() == 0


def test_what_mamba_ssm_has_and_we_do_not_is_refused_by_name(tmp_path: Path) -> None:
    assert_equals_theirs(tmp_path, MambaConfig(**SIZES, state_size=8))
    _as_mamba_ssm(tmp_path, {"layer": "Mamba3"})
    with pytest.raises(LoadingError, match=r"ssm_cfg.layer 'Mamba3' is not supported"):
        load_small(tmp_path)
    _as_mamba_ssm(tmp_path, {"d_state": 8, "D_has_hdim": True})
    with pytest.raises(LoadingError, match=r"ssm_cfg.D_has_hdim is not supported"):
        load_small(tmp_path)


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    assert_equals_theirs(tmp_path, MambaConfig(**SIZES, state_size=8))
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(LoadingError, match=r"pytorch_model.bin is a pickle"):
        load_small(tmp_path)
