"""What graft.toml may say of a base model, a worker can load: sources and number formats, and the page's example."""

import re
from pathlib import Path

import pytest
import torch

from app.core.settings import BaseModelSource, Settings, SettingsError
from workers.kernels.quantized_weight import KINDS
from workers.loading.base import LoadedBase, load_base_model
from workers.loading.evl0 import EvermindShape, serialize_evl0, tensor_shapes

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def configured(folder: Path, text: str) -> list[BaseModelSource]:
    """Return the base models of a graft.toml with this text."""
    place = folder / "graft.toml"
    place.write_text(text)
    return Settings(config_file=place).base_models()


def loaded(source: BaseModelSource) -> LoadedBase:
    """Load a base model as a worker does."""
    return load_base_model(
        source.source, model_id=source.id, device="cpu", dtype=source.dtype, quantization=source.quantization
    )


def table(folder: Path, quantization: str) -> str:
    """Write a small whole model into one file and return the table that names it."""
    shape = EvermindShape(vocab=258, width=64, layers=2, taps=4, hidden=128, experts=2, top_k=1)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(size, generator=generator) for name, size in tensor_shapes(shape).items()}
    place = folder / "small.evl0"
    place.write_bytes(serialize_evl0(shape, tensors))
    return (
        f'[[base_models]]\nid = "small"\nsource = "evl0:{place}"\ndtype = "float32"\nquantization = "{quantization}"\n'
    )


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_every_number_format_can_be_configured_and_loaded(tmp_path: Path, kind: str) -> None:
    [source] = configured(tmp_path, table(tmp_path, kind))
    base = loaded(source)
    assert (base.info.id, base.info.quantization) == ("small", kind)
    groups = [group for s in base.model.sublayers() for group in s.mixer.groups()]
    assert groups
    assert all((group.quantized is not None) == (kind != "none") for group in groups)


def test_another_number_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="'none', 'fp16', 'int8' or 'nf4'"):
        configured(tmp_path, table(tmp_path, "int4"))


def test_the_documented_example_is_accepted_and_lists_every_choice(tmp_path: Path) -> None:
    page = PAGE.read_text()
    [example] = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    assert [source.source.partition(":")[0] for source in configured(tmp_path, example)] == ["gguf", "hf"]
    [choices] = re.findall(r"quantization = .*# (.*)", example)
    assert choices == "none, " + ", ".join(KINDS[:-1]) + " or " + KINDS[-1]
    [others] = re.findall(r'source = "hf:.*# or (.*)', example)
    for source in others.split(", "):
        assert configured(tmp_path, f'[[base_models]]\nid = "a"\nsource = "{source}"\n')[0].source == source
