"""The scan of Mamba-2 as matrix products (Dao and Gu 2024, arXiv:2405.21060, state-space duality).

h_t = exp(Δ_t a) h_{t−1} + Δ_t x_t ⊗ B_t and y_t = h_t C_t, with one decay for each head. Inside a chunk of time, y is a
masked product of C Bᵀ with x; between chunks, states are handed on. Knows tensors only; all is float32 or wider.

Sums of log decays are taken inside a chunk only and masked before the exponential, so that nothing overflows, and
gradients of decays are sums of products, never differences of large sums. The forward keeps the state at each chunk's
start; all else is computed again in the backward.

Legend: S sequences, L tokens of one, Q tokens of a chunk (I those that read, J those that are read), H heads,
G groups that share B and C, M heads of a group, P head width, N state width, K chunks, X = M · P.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

CHUNK = 64


class SsdInputs(NamedTuple):
    """`a_H` is negative, `delta_SLH` positive; `skip_H` adds skip · x to y."""

    x_SLHP: Tensor
    delta_SLH: Tensor
    a_H: Tensor
    b_SLGN: Tensor
    c_SLGN: Tensor
    skip_H: Tensor
    state_SHPN: Tensor | None


class _Chunk(NamedTuple):
    """What one chunk's forward and backward share. Log decays `log_SGMQ` are summed from the chunk's start."""

    dx_SGMQP: Tensor
    b_SGQN: Tensor
    c_SGQN: Tensor
    log_SGMQ: Tensor
    decay_SGMIJ: Tensor
    mix_SGMIJ: Tensor

    def whole(self) -> Tensor:
        """Return the decay over the chunk [S, G, M, 1, 1]."""
        return self.log_SGMQ[..., -1:, None].exp()

    def to_end(self) -> Tensor:
        """Return the decay from each token to the chunk's end [S, G, M, Q, 1]."""
        return (self.log_SGMQ[..., -1:] - self.log_SGMQ).exp_()[..., None]

    def from_start(self) -> Tensor:
        """Return the decay from the chunk's start to each token [S, G, M, Q, 1]."""
        return self.log_SGMQ.exp()[..., None]


class _Wide:
    """A call's tensors in the dtype of the recurrence, with heads split in groups."""

    def __init__(self, x: Tensor, delta: Tensor, a_H: Tensor, b: Tensor, c: Tensor) -> None:
        wide = torch.promote_types(delta.dtype, torch.float32)
        groups = b.shape[2]
        self.sequences, self.length, self.heads, self.width = x.shape
        self.x_SLGMP = x.to(wide).unflatten(2, (groups, -1))
        self.delta_SLGM = delta.to(wide).unflatten(2, (groups, -1))
        self.a_GM1 = a_H.to(wide).view(groups, -1, 1)
        self.b_SLGN, self.c_SLGN = b.to(wide), c.to(wide)

    def spans(self) -> list[slice]:
        """Tokens of each chunk."""
        return [slice(t, min(t + CHUNK, self.length)) for t in range(0, self.length, CHUNK)]

    def chunk(self, span: slice) -> _Chunk:
        """Return a chunk's inputs by group, and how its tokens mix."""
        delta_SGMQ = self.delta_SLGM[:, span].permute(0, 2, 3, 1)
        log_SGMQ = (delta_SGMQ * self.a_GM1).cumsum(-1)
        b_SGQN, c_SGQN = (x[:, span].transpose(1, 2) for x in (self.b_SLGN, self.c_SLGN))
        count = log_SGMQ.shape[-1]
        future_IJ = torch.ones(count, count, dtype=torch.bool, device=log_SGMQ.device).triu_(1)
        decay_SGMIJ = (log_SGMQ[..., :, None] - log_SGMQ[..., None, :]).masked_fill_(future_IJ, float("-inf")).exp_()
        mix_SGMIJ = (c_SGQN @ b_SGQN.mT)[:, :, None] * decay_SGMIJ
        return _Chunk(self.heads_first(span) * delta_SGMQ[..., None], b_SGQN, c_SGQN, log_SGMQ, decay_SGMIJ, mix_SGMIJ)

    def heads_first(self, span: slice) -> Tensor:
        """Return x of a chunk as [S, G, M, Q, P]."""
        x_SGMQP: Tensor = self.x_SLGMP[:, span].permute(0, 2, 3, 1, 4)
        return x_SGMQP

    def by_group(self, state_SHPN: Tensor) -> Tensor:
        """Return a state as [S, G, M · P, N]."""
        return state_SHPN.reshape(self.sequences, self.b_SLGN.shape[2], -1, state_SHPN.shape[-1])

    def by_head(self, state_SGXN: Tensor) -> Tensor:
        """Return a state [S, G, M · P, N] as [S, G, M, P, N]."""
        state_SGMPN: Tensor = state_SGXN.unflatten(2, (-1, self.width))
        return state_SGMPN


def _joined(x_SGMQP: Tensor) -> Tensor:
    """Return [S, G, Q, M · P]: one matrix for each group."""
    return x_SGMQP.transpose(2, 3).flatten(3)


def _split(x_SGQX: Tensor, width: int) -> Tensor:
    """Return [S, G, M, Q, P] of [S, G, Q, M · P]."""
    x_SGMQP: Tensor = x_SGQX.unflatten(3, (-1, width)).transpose(2, 3)
    return x_SGMQP


def _read_state(wide: _Wide, chunk: _Chunk, state_SGXN: Tensor) -> Tensor:
    """Return what each token reads of the state at the chunk's start [S, G, M, Q, P]."""
    return _split(chunk.c_SGQN @ state_SGXN.mT, wide.width) * chunk.from_start()


def _next_state(wide: _Wide, chunk: _Chunk, state_SGXN: Tensor) -> Tensor:
    added_SGXN = _joined(chunk.dx_SGMQP * chunk.to_end()).mT @ chunk.b_SGQN
    return torch.addcmul(added_SGXN.unflatten(2, (-1, wide.width)), wide.by_head(state_SGXN), chunk.whole()).flatten(
        2, 3
    )


def _scan(wide: _Wide, skip_H: Tensor, state_SHPN: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """Return y [S, L, H, P], and the states at each chunk's start and after the last [S, G, M · P, N]."""
    first_SHPN = state_SHPN
    if first_SHPN is None:
        shape = (wide.sequences, wide.heads, wide.width, wide.b_SLGN.shape[-1])
        first_SHPN = wide.b_SLGN.new_zeros(shape)
    states = [wide.by_group(first_SHPN.to(wide.b_SLGN.dtype))]
    y_SLGMP = torch.mul(wide.x_SLGMP, skip_H.view(*wide.a_GM1.shape))
    for span in wide.spans():
        chunk = wide.chunk(span)
        y_SGMQP = y_SLGMP[:, span].permute(0, 2, 3, 1, 4)
        y_SGMQP.add_(chunk.mix_SGMIJ @ chunk.dx_SGMQP).add_(_read_state(wide, chunk, states[-1]))
        states.append(_next_state(wide, chunk, states[-1]))
    return y_SLGMP.flatten(2, 3), states


class _ChunkGradients(NamedTuple):
    """Of Δ x, of Δ a, of B and C, and of the state at the chunk's start."""

    dx_SGMQP: Tensor
    log_SGMQ: Tensor
    b_SGQN: Tensor
    c_SGQN: Tensor
    state_SGXN: Tensor


def _log_gradient(mixed_SGMIJ: Tensor, read_SGMQ: Tensor, kept_SGMQ: Tensor, whole_SGM1: Tensor) -> Tensor:
    """Return the gradient of each token's log decay [S, G, M, Q].

    A token's decay stands between every earlier token and itself or a later one (`mixed`, by reader and read), between
    the chunk's start and readers from it on, and between earlier tokens and the chunk's end.
    """
    count = mixed_SGMIJ.shape[-1]
    upto_II = torch.ones(count, count, dtype=mixed_SGMIJ.dtype, device=mixed_SGMIJ.device).triu_()
    crossing_SGMQ = (upto_II @ mixed_SGMIJ).tril(-1).sum(-1)
    return crossing_SGMQ + read_SGMQ @ upto_II.mT + kept_SGMQ @ upto_II.triu(1) + whole_SGM1


def _chunk_gradients(
    wide: _Wide, chunk: _Chunk, state_SGXN: Tensor, gy_SGMQP: Tensor, g_end_SGXN: Tensor
) -> _ChunkGradients:
    width = wide.width
    g_mix_SGMIJ = gy_SGMQP @ chunk.dx_SGMQP.mT
    g_pairs_SGIJ = (g_mix_SGMIJ * chunk.decay_SGMIJ).sum(2)
    from_end_SGMQP = _split(chunk.b_SGQN @ g_end_SGXN.mT, width) * chunk.to_end()
    g_read_SGQX = _joined(gy_SGMQP * chunk.from_start())
    g_state_SGXN = torch.addcmul(
        (g_read_SGQX.mT @ chunk.c_SGQN).unflatten(2, (-1, width)), wide.by_head(g_end_SGXN), chunk.whole()
    ).flatten(2, 3)
    whole_SGM = (wide.by_head(g_end_SGXN) * wide.by_head(state_SGXN)).sum((-1, -2)) * chunk.whole()[..., 0, 0]
    return _ChunkGradients(
        (chunk.mix_SGMIJ.mT @ gy_SGMQP).add_(from_end_SGMQP),
        _log_gradient(
            g_mix_SGMIJ.mul_(chunk.mix_SGMIJ),
            (gy_SGMQP * _read_state(wide, chunk, state_SGXN)).sum(-1),
            (chunk.dx_SGMQP * from_end_SGMQP).sum(-1),
            whole_SGM[..., None],
        ),
        g_pairs_SGIJ.mT @ chunk.c_SGQN + _joined(chunk.dx_SGMQP * chunk.to_end()) @ g_end_SGXN,
        g_pairs_SGIJ @ chunk.b_SGQN + g_read_SGQX @ state_SGXN,
        g_state_SGXN,
    )


class _Ssd(Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        given = SsdInputs(*args)
        wide = _Wide(*given[:5])
        y_SLHP, states = _scan(wide, given.skip_H, given.state_SHPN)
        ctx.save_for_backward(*args[:-1], *states[:-1])
        last_SHPN = states[-1].view(wide.sequences, wide.heads, wide.width, -1)
        return y_SLHP.to(given.x_SLHP.dtype), last_SHPN

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, delta, a_H, b, c, skip_H, *states = ctx.saved_tensors
        wide = _Wide(x, delta, a_H, b, c)
        gy_SLGMP = grads[0].to(wide.b_SLGN.dtype).view(wide.x_SLGMP.shape)
        g_state_SGXN = wide.by_group(grads[1])
        g_x_SLGMP = gy_SLGMP * skip_H.view(*wide.a_GM1.shape)
        g_delta_SLGM = torch.empty_like(wide.delta_SLGM)
        g_b_SLGN, g_c_SLGN, g_a_GM1 = (torch.zeros_like(t) for t in (wide.b_SLGN, wide.c_SLGN, wide.a_GM1))
        for span, state_SGXN in reversed(list(zip(wide.spans(), states, strict=True))):
            delta_SGMQ = wide.delta_SLGM[:, span].permute(0, 2, 3, 1)
            gy_SGMQP = gy_SLGMP[:, span].permute(0, 2, 3, 1, 4)
            found = _chunk_gradients(wide, wide.chunk(span), state_SGXN, gy_SGMQP, g_state_SGXN)
            through_SGMQ = (found.dx_SGMQP * wide.heads_first(span)).sum(-1)
            g_delta_SLGM[:, span] = torch.addcmul(through_SGMQ, found.log_SGMQ, wide.a_GM1).permute(0, 3, 1, 2)
            g_x_SLGMP[:, span].permute(0, 2, 3, 1, 4).addcmul_(found.dx_SGMQP, delta_SGMQ[..., None])
            g_a_GM1 += (found.log_SGMQ * delta_SGMQ).sum((0, -1))[..., None]
            g_b_SLGN[:, span], g_c_SLGN[:, span] = found.b_SGQN.transpose(1, 2), found.c_SGQN.transpose(1, 2)
            g_state_SGXN = found.state_SGXN
        g_skip_H = (gy_SLGMP * wide.x_SLGMP).sum((0, 1, 4)).flatten() if ctx.needs_input_grad[5] else None
        return (
            g_x_SLGMP.flatten(2, 3).to(x.dtype),
            g_delta_SLGM.flatten(2).to(delta.dtype),
            g_a_GM1.flatten().to(a_H.dtype),
            g_b_SLGN.to(b.dtype),
            g_c_SLGN.to(c.dtype),
            g_skip_H,
            g_state_SGXN.reshape(grads[1].shape) if ctx.needs_input_grad[6] else None,
        )


def _step(given: SsdInputs, *, overwrite_state: bool) -> tuple[Tensor, Tensor]:
    """One token, without gradients. The state is most of what is read and written here."""
    wide = torch.promote_types(given.delta_SLH.dtype, torch.float32)
    x_SHP, delta_SH, b_SGN, c_SGN = (
        t[:, 0].to(wide) for t in (given.x_SLHP, given.delta_SLH, given.b_SLGN, given.c_SLGN)
    )
    shared = x_SHP.shape[1] // b_SGN.shape[1]
    if shared > 1:
        b_SGN, c_SGN = (t.repeat_interleave(shared, dim=1) for t in (b_SGN, c_SGN))
    dx_SHP1, b_SH1N = (x_SHP * delta_SH[..., None])[..., None], b_SGN[:, :, None]
    if given.state_SHPN is None:
        h_SHPN = dx_SHP1 * b_SH1N
    else:
        decay_SH11 = (delta_SH * given.a_H).exp_()[..., None, None]
        kept_SHPN = given.state_SHPN.to(wide)
        h_SHPN = (kept_SHPN.mul_(decay_SH11) if overwrite_state else kept_SHPN * decay_SH11).addcmul_(dx_SHP1, b_SH1N)
    y_SHP = (h_SHPN @ c_SGN[..., None])[..., 0].addcmul_(x_SHP, given.skip_H[:, None])
    return y_SHP[:, None].to(given.x_SLHP.dtype), h_SHPN


def reference_ssd(given: SsdInputs) -> tuple[Tensor, Tensor]:
    """The same as `ssd`, one token after the other, in plain operations."""
    x, delta, a_H, b, c, skip_H, state_SHPN = given
    shared = x.shape[2] // b.shape[2]
    b, c = b.repeat_interleave(shared, dim=2), c.repeat_interleave(shared, dim=2)
    h_SHPN = (
        x.new_zeros(*x.shape[:1], *x.shape[2:], b.shape[-1], dtype=delta.dtype) if state_SHPN is None else state_SHPN
    )
    outputs = []
    for t in range(x.shape[1]):
        decay_SH11 = torch.exp(delta[:, t] * a_H)[..., None, None]
        h_SHPN = decay_SH11 * h_SHPN + (delta[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        outputs.append((h_SHPN * c[:, t, :, None]).sum(-1) + skip_H[:, None] * x[:, t])
    return torch.stack(outputs, dim=1).to(x.dtype), h_SHPN


def ssd(given: SsdInputs, *, overwrite_state: bool = False) -> tuple[Tensor, Tensor]:
    """Return y [S, L, H, P] in the dtype of x, and the state after the last token [S, H, P, N].

    Δ, a, skip and state are float32 or wider; x, B and C may be narrower. No state stands for zeros. With
    `overwrite_state` the state after a single token may be written over the one before it.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        result: tuple[Tensor, Tensor] = _Ssd.apply(*given)  # type: ignore[no-untyped-call]
        return result
    if given.x_SLHP.shape[1] == 1:
        return _step(given, overwrite_state=overwrite_state)
    wide = _Wide(*given[:5])
    y_SLHP, states = _scan(wide, given.skip_H, given.state_SHPN)
    return y_SLHP.to(given.x_SLHP.dtype), states[-1].view(wide.sequences, wide.heads, wide.width, -1)
