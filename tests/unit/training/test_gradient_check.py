"""Targets that no gradient reaches are named."""

import pytest
import torch

from workers.training.errors import TrainingError
from workers.training.gradient_check import require_gradients, still_without

NAMES = ["model.layers.0.self_attn.q_proj.lora_A", "model.layers.0.mlp.up_proj.lora_B"]


def test_absent_and_zero_gradients_are_both_missing() -> None:
    assert still_without([*NAMES, "x"], {NAMES[0]: torch.zeros(2), NAMES[1]: torch.tensor([0.0, 1e-30])}) == [
        NAMES[0],
        "x",
    ]


def test_a_is_due_after_two_steps_and_b_after_one() -> None:
    require_gradients([], 2)
    require_gradients(NAMES, 0)
    require_gradients(NAMES[:1], 1)
    with pytest.raises(TrainingError, match="no gradient reached target up_proj ") as caught:
        require_gradients(NAMES, 1)
    assert caught.value.code == "zero_gradient"
    with pytest.raises(TrainingError, match="no gradient reached target q_proj, up_proj "):
        require_gradients(NAMES, 2)
