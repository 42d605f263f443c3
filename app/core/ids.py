"""Identifiers: a readable prefix and a time-ordered UUID, so that ids sort by creation."""

from typing import Literal

from uuid_utils import uuid7

Prefix = Literal["tnt", "key", "file", "blob", "ftjob", "ftevent", "ftckpt", "snap", "adp", "ver", "req", "wkr"]


def new_id(prefix: Prefix) -> str:
    """Return e.g. `ftjob-0197…` (prefix, dash, 32 hex digits of a UUIDv7)."""
    return f"{prefix}-{uuid7().hex}"
