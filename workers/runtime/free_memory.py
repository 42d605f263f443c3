"""How much memory a worker may plan with, asked once when the base model is loaded."""

import psutil
import torch

from workers.models.language_model import LanguageModel
from workers.training.memory import pass_bytes

SHARE = 0.5
"""Of what is free; the rest is for serving and for what estimates miss."""


def training_capacity(model: LanguageModel, tokens_per_step: int) -> int:
    """Return the bytes that runs may take: a share of what is free, less what one full pass keeps."""
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
    else:
        free = psutil.virtual_memory().available
    return max(0, int(SHARE * free) - pass_bytes(model, tokens_per_step))
