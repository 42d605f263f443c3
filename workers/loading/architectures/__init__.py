"""How to read each Hugging Face architecture: its config.json, and its tensors' names. A file for each family."""

from workers.loading.architectures.bamba import BAMBA
from workers.loading.architectures.base import Architecture
from workers.loading.architectures.evermind import EVERMIND
from workers.loading.architectures.evermind import NAME as EVERMIND_NAME
from workers.loading.architectures.graft_hybrid import GRAFT_HYBRID
from workers.loading.architectures.graft_hybrid import NAME as GRAFT_HYBRID_NAME
from workers.loading.architectures.granite import GRANITE_MOE_HYBRID
from workers.loading.architectures.jamba import JAMBA
from workers.loading.architectures.llama import LLAMA
from workers.loading.architectures.mamba import FALCON_MAMBA, MAMBA
from workers.loading.architectures.mamba2 import MAMBA2
from workers.loading.architectures.mamba_ssm import MAMBA_SSM
from workers.loading.architectures.mamba_ssm import NAME as MAMBA_SSM_NAME
from workers.loading.architectures.mistral import MISTRAL
from workers.loading.architectures.qwen import QWEN2, QWEN3

ARCHITECTURES: dict[str, Architecture] = {
    "BambaForCausalLM": BAMBA,
    EVERMIND_NAME: EVERMIND,
    "FalconMambaForCausalLM": FALCON_MAMBA,
    GRAFT_HYBRID_NAME: GRAFT_HYBRID,
    "GraniteMoeHybridForCausalLM": GRANITE_MOE_HYBRID,
    "JambaForCausalLM": JAMBA,
    "LlamaForCausalLM": LLAMA,
    "Mamba2ForCausalLM": MAMBA2,
    "MambaForCausalLM": MAMBA,
    MAMBA_SSM_NAME: MAMBA_SSM,
    "MistralForCausalLM": MISTRAL,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
}
