"""Fresh models: presets and schedules give the layers they promise, load, train exactly, serve, and start well."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from app.cli.main import cli
from tests.models.exactness import assert_every_target, assert_every_weight
from tests.models.families import assert_batch_equals_rows, logits_of, logits_token_by_token
from workers.loading import LoadedBase, LoadingError, load_base_model
from workers.loading.architectures.graft_hybrid import layer_kinds, new_config, read_config
from workers.loading.new_model import write_new_model
from workers.models.config import AttentionSpec, Mamba2Spec, MambaSpec, MixerSpec, MlpSpec, SublayerSpec, plain_rope

TEXT = list(b"The quick brown fox jumps over the lazy dog.")


def _load(directory: Path) -> LoadedBase:
    return load_base_model(f"hf:{directory}", model_id="new", device="cpu", dtype="float32", quantization="none")


@pytest.mark.parametrize(
    ("preset", "width", "layers"), [("nano", 128, 4), ("small", 256, 6), ("medium", 512, 8), ("large", 768, 12)]
)
def test_presets_have_the_sizes_they_promise(preset: str, width: int, layers: int) -> None:
    config = read_config(new_config(preset, "mamba1", 258))
    assert (config.hidden_size, len(config.layers)) == (width, layers)
    assert config.layers[0][0].mixer == MambaSpec(2 * width, 16, 4, dt_rank=width // 16)


def test_schedules() -> None:
    assert layer_kinds("jamba", 8) == ["mamba2"] * 3 + ["attention"] + ["mamba2"] * 3 + ["attention"]
    assert layer_kinds("zamba", 6) == ["mamba2"] * 5 + ["attention"]
    assert layer_kinds("mamba1, attention", 4) == ["mamba1", "attention", "mamba1", "attention"]
    with pytest.raises(LoadingError, match="'rwkv' is neither jamba, zamba or a list of mamba1, mamba2, attention"):
        layer_kinds("mamba1,rwkv", 4)
    with pytest.raises(LoadingError, match="'tiny' is none of nano"):
        new_config("tiny", "jamba", 258)


def test_a_fresh_model_loads_serves_and_starts_near_even_odds(tmp_path: Path) -> None:
    write_new_model(tmp_path / "a", preset="nano", schedule="mamba1,mamba2,attention", tokenizer="bytes", seed=3)
    write_new_model(tmp_path / "b", preset="nano", schedule="mamba1,mamba2,attention", tokenizer="bytes", seed=3)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    base = _load(tmp_path / "a")
    assert base.info.architecture == "GraftHybridForCausalLM"
    assert [type(s.mixer) for layer in base.model.config.layers for s in layer] == [
        MambaSpec, Mamba2Spec, AttentionSpec, MlpSpec, MambaSpec,
    ]  # fmt: skip
    assert base.info.eos_token_ids == [257]
    assert base.info.chat_template is not None
    whole = logits_of(base.model, TEXT)
    assert abs(torch.nn.functional.cross_entropy(whole[:-1], torch.tensor(TEXT[1:])).item() - math.log(258)) < 0.2
    assert (logits_token_by_token(base.model, TEXT, 7) - whole).abs().max() < 1e-4
    assert_batch_equals_rows(base.model)


def test_the_command_writes_what_a_worker_loads(tmp_path: Path) -> None:
    out = tmp_path / "mine"
    arguments = ["models", "init", "--preset", "nano", "--schedule", "jamba", "--tokenizer", "bytes", "--out", str(out)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert f'source = "hf:{out}"' in result.output
    assert _load(out).info.vocab_size == 258
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code != 0
    assert "exists and is not empty" in str(again.exception)


def test_a_nonempty_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("mine")
    with pytest.raises(LoadingError, match="exists and is not empty"):
        write_new_model(tmp_path, preset="nano", schedule="jamba", tokenizer="bytes", seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]


def test_a_mixture_of_all_three_kinds_against_finite_differences() -> None:
    small = read_config({**new_config("nano", "mamba1,mamba2,attention", 11), "hidden_size": 64, "layer_kinds": []})
    layers = (
        (_sublayer(0, MambaSpec(4, 2, 2, 1)),),
        (_sublayer(1, Mamba2Spec(2, 2, 1, 2, 2, 1e-5)),),
        (_sublayer(2, AttentionSpec(2, 1, 2)), _sublayer(3, MlpSpec(3))),
    )
    config = replace(small, hidden_size=4, layers=layers, rope=plain_rope(2, 100.0))
    assert_every_weight(config)
    assert_every_target(config)


def _sublayer(index: int, mixer: MixerSpec) -> SublayerSpec:
    return SublayerSpec(f"model.layers.{index}.norm", f"model.layers.{index}.mixer", mixer)
