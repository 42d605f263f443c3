"""A tiny model of each kind of state, with two adapter versions, in an engine."""

from pathlib import Path

import torch
from transformers import GraniteMoeHybridConfig, LlamaConfig, Mamba2Config, MambaConfig, PreTrainedConfig

from app.contracts.inference import TextEvent
from app.contracts.training import LoRAConfig
from tests.models.conftest import load_small
from tests.models.families import save_family
from tests.unit.inference.conftest import Events, Harness
from workers.loading import LoadedBase
from workers.lora.adapter import AdapterWeights, init_adapter

SIZES = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "bos_token_id": 1, "eos_token_id": 95}
ATTENTION = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
MAMBA2 = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_chunk_size": 8}
KINDS = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 0}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES | ATTENTION),
    "mamba": MambaConfig(**SIZES, state_size=8),
    "mamba2": Mamba2Config(**SIZES, state_size=16, num_heads=8, head_dim=8, n_groups=2, chunk_size=8),
    "hybrid": GraniteMoeHybridConfig(**SIZES | ATTENTION | MAMBA2 | KINDS, shared_intermediate_size=40),
}


def load_family(directory: Path, name: str) -> LoadedBase:
    """Make and load one of CONFIGS."""
    save_family(directory, CONFIGS[name])
    return load_small(directory)


def adapters_of(base: LoadedBase) -> dict[str, AdapterWeights]:
    """Two versions that change every answer."""
    made = {}
    for seed, name in enumerate(["v1", "v2"]):
        config = LoRAConfig(rank=4, alpha=4, targets=base.info.default_targets, seed=seed)
        made[name] = init_adapter(base.info.modules, config)
        for _, b_NR in made[name].tensors.values():
            b_NR.normal_(0, 0.3, generator=torch.Generator().manual_seed(seed))
    return made


def engine_of(base: LoadedBase, prefix_bytes: int = 0, **options: int) -> Harness:
    """An engine over both versions."""
    return Harness(base, adapters_of(base), prefix_bytes=prefix_bytes, **options)


def tokens_of(events: Events, index: int = 0) -> list[int]:
    """The token ids of one choice, whose log-probabilities were asked for."""
    return [event.logprobs[0].token_id for event in events if isinstance(event, TextEvent) and event.index == index]
