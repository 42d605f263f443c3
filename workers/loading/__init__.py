"""Base models from files: GGUF and Hugging Face directories. No requests, no adapters, no training."""

from workers.loading.base import LoadedBase, load_base_model
from workers.loading.checkpoint import LoadingError

__all__ = ["LoadedBase", "LoadingError", "load_base_model"]
