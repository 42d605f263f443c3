"""The hand-written backwards against torch's own autograd over plain formulas."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad, rms_norm, silu

from workers.kernels import rms_norm as norm
from workers.kernels.causal_attention import causal_attention, fused_attention
from workers.kernels.linear_cross_entropy import CHUNK_ROWS, linear_cross_entropy
from workers.kernels.lora_linear import Term, frozen_linear, lora_linear, lora_terms
from workers.kernels.packed_weight import can_pack, pack_weight
from workers.kernels.swiglu import swiglu
from workers.models.config import plain_rope
from workers.models.layers.rope import rotate, rotate_, rotation_of


def _leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def _assert_same(ours: Tensor, theirs: Tensor, leaves: list[Tensor], tolerance: float = 1e-10) -> None:
    assert (ours - theirs).abs().max() < tolerance
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(ours.dtype)
    for one, other in zip(
        torch.autograd.grad(ours, leaves, upstream), torch.autograd.grad(theirs, leaves, upstream), strict=True
    ):
        assert (one - other).abs().max() < tolerance


@pytest.mark.parametrize("length", [1, 5, 128, 300])
def test_blocked_attention_equals_the_fused_one(length: int) -> None:
    q, k, v = _leaves((2, length, 6, 4), (2, length, 2, 4), (2, length, 2, 4))
    _assert_same(causal_attention(q, k, v), fused_attention(q, k, v, None, causal=True), [q, k, v])


@pytest.mark.parametrize("rows", [1, CHUNK_ROWS, 2 * CHUNK_ROWS + 3])
def test_linear_cross_entropy_over_chunks(rows: int) -> None:
    hidden, weight = _leaves((rows, 5), (17, 5))
    targets = torch.arange(rows) % 17
    expected = cross_entropy(hidden @ weight.T, targets, reduction="none")
    _assert_same(linear_cross_entropy(hidden, weight, targets), expected, [hidden, weight])


def test_linear_cross_entropy_of_no_rows_is_empty() -> None:
    hidden, weight = _leaves((0, 5), (17, 5))
    nll = linear_cross_entropy(hidden, weight, torch.zeros(0, dtype=torch.long))
    assert nll.shape == (0,)
    nll.sum().backward()


def test_linear_cross_entropy_of_huge_logits_is_finite() -> None:
    hidden, weight = torch.full((1, 1), 1e4), torch.tensor([[1.0], [-1.0]])
    assert linear_cross_entropy(hidden, weight, torch.tensor([1])).item() == pytest.approx(2e4)


def test_rms_norm_and_swiglu() -> None:
    x, weight, gate_up = _leaves((7, 6), (6,), (7, 10))
    _assert_same(norm.rms_norm(x, weight, 1e-5), rms_norm(x, (6,), weight, 1e-5), [x, weight])
    _assert_same(swiglu(gate_up), silu(gate_up[:, :5]) * gate_up[:, 5:], [gate_up])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0)])
def test_rms_norm_of_one_row_equals_torchs(dtype: torch.dtype, tolerance: float) -> None:
    x, weight = (leaf.detach() for leaf in _leaves((1, 576), (576,), dtype=dtype))
    assert (norm.rms_norm(x, weight, 1e-5) - rms_norm(x, (576,), weight, 1e-5)).abs().max() <= tolerance


def test_rotation_in_place_equals_the_other() -> None:
    (x,) = (leaf.detach() for leaf in _leaves((5, 3, 8), dtype=torch.bfloat16))
    rotation = rotation_of(torch.arange(5), plain_rope(8, 1e4).inverse_frequencies, torch.bfloat16)
    expected = rotate(x, rotation)
    rotate_(x, rotation)
    assert x.equal(expected)


def test_lora_linear_adds_each_term_to_its_rows_and_outputs_alone() -> None:
    x, a, b, other_a, other_b = _leaves((6, 5), (2, 5), (7, 2), (3, 5), (4, 3))
    weight = torch.randn(7, 5, dtype=torch.float64)
    terms = [Term(slice(0, 2), slice(0, 7), a, b, 1.5), Term(slice(3, 6), slice(2, 6), other_a, other_b, 0.5)]

    def added() -> Tensor:
        first, last = 1.5 * (x[:2] @ a.T) @ b.T, pad(0.5 * (x[3:] @ other_a.T) @ other_b.T, (2, 1))
        return torch.cat([first, torch.zeros(1, 7, dtype=torch.float64), last])

    _assert_same(lora_linear(x, weight, None, terms), x @ weight.T + added(), [x, a, b, other_a, other_b])
    _assert_same(lora_terms(x, 7, terms), added(), [x, a, b, other_a, other_b])


def test_a_term_that_is_not_finite_stays_in_its_rows() -> None:
    x, a, b = _leaves((4, 5), (2, 5), (7, 2))
    weight, loud = torch.randn(7, 5, dtype=torch.float64), torch.full((2, 5), torch.inf, dtype=torch.float64)
    terms = [Term(slice(0, 2), slice(0, 7), a, b, 1.0), Term(slice(2, 4), slice(0, 7), loud, b.detach(), 1.0)]
    y = lora_linear(x, weight, None, terms)
    assert not y[2:].isfinite().any()
    y.sum().backward()
    assert x.grad is not None
    assert x.grad[:2].isfinite().all()
    assert not x.grad[2:].isfinite().all()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in (a, b))


@pytest.mark.parametrize("rows", [1, 2, 9, 200])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.26)])
def test_packed_weights_give_the_plain_products(dtype: torch.dtype, tolerance: float, rows: int) -> None:
    x, weight, a, b = _leaves((rows, 64), (48, 64), (4, 64), (48, 4), dtype=dtype)
    if not can_pack(weight):
        pytest.skip("this CPU has no bfloat16 products")
    packed = pack_weight(weight)
    _assert_same(frozen_linear(x, weight.detach(), packed), frozen_linear(x, weight.detach(), None), [x], tolerance)
    terms = [Term(slice(0, rows), slice(0, 48), a, b, 1.0)]
    ours = lora_linear(x, weight.detach(), packed, terms)
    _assert_same(ours, lora_linear(x, weight.detach(), None, terms), [x, a, b], tolerance)
