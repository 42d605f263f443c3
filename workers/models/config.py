"""The shape of a Llama-family model. Knows numbers only; readers of files fill it in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """Widths, counts and constants; `head_dim` is per head, `rope_theta` the base of the rotary frequencies."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    rope_theta: float
    norm_eps: float
    tied_head: bool

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} must be even for rotary positions")
