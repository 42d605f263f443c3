"""Adapters of every family cross the border to PEFT and back, for every target that PEFT computes there.

PEFT refuses `out_proj` and `conv1d` on pure Mambas, and transformers reads `dt_proj` past its adapter.
"""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    BambaConfig,
    FalconMambaConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    Mamba2Config,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tests.models.conftest import load_small
from tests.models.families import PROMPT, save_family
from workers.loading import LoadedBase
from workers.lora.adapter import AdapterWeights
from workers.lora.adapter_file import from_peft, to_peft
from workers.lora.bank import AdapterBank
from workers.models.batch import pack

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}
ATTENTION = {
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
DECODER_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAMILIES: dict[str, tuple[PreTrainedConfig, list[str]]] = {
    "qwen2": (Qwen2Config(**SIZES, **ATTENTION, tie_word_embeddings=True), DECODER_TARGETS),
    "qwen3": (Qwen3Config(**SIZES, **ATTENTION, head_dim=8, tie_word_embeddings=True), DECODER_TARGETS),
    "mistral": (MistralConfig(**SIZES, **ATTENTION, head_dim=8), DECODER_TARGETS),
    "mamba": (MambaConfig(**SIZES, state_size=8), ["in_proj", "x_proj"]),
    "untied mamba": (MambaConfig(**SIZES, state_size=8, tie_word_embeddings=False), ["in_proj", "x_proj"]),
    "falcon_mamba": (FalconMambaConfig(**SIZES, state_size=8), ["in_proj", "x_proj"]),
    "mamba2": (
        Mamba2Config(
            **SIZES, state_size=16, num_heads=8, head_dim=8, n_groups=2, chunk_size=8, tie_word_embeddings=True
        ),
        ["in_proj"],
    ),
    "bamba": (
        BambaConfig(**SIZES, **ATTENTION, **MAMBA2, attn_layer_indices=[1]),
        ["in_proj", "out_proj", *DECODER_TARGETS],
    ),
    "granite": (
        GraniteMoeHybridConfig(
            **SIZES,
            **ATTENTION,
            layer_types=["mamba", "attention"],
            **MAMBA2,
            shared_intermediate_size=40,
            num_local_experts=0,
            num_experts_per_tok=0,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
            tie_word_embeddings=True,
        ),
        ["in_proj", "out_proj", "input_linear", "output_linear", "q_proj", "k_proj", "v_proj", "o_proj"],
    ),
    "jamba": (
        JambaConfig(
            **SIZES,
            **ATTENTION,
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            num_experts=4,
            num_experts_per_tok=2,
            mamba_d_state=8,
            mamba_dt_rank=4,
            use_mamba_kernels=False,
        ),
        ["in_proj", "x_proj", "out_proj", *DECODER_TARGETS],
    ),
}


def ours(base: LoadedBase, adapter: AdapterWeights) -> torch.Tensor:
    AdapterBank(base.model).load(0, adapter)
    with torch.no_grad():
        return base.model.logits(base.model.hidden(pack([PROMPT], [0], "cpu")), [0] * len(PROMPT))


def theirs(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits[0]


def random_adapter(base: LoadedBase, targets: list[str], rank: int = 3) -> AdapterWeights:
    """Return an adapter of all modules that end in a target, and of the embedding."""
    generator = torch.Generator().manual_seed(1)
    shapes = {
        name: (shape.out_features, shape.in_features)
        for name, shape in base.info.modules.items()
        if name.rpartition(".")[2] in targets
    } | {base.info.embedding: (base.info.vocab_size, base.info.hidden_size)}
    tensors = {
        name: (
            torch.randn(rank, inputs, generator=generator) * inputs**-0.5,
            torch.randn(outputs, rank, generator=generator) * 0.3,
        )
        for name, (outputs, inputs) in shapes.items()
    }
    return AdapterWeights(tensors, dict.fromkeys(tensors, 2.0), 2.0 * rank, rank, [*targets, "embeddings"])


def write(directory: Path, base: LoadedBase, adapter: AdapterWeights) -> Path:
    config, data = to_peft(adapter, base.info)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    (directory / "adapter_model.safetensors").write_bytes(data)
    return directory


@pytest.mark.parametrize("family", FAMILIES)
def test_our_adapter_under_peft(tmp_path: Path, family: str) -> None:
    config, targets = FAMILIES[family]
    reference = save_family(tmp_path, config)
    base = load_small(tmp_path)
    before, adapter = theirs(reference), random_adapter(base, targets)
    under_peft = theirs(PeftModel.from_pretrained(reference, write(tmp_path, base, adapter)).eval())
    assert (under_peft - before).abs().max() > 1e-1
    assert (ours(base, adapter) - under_peft).abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_adapter_in_our_slots(tmp_path: Path, family: str) -> None:
    config, targets = FAMILIES[family]
    reference = save_family(tmp_path, config)
    base = load_small(tmp_path)
    vocabulary = [base.info.embedding.rpartition(".")[2]] + ([base.info.tied_head] if base.info.tied_head else [])
    torch.manual_seed(5)
    lora = LoraConfig(
        r=3,
        lora_alpha=6,
        task_type="CAUSAL_LM",
        target_modules=[*targets, *vocabulary],
        ensure_weight_tying=bool(base.info.tied_head),
        init_lora_weights=False,
    )
    tuned = get_peft_model(reference, lora).eval()
    with torch.no_grad():
        tuned.get_input_embeddings().lora_embedding_B["default"].mul_(0.1)
    tuned.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    adapter = from_peft(saved, (tmp_path / "adapter_model.safetensors").read_bytes(), base.info)
    assert set(adapter.targets) == {*targets, "embeddings"}
    assert (ours(base, adapter) - theirs(tuned)).abs().max() < 1e-4
    again = from_peft(*to_peft(adapter, base.info), base.info)
    assert (ours(base, again) - ours(base, adapter)).abs().max() < 1e-6


def test_peft_refuses_what_only_we_compute(tmp_path: Path) -> None:
    reference = save_family(tmp_path, FAMILIES["mamba"][0])
    base = load_small(tmp_path)
    adapter = random_adapter(base, ["out_proj"])
    with pytest.raises(ValueError, match="'out_proj' is incompatible with Mamba-based models"):
        PeftModel.from_pretrained(reference, write(tmp_path, base, adapter))
    assert (ours(base, adapter) - theirs(save_family(tmp_path / "again", FAMILIES["mamba"][0]))).abs().max() > 1e-1


def test_deltas_of_a_state_space_layer_come_back(tmp_path: Path) -> None:
    save_family(tmp_path, FAMILIES["mamba"][0])
    base = load_small(tmp_path)
    generator = torch.Generator().manual_seed(2)
    shapes = base.info.tensors | {name: base.info.weights[name] for name in base.info.selective}
    dense = {name: torch.randn(*shape, generator=generator) * 0.1 for name, shape in shapes.items()}
    adapter = AdapterWeights({}, {}, 1.0, 1, ["A_log", "D", "conv1d", "dt_bias"], dense=dense)
    back = from_peft(*to_peft(adapter, base.info), base.info)
    assert torch.equal(ours(base, back), ours(base, adapter))
    assert (ours(base, back) - ours(base, AdapterWeights({}, {}, 1.0, 1, []))).abs().max() > 1e-2
