"""The scans and what stands around them: fast paths against the plain recurrence, and against finite differences."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import silu, softplus

from workers.kernels import selective_scan as mamba1
from workers.kernels import ssd as mamba2
from workers.kernels.causal_conv import causal_conv, reference_causal_conv
from workers.kernels.gated_norm import gated_norm
from workers.kernels.selective_scan import ScanInputs, reference_selective_scan, selective_scan
from workers.kernels.ssd import SsdInputs, reference_ssd, ssd

Scan = Callable[..., tuple[Tensor, Tensor]]


def _generator(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def scan_inputs(sequences: int, length: int, channels: int, width: int, seed: int = 0) -> ScanInputs:
    normal = _generator(seed)
    return ScanInputs(
        u_SLD=normal(sequences, length, channels),
        delta_SLD=softplus(normal(sequences, length, channels)),
        a_DN=-normal(channels, width).exp(),
        b_SLN=normal(sequences, length, width),
        c_SLN=normal(sequences, length, width),
        skip_D=normal(channels),
        gate_SLD=normal(sequences, length, channels),
        state_SND=normal(sequences, width, channels),
    )


def ssd_inputs(sequences: int, length: int, heads: int, groups: int, seed: int = 0) -> SsdInputs:
    normal, head, width = _generator(seed), 3, 4
    return SsdInputs(
        x_SLHP=normal(sequences, length, heads, head),
        delta_SLH=softplus(normal(sequences, length, heads)),
        a_H=-normal(heads).exp(),
        b_SLGN=normal(sequences, length, groups, width),
        c_SLGN=normal(sequences, length, groups, width),
        skip_H=normal(heads),
        state_SHPN=normal(sequences, heads, head, width),
    )


def _leaves(tensors: tuple[Tensor, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [t.to(dtype).requires_grad_() for t in tensors]


def _assert_same(fast: Scan, slow: Scan, inputs: tuple[Tensor, ...], tolerance: float) -> None:
    """Outputs, last states and the gradients of all inputs, to `tolerance` of the largest element."""
    ours, theirs = fast(*inputs), slow(*inputs)
    upstream = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y) for y in ours]
    found = torch.autograd.grad(ours, inputs, upstream)
    expected = torch.autograd.grad(theirs, inputs, upstream)
    for one, other in zip((*ours, *found), (*theirs, *expected), strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= tolerance * (1 + other.abs().max())


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba1, "CHUNK", 3)
    monkeypatch.setattr(mamba2, "CHUNK", 3)


SHAPES = {
    "sequences": st.integers(1, 3),
    "length": st.integers(1, 40),
    "seed": st.integers(0, 1000),
}


@settings(max_examples=25, deadline=None)
@given(**SHAPES, channels=st.sampled_from([1, 5, 70]), width=st.integers(1, 4), block=st.sampled_from([1, 1 << 20]))
def test_selective_scan_equals_the_recurrence(
    sequences: int, length: int, seed: int, channels: int, width: int, block: int
) -> None:
    inputs = scan_inputs(sequences, length, channels, width, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba1, "BLOCK_ELEMENTS", block)
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
            _assert_same(
                lambda *x: selective_scan(ScanInputs(*x)),
                lambda *x: reference_selective_scan(ScanInputs(*x)),
                tuple(_leaves(inputs, dtype)),
                tolerance,
            )


@settings(max_examples=25, deadline=None)
@given(**SHAPES, shared=st.integers(1, 3), groups=st.integers(1, 2), chunk=st.sampled_from([7, 64]))
def test_ssd_equals_the_recurrence(
    sequences: int, length: int, seed: int, shared: int, groups: int, chunk: int
) -> None:
    inputs = ssd_inputs(sequences, length, groups * shared, groups, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mamba2, "CHUNK", chunk)
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
            _assert_same(
                lambda *x: ssd(SsdInputs(*x)),
                lambda *x: reference_ssd(SsdInputs(*x)),
                tuple(_leaves(inputs, dtype)),
                tolerance,
            )


@settings(max_examples=25, deadline=None)
@given(**SHAPES, taps=st.integers(2, 5), activate=st.booleans(), bias=st.booleans())
def test_convolution_equals_one_token_after_the_other(
    sequences: int, length: int, seed: int, taps: int, activate: bool, bias: bool
) -> None:
    normal = _generator(seed)
    tensors = (normal(sequences, length, 3), normal(3, taps), normal(sequences, taps - 1, 3), normal(3))

    def call(conv: Scan) -> Scan:
        return lambda x, w, state, b=None: conv(x, w, b, state, activate=activate)

    inputs = tuple(_leaves(tensors if bias else tensors[:3]))
    _assert_same(call(causal_conv), call(reference_causal_conv), inputs, 1e-12)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("length", [1, 3, 7])
def test_finite_differences_of_the_selective_scan(length: int) -> None:
    inputs = _leaves(scan_inputs(2, length, 3, 2))
    assert gradcheck(lambda *x: selective_scan(ScanInputs(*x)), inputs)
    assert gradcheck(lambda *x: selective_scan(ScanInputs(*x[:6], None, x[6])), inputs[:6] + inputs[7:])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize(("heads", "groups"), [(3, 1), (4, 2), (2, 2)])
def test_finite_differences_of_the_ssd(length: int, heads: int, groups: int) -> None:
    assert gradcheck(lambda *x: ssd(SsdInputs(*x)), _leaves(ssd_inputs(2, length, heads, groups)))


@pytest.mark.parametrize("activate", [True, False])
def test_finite_differences_of_the_convolution(activate: bool) -> None:
    normal = _generator(0)
    inputs = _leaves((normal(2, 5, 3), normal(3, 4), normal(3), normal(2, 3, 3)))
    assert gradcheck(lambda *x: causal_conv(*x, activate=activate), inputs)


@pytest.mark.parametrize("groups", [1, 3])
def test_gated_norm(groups: int) -> None:
    normal = _generator(0)
    x, gate, weight = _leaves((normal(4, 6), normal(4, 6), normal(6)))
    y = gated_norm(x, gate, weight, 1e-5, groups)
    assert gradcheck(lambda *t: gated_norm(*t, 1e-5, groups), [x, gate, weight])
    parts = (x * silu(gate)).view(4, groups, -1)
    expected = parts / (parts.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    assert (y - expected.view(4, 6) * weight).abs().max() < 1e-12
    with torch.no_grad():
        assert torch.equal(gated_norm(x, gate, weight, 1e-5, groups), y)


def _step_by_step(scan: Scan, tensors: tuple[Tensor, ...], constant: tuple[int, ...], prefill: int) -> Tensor:
    """Run the first `prefill` tokens at once and the rest one by one; return what that gives."""
    length, state, outputs = tensors[0].shape[1], tensors[-1], []
    for start, stop in [(0, prefill), *((t, t + 1) for t in range(prefill, length))]:
        piece = [x if i in constant else x[:, start:stop] for i, x in enumerate(tensors[:-1])]
        y, state = scan(*piece, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


@pytest.mark.parametrize("prefill", [1, 20, 67])
@pytest.mark.parametrize("gradients", [True, False])
def test_prefill_then_decode_equals_one_shot(prefill: int, gradients: bool) -> None:
    scans: list[tuple[Scan, tuple[Tensor, ...], tuple[int, ...]]] = [
        (lambda *x: selective_scan(ScanInputs(*x)), scan_inputs(2, 70, 5, 3), (2, 5)),
        (lambda *x: ssd(SsdInputs(*x)), ssd_inputs(2, 70, 4, 2), (2, 5)),
    ]
    for scan, inputs, constant in scans:
        tensors = tuple(_leaves(inputs)) if gradients else inputs
        y, last = scan(*tensors)
        pieces, state = _step_by_step(scan, tensors, constant, prefill)
        assert (y - pieces).abs().max() < 1e-11
        assert (last - state).abs().max() < 1e-11


def test_the_convolution_goes_on_from_its_state() -> None:
    normal = _generator(0)
    x, weight, bias = normal(2, 9, 3), normal(3, 4), normal(3)
    whole, last = causal_conv(x, weight, bias, None, activate=True)
    first, state = causal_conv(x[:, :2], weight, bias, None, activate=True)
    second, state = causal_conv(x[:, 2:3], weight, bias, state, activate=True)
    third, state = causal_conv(x[:, 3:], weight, bias, state, activate=True)
    assert (torch.cat([first, second, third], dim=1) - whole).abs().max() < 1e-14
    assert torch.equal(state, last)


@pytest.mark.parametrize("strongest", [1e-4, 2.0, 200.0])
def test_long_and_extreme_scans_agree_with_float64(strongest: float) -> None:
    """4096 tokens whose log decays reach from 0 to −200 a step."""
    length, order = 4096, torch.Generator().manual_seed(0)
    ramp = torch.linspace(0, 1, length, dtype=torch.float64)[torch.randperm(length, generator=order)][None, :, None]
    one = scan_inputs(1, length, 4, 2)
    one = one._replace(delta_SLD=ramp.expand(1, length, 4), a_DN=torch.full((4, 2), -strongest, dtype=torch.float64))
    two = ssd_inputs(1, length, 4, 1)
    two = two._replace(delta_SLH=ramp.expand(1, length, 4), a_H=torch.full((4,), -strongest, dtype=torch.float64))
    cases: list[tuple[Scan, tuple[Tensor, ...]]] = [
        (lambda *x: selective_scan(ScanInputs(*x)), one),
        (lambda *x: ssd(SsdInputs(*x)), two),
    ]
    for scan, inputs in cases:
        results = []
        for dtype in (torch.float32, torch.float64):
            leaves = _leaves(inputs, dtype)
            y, last = scan(*leaves)
            upstream = torch.linspace(-1, 1, y.numel(), dtype=dtype).view_as(y)
            results.append((y, last, *torch.autograd.grad([y, last], leaves, [upstream, torch.ones_like(last)])))
        for single, double in zip(*results, strict=True):
            assert single.isfinite().all()
            assert (single - double).abs().max() <= 2e-4 * double.abs().max() + torch.finfo(torch.float32).tiny


def test_narrow_inputs_give_narrow_outputs_and_gradients() -> None:
    narrow = torch.bfloat16
    for scan, inputs, widths in (
        (lambda x: selective_scan(ScanInputs(*x)), scan_inputs(1, 9, 4, 2), (0, 3, 4, 6)),
        (lambda x: ssd(SsdInputs(*x)), ssd_inputs(1, 9, 2, 1), (0, 3, 4)),
    ):
        leaves = [t.to(narrow if i in widths else torch.float32).requires_grad_() for i, t in enumerate(inputs)]
        y, last = scan(leaves)
        exact, _ = scan([t.detach().double() for t in leaves])
        assert (y.dtype, last.dtype) == (narrow, torch.float32)
        assert (y - exact).abs().max() < 0.01 * exact.abs().max()
        y.float().sum().backward()
        assert [t.grad.dtype for t in leaves] == [t.dtype for t in leaves]
