"""Mixtures of experts: against every expert computed for every row, and every weight against finite differences."""

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from tests.models.exactness import assert_every_target, assert_every_weight, float64_model
from workers.kernels.moe import best_gates, mix_experts
from workers.models.config import MlpSpec, ModelConfig, MoeSpec, SublayerSpec
from workers.models.layers.context import make_context

Gates = Literal["selected", "all"]
STACKED = ("experts.input.weight",), "experts.output.weight"
APART = ("experts.{}.gate.weight", "experts.{}.up.weight"), "experts.{}.down.weight"
SHARED = MlpSpec(2, gate_up=("shared.input",), down="shared.output")


def _config(gates: Gates, names: tuple[tuple[str, ...], str], shared: MlpSpec | None, layers: int = 2) -> ModelConfig:
    moe = MoeSpec(3, 3, 2, gates, "router.weight", *names, shared)
    return ModelConfig(
        vocab_size=11,
        hidden_size=4,
        context_length=32,
        norm_eps=1e-5,
        layers=tuple((SublayerSpec(f"layers.{i}.norm", f"layers.{i}.moe", moe),) for i in range(layers)),
        tied_head=True,
    )


@pytest.mark.parametrize(
    ("gates", "names", "shared"), [("selected", STACKED, SHARED), ("all", APART, None)], ids=["stacked", "apart"]
)
def test_every_weight_the_router_among_them(
    gates: Gates, names: tuple[tuple[str, ...], str], shared: MlpSpec | None
) -> None:
    assert_every_weight(_config(gates, names, shared))


def test_every_factor_of_the_shared_mlp() -> None:
    assert_every_target(_config("selected", STACKED, SHARED))


def _in_full(x_TD: Tensor, tensors: dict[str, Tensor], gates: Gates, names: tuple[tuple[str, ...], str]) -> Tensor:
    """Every expert for every row; those that are not among the row's best two have gate 0."""
    logits_TE = x_TD @ tensors["router.weight"].T
    kept_TE = logits_TE >= logits_TE.topk(2).values[:, 1:]
    weights_TE = logits_TE.masked_fill(~kept_TE, -torch.inf).softmax(-1)
    if gates == "all":
        weights_TE = logits_TE.softmax(-1) * kept_TE
    result = torch.zeros_like(x_TD)
    for e in range(3):
        if names == STACKED:
            gate_up, down = tensors[names[0][0]][e], tensors[names[1]][e]
        else:
            gate_up, down = torch.cat([tensors[n.format(e)] for n in names[0]]), tensors[names[1].format(e)]
        gate, up = (x_TD @ gate_up.T).chunk(2, dim=-1)
        result += weights_TE[:, e, None] * ((silu(gate) * up) @ down.T)
    return result


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("names", [STACKED, APART], ids=["stacked", "apart"])
@pytest.mark.parametrize("gates", ["selected", "all"])
def test_against_all_experts_for_all_rows(gates: Gates, names: tuple[tuple[str, ...], str], rows: int) -> None:
    model = float64_model(_config(gates, names, None, layers=1))
    tensors = {n.removeprefix("layers.0.moe."): w.base for n, w in model.weights().items()}
    x_TD = torch.randn(rows, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got = model.sublayers()[0].mixer.forward(x_TD, make_context([-1], [rows], None, dense=(), places=None), None)
    assert torch.allclose(got, _in_full(x_TD, tensors, gates, names), atol=1e-12)


def test_an_expert_sees_its_rows_at_once_and_is_not_called_without_any() -> None:
    seen: dict[int, list[float]] = {}

    def net(expert: int, rows: Tensor) -> Tensor:
        assert expert not in seen
        seen[expert] = rows[:, 0].tolist()
        return rows * (10.0**expert)

    x_TD = torch.tensor([[1.0], [2.0], [3.0]])
    chosen_TK = torch.tensor([[3, 0], [0, 1], [3, 1]])
    gates_TK = torch.tensor([[0.5, 1.0], [1.0, 2.0], [1.0, 1.0]])
    mixed = mix_experts(x_TD, gates_TK, chosen_TK, 4, net)
    assert seen == {0: [1.0, 2.0], 1: [2.0, 3.0], 3: [1.0, 3.0]}
    assert mixed.flatten().tolist() == [501.0, 42.0, 3030.0]


def test_gates_are_wide_inside_and_narrow_outside() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.bfloat16)
    selected, chosen = best_gates(logits, 2, over_all=False)
    over_all, same = best_gates(logits, 2, over_all=True)
    assert chosen.tolist() == same.tolist() == [[0, 1]]
    assert selected.dtype == over_all.dtype == torch.bfloat16
    assert torch.allclose(selected.float(), torch.tensor([[0.7311, 0.2689]]), atol=2e-3)
    assert torch.allclose(over_all.float(), torch.tensor([[0.6439, 0.2369]]), atol=2e-3)
