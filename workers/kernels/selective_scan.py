"""The selective scan of Mamba-1 (Gu and Dao 2023, arXiv:2312.00752).

h_t = exp(Δ_t A) h_{t−1} + Δ_t u_t B_t and y_t = C_t h_t. Knows tensors only. The recurrence runs in float32 or wider,
step by step, over blocks of channels and chunks of time that are small enough for the cache. All that does not depend
on the step before is done for a whole chunk at once. The forward keeps the state at each chunk's start, and the
backward computes a chunk's states again from it, so that the states of all tokens are never held. There is no
division, and only decays <= 1 are multiplied.

Legend: S sequences, L tokens of one, T tokens of a chunk, D channels, E channels of a block, N state width, K chunks.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import silu

CHUNK = 16
BLOCK_ELEMENTS = 1 << 20
"""States [S, T, N, E] that a chunk holds at once: 4 MiB of float32."""


class ScanInputs(NamedTuple):
    """`a_DN` is negative; `delta_SLD` positive; `skip_D` and `gate_SLD` make y = (C h + skip · u) · silu(gate)."""

    u_SLD: Tensor
    delta_SLD: Tensor
    a_DN: Tensor
    b_SLN: Tensor
    c_SLN: Tensor
    skip_D: Tensor
    gate_SLD: Tensor | None
    state_SND: Tensor | None


class _Chunk(NamedTuple):
    """One chunk of one block of channels: what its states are computed from."""

    u_STE: Tensor
    delta_STE: Tensor
    a_NE: Tensor
    b_STN: Tensor
    c_STN: Tensor


class _Wide:
    """A call's tensors in the dtype of the recurrence, cut into blocks of channels and chunks of time."""

    def __init__(self, u: Tensor, delta: Tensor, a_DN: Tensor, b: Tensor, c: Tensor) -> None:
        wide = torch.promote_types(delta.dtype, torch.float32)
        self.u_SLD, self.delta_SLD, self.b_SLN, self.c_SLN = (x.to(wide) for x in (u, delta, b, c))
        self.a_ND = a_DN.to(wide).T.contiguous()
        self.sequences, self.length, self.channels = u.shape
        rows = self.sequences * min(CHUNK, self.length) * a_DN.shape[1]
        self.block = max(64, BLOCK_ELEMENTS // rows // 64 * 64)

    def blocks(self) -> list[slice]:
        """Channels of each block."""
        return [slice(d, min(d + self.block, self.channels)) for d in range(0, self.channels, self.block)]

    def spans(self) -> list[slice]:
        """Tokens of each chunk."""
        return [slice(t, min(t + CHUNK, self.length)) for t in range(0, self.length, CHUNK)]

    def chunk(self, span: slice, block: slice) -> _Chunk:
        """Return views of the inputs."""
        return _Chunk(
            self.u_SLD[:, span, block],
            self.delta_SLD[:, span, block],
            self.a_ND[:, block],
            self.b_SLN[:, span],
            self.c_SLN[:, span],
        )


def _outer(left_STN: Tensor, right_STE: Tensor) -> Tensor:
    return left_STN[..., None] * right_STE[:, :, None]


def _states(chunk: _Chunk, start_SNE: Tensor) -> tuple[Tensor, Tensor]:
    """Return decays [S, T, N, E] and the states after each token [S, T, N, E]."""
    decay_STNE = (chunk.delta_STE[:, :, None] * chunk.a_NE).exp_()
    h_STNE = _outer(chunk.b_STN, chunk.delta_STE * chunk.u_STE)
    before_SNE = start_SNE
    for decay_SNE, h_SNE in zip(decay_STNE.unbind(1), h_STNE.unbind(1), strict=True):
        before_SNE = h_SNE.addcmul_(decay_SNE, before_SNE)
    return decay_STNE, h_STNE


def _read(c_STN: Tensor, h_STNE: Tensor) -> Tensor:
    """Return C h [S, T, E]."""
    return (c_STN[:, :, None] @ h_STNE)[:, :, 0]


def _scan(wide: _Wide, state_SND: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return C h [S, L, D], the states at the chunks' starts [K, S, N, D] and the last one."""
    spans = wide.spans()
    y_SLD = torch.empty_like(wide.u_SLD, memory_format=torch.contiguous_format)
    starts_KSND = y_SLD.new_empty(len(spans) + 1, wide.sequences, *wide.a_ND.shape)
    starts_KSND[0] = 0 if state_SND is None else state_SND
    for block in wide.blocks():
        for k, span in enumerate(spans):
            chunk = wide.chunk(span, block)
            _, h_STNE = _states(chunk, starts_KSND[k, :, :, block])
            y_SLD[:, span, block] = _read(chunk.c_STN, h_STNE)
            starts_KSND[k + 1, :, :, block] = h_STNE[:, -1]
    return y_SLD, starts_KSND[:-1], starts_KSND[-1]


class _Gradients(NamedTuple):
    """Of the wide inputs, `y` being C h computed again where a gate needs it."""

    u_SLD: Tensor
    delta_SLD: Tensor
    a_ND: Tensor | None
    b_SLN: Tensor
    c_SLN: Tensor
    y_SLD: Tensor | None


def _back_through_time(chunk: _Chunk, decay_STNE: Tensor, gy_STE: Tensor, carry_SNE: Tensor) -> Tensor:
    """Return the gradient of each state [S, T, N, E]; `carry_SNE` becomes that of the state before the chunk."""
    gh_STNE = _outer(chunk.c_STN, gy_STE)
    steps, decays = gh_STNE.unbind(1), decay_STNE.unbind(1)
    steps[-1].add_(carry_SNE)
    for t in range(len(steps) - 1, 0, -1):
        steps[t - 1].addcmul_(decays[t], steps[t])
    torch.mul(decays[0], steps[0], out=carry_SNE)
    return gh_STNE


def _chunk_gradients(chunk: _Chunk, start_SNE: Tensor, gy_STE: Tensor, carry_SNE: Tensor, into: _Gradients) -> None:
    """Add one chunk's part to `into`, whose tensors are cut to the chunk."""
    decay_STNE, h_STNE = _states(chunk, start_SNE)
    gh_STNE = _back_through_time(chunk, decay_STNE, gy_STE, carry_SNE)
    if into.y_SLD is not None:
        into.y_SLD.copy_(_read(chunk.c_STN, h_STNE))
    into.c_SLN.add_((h_STNE @ gy_STE[..., None])[..., 0])
    into.b_SLN.add_((gh_STNE @ (chunk.delta_STE * chunk.u_STE)[..., None])[..., 0])
    # The gradient of Δ A, through the decay of the state before.
    g_STNE = gh_STNE.mul(decay_STNE)
    g_STNE[:, 1:].mul_(h_STNE[:, :-1])
    g_STNE[:, 0].mul_(start_SNE)
    g_added_STE = _read(chunk.b_STN, gh_STNE)
    torch.mul(g_added_STE, chunk.delta_STE, out=into.u_SLD)
    torch.addcmul((g_STNE * chunk.a_NE).sum(2), g_added_STE, chunk.u_STE, out=into.delta_SLD)
    if into.a_ND is not None:
        into.a_ND.add_(g_STNE.mul_(chunk.delta_STE[:, :, None]).sum((0, 1)))


def _scan_back(
    wide: _Wide, starts_KSND: Tensor, gy_SLD: Tensor, carry_SND: Tensor, *, need_a: bool, need_y: bool
) -> _Gradients:
    """Return the gradients; `carry_SND` is that of the last state and becomes that of the first."""
    grads = _Gradients(
        torch.empty_like(gy_SLD),
        torch.empty_like(gy_SLD),
        torch.zeros_like(wide.a_ND) if need_a else None,
        torch.zeros_like(wide.b_SLN),
        torch.zeros_like(wide.c_SLN),
        torch.empty_like(gy_SLD) if need_y else None,
    )
    for block in wide.blocks():
        carry_SNE = carry_SND[:, :, block].contiguous()
        for k, span in reversed(list(enumerate(wide.spans()))):
            into = _Gradients(
                grads.u_SLD[:, span, block],
                grads.delta_SLD[:, span, block],
                None if grads.a_ND is None else grads.a_ND[:, block],
                grads.b_SLN[:, span],
                grads.c_SLN[:, span],
                None if grads.y_SLD is None else grads.y_SLD[:, span, block],
            )
            start_SNE = starts_KSND[k, :, :, block]
            _chunk_gradients(wide.chunk(span, block), start_SNE, gy_SLD[:, span, block], carry_SNE, into)
        carry_SND[:, :, block] = carry_SNE
    return grads


class _SelectiveScan(Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        given = ScanInputs(*args)
        wide = _Wide(given.u_SLD, given.delta_SLD, given.a_DN, given.b_SLN, given.c_SLN)
        y_SLD, starts_KSND, last_SND = _scan(wide, given.state_SND)
        ctx.save_for_backward(*args[:-1], starts_KSND)
        return _finish(y_SLD, given), last_SND.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *args, starts_KSND = ctx.saved_tensors
        given = ScanInputs._make((*args, None))
        wide = _Wide(given.u_SLD, given.delta_SLD, given.a_DN, given.b_SLN, given.c_SLN)
        gy_SLD = grads[0].to(wide.u_SLD.dtype).contiguous()
        through_SLD, gate_SLD = gy_SLD, given.gate_SLD
        if gate_SLD is not None:
            gate_SLD = gate_SLD.to(gy_SLD.dtype)
            through_SLD = silu(gate_SLD).mul_(gy_SLD)
        need = ctx.needs_input_grad
        carry_SND = grads[1].clone()
        found = _scan_back(wide, starts_KSND, through_SLD, carry_SND, need_a=need[2], need_y=need[6])
        g_skip = (through_SLD * wide.u_SLD).sum((0, 1)) if need[5] else None
        g_gate = None
        if need[6] and gate_SLD is not None and found.y_SLD is not None:
            y_SLD = found.y_SLD.addcmul_(wide.u_SLD, given.skip_D)
            g_gate = torch.ops.aten.silu_backward(y_SLD.mul_(gy_SLD), gate_SLD)
        g_u = found.u_SLD.addcmul_(through_SLD, given.skip_D)
        result = (
            g_u,
            found.delta_SLD,
            None if found.a_ND is None else found.a_ND.T,
            found.b_SLN,
            found.c_SLN,
            g_skip,
            g_gate,
        )
        narrow = [g if g is None else g.to(x.dtype) for g, x in zip(result, args, strict=True)]
        return (*narrow, carry_SND if need[7] else None)


def _finish(y_SLD: Tensor, given: ScanInputs) -> Tensor:
    """Add the skip to C h in place, and gate it."""
    y_SLD.addcmul_(given.u_SLD.to(y_SLD.dtype), given.skip_D)
    if given.gate_SLD is not None:
        y_SLD.mul_(silu(given.gate_SLD.to(y_SLD.dtype)))
    return y_SLD.to(given.u_SLD.dtype)


def _step(given: ScanInputs) -> tuple[Tensor, Tensor]:
    """One token, without gradients."""
    wide = torch.promote_types(given.delta_SLD.dtype, torch.float32)
    u_SD, delta_SD, b_SN, c_SN = (x[:, 0].to(wide) for x in (given.u_SLD, given.delta_SLD, given.b_SLN, given.c_SLN))
    h_SND = b_SN[:, :, None] * (delta_SD * u_SD)[:, None]
    if given.state_SND is not None:
        h_SND.addcmul_((delta_SD[:, None] * given.a_DN.T).exp_(), given.state_SND)
    return _finish(c_SN[:, None] @ h_SND, given), h_SND


def reference_selective_scan(given: ScanInputs) -> tuple[Tensor, Tensor]:
    """The same as `selective_scan`, one token after the other, in plain operations."""
    u, delta, a_DN, b, c, skip_D, gate, state_SND = given
    h_SND = u.new_zeros(u.shape[0], *a_DN.T.shape, dtype=delta.dtype) if state_SND is None else state_SND
    outputs = []
    for t in range(u.shape[1]):
        decay_SND = torch.exp(delta[:, t, None] * a_DN.T)
        h_SND = decay_SND * h_SND + b[:, t, :, None] * (delta[:, t] * u[:, t])[:, None]
        y_SD = (c[:, t, :, None] * h_SND).sum(1) + skip_D * u[:, t]
        outputs.append(y_SD if gate is None else y_SD * silu(gate[:, t]))
    return torch.stack(outputs, dim=1).to(u.dtype), h_SND


def selective_scan(given: ScanInputs) -> tuple[Tensor, Tensor]:
    """Return y [S, L, D] in the dtype of u, and the state after the last token [S, N, D] in that of the recurrence.

    Δ, A, skip and state are float32 or wider; u, B, C and gate may be narrower. No state stands for zeros.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        result: tuple[Tensor, Tensor] = _SelectiveScan.apply(*given)  # type: ignore[no-untyped-call]
        return result
    if given.u_SLD.shape[1] == 1:
        return _step(given)
    wide = _Wide(given.u_SLD, given.delta_SLD, given.a_DN, given.b_SLN, given.c_SLN)
    y_SLD, _, last_SND = _scan(wide, given.state_SND)
    return _finish(y_SLD, given), last_SND.clone()
