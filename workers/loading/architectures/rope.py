"""Rotary positions from config.json: the plain ones, and those stretched for longer contexts."""

import math

from workers.loading.architectures.base import Json, LoadingError
from workers.models.config import RopeSpec, plain_rope

KINDS = ("default", "linear", "llama3")


def _number(rope: Json, name: str) -> float:
    if rope.get(name) is None:
        raise LoadingError(f"config.json: rope field {name} is missing")
    return float(rope[name])


def _llama3(frequency: float, rope: Json, factor: float) -> float:
    """Return a frequency of Llama 3.1's positions: fast ones stay, slow ones are divided, those between are mixed."""
    turns = _number(rope, "original_max_position_embeddings") * frequency / (2 * math.pi)
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    if low >= high:
        raise LoadingError(f"config.json: rope low_freq_factor {low} is not below high_freq_factor {high}")
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return frequency * (kept + (1 - kept) / factor)


def rotary_width(config: Json, head_dim: int, default: float = 1.0) -> int:
    """Return how many of a head's first dimensions turn: `partial_rotary_factor` of them."""
    rope = config.get("rope_parameters") or {}
    factor = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or default
    return int(head_dim * factor)


def read_rope(config: Json, dim: int) -> RopeSpec:
    """Return the rotary positions of a config, for heads that turn `dim` dimensions.

    Raises LoadingError naming a type or field that is not supported.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in KINDS:
        raise LoadingError(f"config.json: rope type {kind!r} is not supported, only {', '.join(KINDS)}")
    if dim % 2:
        raise LoadingError(f"config.json: {dim} rotary dimensions do not turn in pairs")
    plain = plain_rope(dim, float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0))
    if kind == "default":
        return plain
    factor = _number(rope, "factor")
    if kind == "linear":
        return RopeSpec(dim, tuple(f / factor for f in plain.inverse_frequencies))
    return RopeSpec(dim, tuple(_llama3(f, rope, factor) for f in plain.inverse_frequencies))
