"""How to read each Hugging Face architecture: its config.json, and its tensors' names. A file for each family."""

from workers.loading.architectures.base import Architecture
from workers.loading.architectures.llama import LLAMA

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
}
