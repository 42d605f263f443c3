"""Rotary positions, half-split layout (Su et al. 2021, arXiv:2104.09864; pairs are i and i + E/2).

Knows tensors only. Legend: T rows, H heads, E head width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Per row cos and signed sin, [T, 1, E]: rotate(x) = x · cos + swap_halves(x) · sin, on the first E of a head."""

    cos_T1E: Tensor
    sin_T1E: Tensor


def rotation_of(positions_T: Tensor, inverse_frequencies: Sequence[float], dtype: torch.dtype) -> Rotation:
    """Return the rotation of each position; angles are computed in at least float32."""
    wide = torch.promote_types(dtype, torch.float32)
    frequencies = torch.tensor(inverse_frequencies, dtype=wide, device=positions_T.device)
    angles_TE = positions_T.to(wide)[:, None] * frequencies[None, :]
    cos, sin = angles_TE.cos(), angles_TE.sin()
    return Rotation(torch.cat([cos, cos], -1)[:, None].to(dtype), torch.cat([-sin, sin], -1)[:, None].to(dtype))


def rotate_(x_THE: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the heads in place and return them."""
    swapped_THE = x_THE.roll(x_THE.shape[-1] // 2, -1)
    return x_THE.mul_(rotation.cos_T1E).addcmul_(swapped_THE, rotation.sin_T1E)


def rotate(x_THE: Tensor, rotation: Rotation) -> Tensor:
    """Return the rotated heads."""
    swapped_THE = x_THE.roll(x_THE.shape[-1] // 2, -1)
    return torch.addcmul(x_THE * rotation.cos_T1E, swapped_THE, rotation.sin_T1E)
