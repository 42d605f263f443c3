"""What cannot be loaded is refused, naming the file, the field or the tensor."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.models.conftest import load_small, save_llama
from workers.loading import LoadingError, load_base_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return save_llama(tmp_path, tied=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"attention_bias": True}, r"tensor model.layers.0.self_attn.k_proj.bias is missing"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"intermediate_size": 57}, r"down_proj.weight has shape \(32, 56\), expected \(32, 57\)"),
        ({"num_hidden_layers": 4}, "tensor model.layers.3.* is missing"),
        ({"num_hidden_layers": 2}, "tensor model.layers.2.* is unknown"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_configurations(directory: Path, change: dict[str, object], words: str) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    with pytest.raises(LoadingError, match=words):
        load_small(directory)


def test_an_unknown_tensor(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.q_proj.bias"] = tensors["model.norm.weight"].clone()
    save_file(tensors, path)
    with pytest.raises(LoadingError, match=r"tensor model.layers.0.self_attn.q_proj.bias is unknown"):
        load_small(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(LoadingError, match=name):
        load_small(directory)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("gguf:package/no_such_package", "no_such_package"),
        ("gguf:/nowhere.gguf", "/nowhere.gguf"),
        ("onnx:x", "onnx:x"),
    ],
)
def test_sources(source: str, words: str) -> None:
    with pytest.raises(LoadingError, match=words):
        load_base_model(source, model_id="x", device="cpu", dtype="auto", quantization="none")
