"""How to read each Hugging Face architecture: its config.json, and its tensors' names. A file for each family."""

from workers.loading.architectures.base import Architecture
from workers.loading.architectures.llama import LLAMA
from workers.loading.architectures.mamba import FALCON_MAMBA, MAMBA
from workers.loading.architectures.mamba2 import MAMBA2

ARCHITECTURES: dict[str, Architecture] = {
    "FalconMambaForCausalLM": FALCON_MAMBA,
    "LlamaForCausalLM": LLAMA,
    "Mamba2ForCausalLM": MAMBA2,
    "MambaForCausalLM": MAMBA,
}
