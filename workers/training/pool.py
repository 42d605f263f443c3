"""Runs side by side on one model: takes each run's works, does those of many runs in one pass, and answers them.

A run is a generator that yields the seconds for which it has nothing to do, or a Work. Everything here goes in slices,
so that a caller can serve requests in between. A run joins and leaves whenever it is between two works. The runs of a
pass come to their next works before another is composed, so that they meet again and keep their turns. What fails in
one run stays there: a pass that raises is done again run by run, and the error goes to the run whose work raises alone.
Knows nothing of jobs, databases or what the runs are for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from traceback import clear_frames

import structlog
import torch
from torch import Tensor

from workers.models.language_model import LanguageModel
from workers.training.costs import SliceCosts
from workers.training.shared_pass import Slices, run_pass
from workers.training.turns import Bid, Turns
from workers.training.work import Work, Working

log = structlog.get_logger()
RETURN_SLICES = 8
"""How many slices a run may take from its answer to its next work, until others' passes do not wait for it."""


@dataclass
class _Run:
    steps: Working[float, bool]
    answer: float | None = None
    work: Work | None = None
    resume_at: float = 0.0


@dataclass
class _Pass:
    slices: Slices
    runs: list[str]
    tokens: int
    set_aside: dict[Tensor, Tensor | None]
    """The parameters that get gradients of the pass, and those that they had before."""
    next: str = "forward"


class RunPool:
    """The runs that are here. `tokens_per_pass` may be lowered and raised between passes."""

    def __init__(
        self,
        model: LanguageModel,
        parameters: Callable[[int], Mapping[str, Tensor]],
        *,
        tokens_per_pass: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`parameters(slot)` are the leaves of the run in a slot."""
        self._model, self._parameters, self._clock = model, parameters, clock
        self.tokens_per_pass = tokens_per_pass
        self.costs = SliceCosts()
        self.pass_tokens = 0
        """Tokens of the pass that the last slice belonged to; 0: it was no part of one."""
        self._runs: dict[str, _Run] = {}
        self._turns = Turns()
        self._pass: _Pass | None = None
        self._apart: list[str] = []
        """Runs whose works were in a pass that raised: each is tried alone."""
        self._returning: dict[str, int] = {}
        """Runs of the last pass that have yet to come to their next work, and how many slices they may take."""
        self._own_next = False

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: str, steps: Working[float, bool], *, tenant: str, weight: float = 1.0) -> None:
        """Let a run join; `steps` returns whether it came to its end."""
        self._runs[run] = _Run(steps)
        self._turns.join(run, tenant, weight)

    @property
    def pause(self) -> float:
        """Seconds until something can be done (0: now)."""
        if self._pass is not None or any(run.work is not None for run in self._runs.values()):
            return 0.0
        now = self._clock()
        return max(0.0, min((run.resume_at for run in self._runs.values()), default=now) - now)

    @property
    def expected_seconds(self) -> float:
        """How long the next slice should take; 0 when nothing is known."""
        if self._returning:
            return self.costs.expected("own", 1)
        if self._pass is None:
            return self.costs.expected("forward", self.tokens_per_pass)
        return self.costs.expected(self._pass.next, self._pass.tokens)

    def step(self) -> dict[str, bool]:
        """Do one slice. Return the runs that left, and whether they came to their end."""
        self.pass_tokens = 0
        if self._returning:
            return self._advance(next(iter(self._returning)))
        ready = self._ready()
        passable = self._pass is not None or any(run.work is not None for run in self._runs.values())
        if ready is not None and (self._own_next or not passable):
            self._own_next = False
            return self._advance(ready)
        if not passable:
            return {}
        self._own_next = True
        return self._step_pass()

    def close(self) -> list[str]:
        """Stop all runs where they are, and return them."""
        self._drop_pass()
        names = list(self._runs)
        for name in names:
            self._remove(name).steps.close()
        return names

    def _ready(self) -> str | None:
        """Return the run that has waited longest to do something of its own."""
        now = self._clock()
        return next((name for name, run in self._runs.items() if run.work is None and run.resume_at <= now), None)

    def _advance(self, name: str, error: Exception | None = None) -> dict[str, bool]:
        run = self._runs[name]
        slices = self._returning.pop(name, 0)
        answer, run.answer, run.work = run.answer, None, None
        try:
            with self.costs.timing("own", 1, self._clock):
                item = run.steps.send(answer) if error is None else run.steps.throw(error)
        except StopIteration as stop:
            self._remove(name)
            return {name: bool(stop.value)}
        except Exception:
            log.exception("a run was dropped", run=name)
            self._remove(name)
            return {name: False}
        if isinstance(item, Work):
            run.work = item
        else:
            run.resume_at = self._clock() + item
            if slices > 1 and not item:
                self._returning[name] = slices - 1
        self._runs[name] = self._runs.pop(name)  # Behind the others: they take turns.
        return {}

    def _remove(self, name: str) -> _Run:
        self._turns.leave(name)
        self._returning.pop(name, None)
        if name in self._apart:
            self._apart.remove(name)
        return self._runs.pop(name)

    def _step_pass(self) -> dict[str, bool]:
        current = self._pass = self._pass or self._compose()
        self.pass_tokens = current.tokens
        try:
            with self.costs.timing(current.next, current.tokens, self._clock):
                current.next = next(current.slices)
        except StopIteration as stop:
            self._finish(current, stop.value)
        except Exception as error:
            clear_frames(error.__traceback__)  # They hold the pass's activations.
            self._drop_pass()
            if len(current.runs) == 1:
                return self._advance(current.runs[0], error)
            log.warning("a shared pass failed, its runs go on one by one", runs=current.runs, error=str(error))
            self._apart += current.runs
        return {}

    def _compose(self) -> _Pass:
        works = {name: run.work for name, run in self._runs.items() if run.work is not None}
        if self._apart:
            names = [self._apart.pop(0)]
        else:
            bids = [Bid(n, w.tokens, "score" if w.share is None else "train") for n, w in works.items()]
            names = [bid.run for bid in self._turns.choose(bids, self.tokens_per_pass)]
        chosen = [works[name] for name in names]
        tokens = sum(work.tokens for work in chosen)
        return _Pass(run_pass(self._model, chosen), names, tokens, self._set_aside(chosen))

    def _set_aside(self, works: list[Work]) -> dict[Tensor, Tensor | None]:
        """Take the gradients so far away from the parameters, so that a pass that raises leaves none of its own."""
        held: dict[Tensor, Tensor | None] = {}
        for work in works:
            for parameter in self._parameters(work.slot).values() if work.share is not None else ():
                held[parameter], parameter.grad = parameter.grad, None
        return held

    def _finish(self, done: _Pass, answers: list[float]) -> None:
        for parameter, before in done.set_aside.items():
            if before is not None:
                parameter.grad = before if parameter.grad is None else parameter.grad.add_(before)
        for name, answer in zip(done.runs, answers, strict=True):
            self._runs[name].answer = answer
        self._returning = dict.fromkeys(done.runs, RETURN_SLICES)
        self._pass = None

    def _drop_pass(self) -> None:
        dropped, self._pass = self._pass, None
        if dropped is None:
            return
        dropped.slices.close()
        for parameter, before in dropped.set_aside.items():
            parameter.grad = before
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
