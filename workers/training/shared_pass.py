"""One pass of the model for the works of many runs: forward, loss of each run, and gradients of each run's parameters.

The pass goes layer by layer and backpropagates layer by layer, so that a caller can do something else in between
without cutting batches into smaller ones. A row's gradient depends on its own sequence alone, and a slot's parameters
on the rows of that slot alone; so a run's loss and gradients are what they would be without its neighbours.

Legend: T rows, D width, N rows that predict a counted token.
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from workers.models.batch import pack
from workers.models.language_model import LanguageModel
from workers.models.layers.context import BatchContext
from workers.models.scoring import target_rows
from workers.training.work import R, T, Work, Working

HEAD_ROWS = {"cpu": 128}
"""Rows whose logits are made in one slice: as dear as a layer of a small model."""
HEAD_ROWS_ACCELERATOR = 4096


Slice = Literal["forward", "head", "backward"]
Slices = Generator[Slice, None, list[float]]


def run_pass(model: LanguageModel, works: Sequence[Work]) -> Slices:
    """Do the works together and return each one's summed negative log-likelihood in nats.

    Yields before every slice but the first what kind of slice is next; slices of a kind cost much the same.
    Either all works ask for gradients or none does. Gradients are added to `.grad` of the slots' parameters, also of
    runs whose likelihood is not finite: whoever reads them must look. A pass that raises may have added some.
    """
    training = works[0].share is not None
    if any((work.share is not None) != training for work in works):
        raise ValueError("works that train and works that are scored need passes of their own")
    order = sorted(range(len(works)), key=lambda number: works[number].slot)
    ordered = [works[number] for number in order]
    sums = yield from _train(model, ordered) if training else _score(model, ordered)
    answers = [math.nan] * len(works)
    for number, nll in zip(order, sums, strict=True):
        answers[number] = nll
    return answers


def alone(model: LanguageModel, steps: Working[T, R]) -> Generator[T | None, None, R]:
    """Run `steps`, doing each of its works in a pass of its own; yields its items, and None after a slice of a pass."""
    answer = None
    with closing(steps):
        while True:
            try:
                item = steps.send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(item, Work):
                (answer,) = yield from _silent(run_pass(model, [item]))
            else:
                yield item


def _silent(slices: Slices) -> Generator[None, None, list[float]]:
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        yield None


class _Targets:
    """The rows that count, what they predict, and whose they are."""

    def __init__(self, model: LanguageModel, works: Sequence[Work]) -> None:
        windows = [(w.token_ids, w.loss_mask) for work in works for w in work.windows]
        of_window = [number for number, work in enumerate(works) for _ in work.windows]
        rows, ids, owners = target_rows(windows)
        self._device = model.device
        self.works, self.owners = works, [of_window[owner] for owner in owners]
        self.slots = [works[owner].slot for owner in self.owners]
        self.rows_N, self.ids_N = self._on_device(rows), self._on_device(ids)
        self.sums = [0.0] * len(works)
        step = HEAD_ROWS.get(model.device.type, HEAD_ROWS_ACCELERATOR)
        self.chunks = [slice(start, start + step) for start in range(0, len(rows), step)]

    def _on_device(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)

    def count(self, chunk: slice, nll_N: Tensor) -> None:
        """Add a chunk's values to their works' sums."""
        for owner, value in zip(self.owners[chunk], nll_N.detach().double().tolist(), strict=True):
            self.sums[owner] += value

    def shares_of(self, chunk: slice, dtype: torch.dtype) -> Tensor:
        """Return what each row's loss is multiplied with [N]."""
        shares = [self.works[owner].share for owner in self.owners[chunk]]
        return torch.tensor(shares, dtype=dtype, device=self._device)


def _start(model: LanguageModel, works: Sequence[Work]) -> tuple[Tensor, BatchContext]:
    windows = [window.token_ids for work in works for window in work.windows]
    slots = [work.slot for work in works for _ in work.windows]
    return model.start(pack(windows, slots, model.device))


def _score(model: LanguageModel, works: Sequence[Work]) -> Slices:
    targets = _Targets(model, works)
    with torch.no_grad():
        x_TD, context = _start(model, works)
    for number in range(len(model.layers)):
        with torch.no_grad():
            x_TD = model.layer(number, x_TD, context)
        yield "forward"
    with torch.no_grad():
        hidden_ND = model.finish(x_TD, context)[targets.rows_N]
    for chunk in targets.chunks:
        yield "head"
        with torch.no_grad():
            nll_N = model.nll(hidden_ND[chunk], targets.ids_N[chunk], targets.slots[chunk])
        targets.count(chunk, nll_N)
    return targets.sums


def _train(model: LanguageModel, works: Sequence[Work]) -> Slices:
    keep = not any(work.recompute for work in works)
    targets = _Targets(model, works)
    x_TD, context = _start(model, works)
    first_TD, stages = x_TD, []
    for number in range(len(model.layers)):
        stages.append(_Stage(partial(model.layer, number, context=context), x_TD, keep=keep))
        x_TD = stages[-1].output
        yield "forward"
    stages.append(_Stage(lambda last_TD: model.finish(last_TD, context)[targets.rows_N], x_TD, keep=True))
    hidden_ND, gradients = stages[-1].output, []
    for chunk in targets.chunks:
        yield "head"
        head = _Stage(partial(_weighted_nll, model, targets, chunk), hidden_ND[chunk], keep=True)
        gradients.append(head.backward(None))
    gradient = None if any(g is None for g in gradients) else torch.cat([g for g in gradients if g is not None])
    while stages and gradient is not None:
        yield "backward"
        gradient = stages.pop().backward(gradient)
    if gradient is not None and first_TD.requires_grad:
        first_TD.backward(gradient)
    return targets.sums


def _weighted_nll(model: LanguageModel, targets: _Targets, chunk: slice, hidden_ND: Tensor) -> Tensor:
    nll_N = model.nll(hidden_ND, targets.ids_N[chunk], targets.slots[chunk])
    targets.count(chunk, nll_N)
    return (nll_N * targets.shares_of(chunk, nll_N.dtype)).sum()


class _Stage:
    """A part of the pass with a graph of its own, which is dropped, or not even made yet, when the part is left."""

    def __init__(self, compute: Callable[[Tensor], Tensor], x: Tensor, *, keep: bool) -> None:
        self._compute = compute
        self._input = x.detach().requires_grad_(x.requires_grad)
        output = compute(self._input)
        self._kept = output if keep else None
        self.output = output.detach().requires_grad_(output.requires_grad)

    def backward(self, gradient: Tensor | None) -> Tensor | None:
        """Add gradients to the parameters used here and return the input's, None where nothing before needs one."""
        output = self._compute(self._input) if self._kept is None else self._kept
        if output.requires_grad:
            output.backward(gradient)
        return self._input.grad
