"""How much memory a worker may plan with, asked once when the base model is loaded."""

import psutil
import torch

from workers.models.language_model import LanguageModel
from workers.training.memory import pass_bytes

SHARE = 0.5
"""Of what is free; the rest is for serving and for what estimates miss."""
ADAPTER_SHARE = 0.25
"""Of what is free, for the adapter versions that are served."""

STATE_SHARE = 0.125
"""Of what is free, for the states of running requests; up to twice as much where one full context needs it."""
PREFIX_SHARE = 0.0625
"""Of what is free, for the states of conversations that may go on."""


def training_capacity(model: LanguageModel, tokens_per_step: int) -> int:
    """Return the bytes that runs may take: a share of what is free, less what one full pass keeps."""
    return max(0, int(SHARE * _free_bytes(model.device)) - pass_bytes(model, tokens_per_step))


def adapter_capacity(device: torch.device) -> int:
    """Return the bytes that adapter versions in slots may take."""
    return int(ADAPTER_SHARE * _free_bytes(device))


def state_capacity(model: LanguageModel, context_length: int) -> int:
    """Return the bytes that the states of running requests may take."""
    share = STATE_SHARE * _free_bytes(model.device)
    return int(min(max(share, model.state_bytes(context_length)), 2 * share))


def prefix_capacity(device: torch.device) -> int:
    """Return the bytes that kept states may take."""
    return int(PREFIX_SHARE * _free_bytes(device))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
