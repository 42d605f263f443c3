"""Adapters cross the border both ways: ours under PeftModel, and PEFT's in our slots, give equal logits."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM

from app.contracts.training import LoRAConfig
from tests.models.conftest import TARGETS, load_small, save_llama
from workers.loading import LoadedBase
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import from_peft, to_peft
from workers.lora.bank import AdapterBank
from workers.lora.new_adapter import new_lora
from workers.models.batch import pack

PROMPT = [5, 17, 80, 3, 44, 9, 61, 2, 33, 70, 12]
Q1 = "model.layers.1.self_attn.q_proj"


def _ours(base: LoadedBase, adapter: AdapterWeights) -> torch.Tensor:
    AdapterBank(base.model).load(0, adapter)
    with torch.no_grad():
        return base.model.logits(base.model.hidden(pack([PROMPT], [0], "cpu")), [0] * len(PROMPT))


def _theirs(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits[0]


def _filled(base: LoadedBase, rank: int, targets: list[str]) -> AdapterWeights:
    adapter = new_lora(base.info, LoRAConfig(rank=rank, alpha=12, targets=targets, seed=3))
    for _, b_NR in adapter.tensors.values():
        b_NR.normal_(0, 0.3)
    return adapter


def _write(directory: Path, base: LoadedBase, adapter: AdapterWeights) -> Path:
    config, data = to_peft(adapter, base.info)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    (directory / "adapter_model.safetensors").write_bytes(data)
    return directory


@pytest.mark.parametrize(
    ("rank", "targets"),
    [(4, TARGETS), (40, TARGETS), (3, ["v_proj", "down_proj"])],
    ids=["all", "rank clamped per module", "subset"],
)
def test_our_adapter_under_peft(
    base: LoadedBase, reference: LlamaForCausalLM, tmp_path: Path, rank: int, targets: list[str]
) -> None:
    adapter = _filled(base, rank, targets)
    before = _theirs(reference)
    theirs = _theirs(PeftModel.from_pretrained(reference, _write(tmp_path, base, adapter)))
    assert (theirs - before).abs().max() > 1e-2
    assert (_ours(base, adapter) - theirs).abs().max() < 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": TARGETS},
        {"target_modules": ["q_proj", "up_proj"], "use_rslora": True},
        {"target_modules": "all-linear"},
        {"target_modules": r".*layers\.[02]\.(self_attn\.(q|v)_proj|mlp\.down_proj)"},
        {"target_modules": [Q1]},
        {
            "target_modules": TARGETS,
            "rank_pattern": {"q_proj": 2, r"layers\.2\.mlp\..*": 7},
            "alpha_pattern": {"down_proj": 20, Q1: 3},
        },
        {"target_modules": ["q_proj", "o_proj"], "rank_pattern": {"o_proj": 3}, "use_rslora": True},
    ],
    ids=["all", "rslora", "all-linear", "regex", "one module", "patterns", "rslora with patterns"],
)
def test_peft_adapter_in_our_slots(
    base: LoadedBase, reference: LlamaForCausalLM, tmp_path: Path, options: dict[str, object]
) -> None:
    torch.manual_seed(5)
    config = LoraConfig(r=5, lora_alpha=9, task_type="CAUSAL_LM", init_lora_weights=False, **options)
    tuned = get_peft_model(reference, config).eval()
    tuned.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    adapter = from_peft(saved, (tmp_path / "adapter_model.safetensors").read_bytes(), base.info)
    ours = _ours(base, adapter)
    assert (ours - _theirs(tuned)).abs().max() < 1e-4
    again = from_peft(*to_peft(adapter, base.info), base.info)
    assert (_ours(base, again) - ours).abs().max() < 1e-6
    assert again.targets == adapter.targets


def test_bytes_are_deterministic(base: LoadedBase) -> None:
    adapter = _filled(base, 4, TARGETS)
    reordered = AdapterWeights(
        dict(reversed(adapter.tensors.items())), adapter.scales, adapter.alpha, adapter.rank, adapter.targets
    )
    assert to_peft(adapter, base.info) == to_peft(reordered, base.info)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LoadedBase, LlamaForCausalLM]:
    """Our small model and transformers', whose head is the embedding's matrix, or one of its own."""
    directory = save_llama(tmp_path_factory.mktemp("pair"), tied=request.param)
    return load_small(directory), LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def _with_embedding(base: LoadedBase) -> AdapterWeights:
    rank, name = 3, base.info.embedding
    adapter = _filled(base, rank, ["q_proj"])
    a_RD, b_VR = torch.randn(rank, base.info.hidden_size) * 0.3, torch.randn(base.info.vocab_size, rank) * 0.3
    tensors = adapter.tensors | {name: (a_RD, b_VR)}
    return AdapterWeights(tensors, adapter.scales | {name: 4.0}, 12.0, rank, ["q_proj", "embeddings"])


def test_our_embedding_adapter_under_peft(pair: tuple[LoadedBase, LlamaForCausalLM], tmp_path: Path) -> None:
    base, reference = pair
    adapter = _with_embedding(base)
    plain = _theirs(
        PeftModel.from_pretrained(copy.deepcopy(reference), _write(tmp_path, base, _filled(base, 3, ["q_proj"])))
    )
    theirs = _theirs(PeftModel.from_pretrained(reference, _write(tmp_path, base, adapter)))
    assert (theirs - plain).abs().max() > 1e-2
    assert (_ours(base, adapter) - theirs).abs().max() < 1e-4


def test_peft_embedding_adapter_in_our_slots(pair: tuple[LoadedBase, LlamaForCausalLM], tmp_path: Path) -> None:
    base, reference = pair
    torch.manual_seed(5)
    config = LoraConfig(
        r=3,
        lora_alpha=6,
        task_type="CAUSAL_LM",
        target_modules=["embed_tokens", "v_proj"],
        ensure_weight_tying=bool(base.info.tied_head),
        init_lora_weights=False,
    )
    tuned = get_peft_model(reference, config).eval()
    with torch.no_grad():
        tuned.get_input_embeddings().lora_embedding_B["default"].mul_(0.1)
    tuned.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    adapter = from_peft(saved, (tmp_path / "adapter_model.safetensors").read_bytes(), base.info)
    assert adapter.targets == ["v_proj", "embeddings"]
    assert (_ours(base, adapter) - _theirs(tuned)).abs().max() < 1e-4


def test_peft_passes_over_what_it_cannot_express(base: LoadedBase, reference: LlamaForCausalLM, tmp_path: Path) -> None:
    adapter = _filled(base, 4, ["q_proj"])
    more = replace(adapter, dense={f"{Q1}.weight": torch.ones(32, 32)})
    plain = _theirs(PeftModel.from_pretrained(copy.deepcopy(reference), _write(tmp_path, base, adapter)))
    with pytest.warns(UserWarning, match=r"Unexpected keyword arguments \['graft'\]"):
        model = PeftModel.from_pretrained(reference, _write(tmp_path, base, more))
    assert torch.equal(_theirs(model), plain)
