"""What a worker tells the service about a base model it hosts.

The service never reads model files: shapes, tokenizer and chat template reach it through the `base_models` table.
"""

from pydantic import Field

from app.contracts.base import Contract


class ModuleShape(Contract):
    """A linear module that an adapter may target: weight [out_features, in_features]."""

    out_features: int
    in_features: int


class BaseModelInfo(Contract):
    """A hosted base model as the service sees it.

    `modules` maps the full module name (HF naming, e.g. `model.layers.0.self_attn.q_proj`) to its shape;
    a target name (`q_proj`) is the last part of a module name. `tensors` are the shapes of what can carry a dense delta
    (`A_log`, `D`, `dt_bias`, `conv1d.weight`, `conv1d.bias`), by tensor name; `selective` names the tensors of the
    selective projection, which mode `wsla` trains. `bytes` is what the base's weights take in memory.
    """

    id: str
    architecture: str
    parameters: int
    context_length: int
    vocab_size: int
    hidden_size: int = 0
    """Width of the token embedding."""
    dtype: str
    quantization: str
    modules: dict[str, ModuleShape]
    embedding: str = ""
    """Module name of the token embedding."""
    tied_head: str = ""
    """Module name of the head where it shares the embedding's matrix, else empty."""
    weights: dict[str, list[int]] = Field(default_factory=dict)
    """Shape of every tensor: what a complete checkpoint of this base holds."""
    tensors: dict[str, list[int]] = Field(default_factory=dict)
    selective: list[str] = Field(default_factory=list)
    bytes: int = 0
    default_targets: list[str]
    tokenizer_json: str
    chat_template: str | None
    bos_token_id: int | None
    eos_token_ids: list[int]
