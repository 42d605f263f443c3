"""One training run, as the works it asks for and the events that come of them.

Knows a model, an adapter slot, tokens and a configuration; nothing of jobs, databases or queues, nor of other runs: who
does its works may do them together with others'. A run ends in one of three ways: Finished with an adapter, Finished
rolled back (the gate refused it, or it diverged while the gate was on), or a TrainingError. It has diverged when three
optimizer steps in a row were not finite and going back to the last good state at half the learning rate, three times,
did not help; or when an epoch had no finite step at all.
"""

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from app.contracts.training import JobConfig, StepMetrics, TrainingResult
from app.text.tokenize import TokenizedExample
from workers.lora.adapter import AdapterWeights
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.training.adamw import StepOutcome, adamw_step
from workers.training.clock import RunClock
from workers.training.dataset import Window, build_dataset, count_tokens, flatten, require_known_tokens
from workers.training.errors import TrainingError
from workers.training.evaluation import perplexity, regression, split_for_gate
from workers.training.events import EpochDone, Finished, RunEvent, SetBack, StepDone
from workers.training.gradient_check import (
    DUE_AFTER_STEPS,
    must_have_gradients,
    require_gradients,
    still_without,
)
from workers.training.identity import run_id
from workers.training.optimizer import optimizer_of
from workers.training.packing import StepPlan, plan_epoch, split_by_tokens, steps_per_epoch
from workers.training.probe import is_fresh, require_effect
from workers.training.schedule import learning_rate
from workers.training.sharding import ShardGroup, optimizer_bytes
from workers.training.shared_pass import alone
from workers.training.snapshot import Snapshot, decode, encode
from workers.training.state import Progress, RunState, go_back, good_copy
from workers.training.work import Work, Working

MAX_SKIPPED_IN_A_ROW = 3
MAX_SET_BACK = 3
GOOD_EVERY_STEPS = 10
"""So many applied steps lie between two copies of the state to go back to."""
TOKENS_PER_STEP = {"cpu": 1024}
TOKENS_PER_STEP_ACCELERATOR = 8192


def default_tokens_per_step(device: str) -> int:
    """Return how many tokens one pass takes on a kind of device."""
    return TOKENS_PER_STEP.get(device, TOKENS_PER_STEP_ACCELERATOR)


class TrainingRun:
    """Trains the adapter in `slot` of `bank`, starting from `start`, which it loads there: all that `start` holds.

    `works()` may be run once; no work has more than `tokens_per_step` tokens unless a single window has.
    `restore()` continues from a snapshot of the same run, in this or another process; on a CPU with the same number of
    threads the end is bit-identical to the unbroken run's where its works are done alone. Raises TrainingError
    `no_trainable_tokens` when nothing can be learnt from `train`, `no_retention_tokens` when nothing in `retention` can
    tell whether the model forgets, `unknown_token` for one that the model does not have. In a `group` every trainer
    makes the same run and takes every step together with the others: each computes the gradients of its share of every
    micro-batch and steps its share of the parameters.
    """

    def __init__(  # noqa: PLR0917 (all eight are what a run is made of)
        self,
        model: LanguageModel,
        bank: AdapterBank,
        slot: int,
        config: JobConfig,
        start: AdapterWeights,
        train: Sequence[TokenizedExample],
        validation: Sequence[TokenizedExample] | None = None,
        retention: Sequence[TokenizedExample] | None = None,
        *,
        group: ShardGroup | None = None,
        tokens_per_step: int | None = None,
    ) -> None:
        self._model, self._bank, self._slot, self._config, self._start = model, bank, slot, config, start
        settings = config.training
        usable = build_dataset(train, settings.seq_len)
        self.dropped_examples = usable.dropped_examples
        if not usable.examples:
            raise TrainingError("no_trainable_tokens", "no example has a token to learn from")
        given = None if validation is None else build_dataset(validation, settings.seq_len)
        self._data = split_for_gate(usable, given, seed=config.seed, carve=config.rollback.enabled)
        self._judging = config.rollback.enabled or self._data.source == "validation_file"
        self._retention = flatten(build_dataset(retention or (), settings.seq_len).examples)
        if retention is not None and not self._retention:
            raise TrainingError("no_retention_tokens", "no example of the retention file has a token to measure")
        require_known_tokens((*self._data.train, *self._data.judge, *self._retention), model.config.vocab_size)
        steps = steps_per_epoch(len(self._data.train), settings.batch_size, settings.gradient_accumulation)
        self._total_steps = steps * settings.epochs
        self._total_tokens = count_tokens(self._data.train) * settings.epochs
        self._work_tokens = tokens_per_step or default_tokens_per_step(model.device.type)
        self._group = group
        self._optimizer = optimizer_of(config, model, start, group)
        numerics = f"{model.dtype} {self._work_tokens}" + (f" {group.shard}" if group else "")
        self._run_id = run_id(config, start, (self._data.train, self._data.judge, self._retention), numerics)
        self._clock = RunClock()
        self._measured_from = (0.0, 0)
        self._start_over()

    def _start_over(self) -> None:
        """Put weights, moments, step, data order and counters where they were before the first step."""
        self._bank.load(self._slot, self._start, trainable=True)
        parameters: dict[str, Tensor] = dict(self._bank.parameters(self._slot))
        progress = Progress(without_gradient=must_have_gradients(parameters))
        self.state = RunState(parameters, {}, good_copy(parameters, {}), progress)

    def snapshot(self) -> Snapshot:
        """Return the state after the step just reported; valid right after a StepDone."""
        self.state.progress.seconds = self._clock.elapsed()
        return encode(self.state, self._run_id)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue after the step `snapshot` was taken at. Raises SnapshotError and then leaves the run as it was."""
        restored = decode(snapshot, self._run_id, self.state.weights)
        for name, weight in restored.weights.items():
            self.state.weights[name].data.copy_(weight)
        self.state = RunState(self.state.weights, restored.moments, restored.good, restored.progress)
        self._clock = RunClock(restored.progress.seconds)

    def slices(self) -> Iterator[RunEvent | None]:
        """Do the run alone, a layer or less per item; the last item is Finished. Raises as `works` does."""
        return alone(self._model, self.works())

    def works(self) -> Working[RunEvent | None, None]:
        """Yield works, to be answered with their likelihood, and in between events; the last item is Finished.

        Gradients must have been added to the slot's parameters before a work is answered, and nothing else may touch
        them. Raises TrainingError `no_effect`, `zero_gradient` or, with the gate off, `diverged`.
        """
        self._clock.start()
        settings, progress = self._config.training, self.state.progress
        if progress.step == 0 and self._config.mode != "full" and is_fresh(self.state.weights):
            yield from require_effect(self._model, self._slot, self.state.weights, self._bank.heard)
        if self._judging and progress.perplexity_before is None:
            progress.perplexity_before = yield from self._measure_start(self._data.judge)
        if self._retention and progress.retention_before is None:
            progress.retention_before = yield from self._measure_start(self._retention)
        self._measured_from = (self._clock.elapsed(), progress.tokens)
        while progress.epoch < settings.epochs:
            plan = plan_epoch(
                self._data.train,
                batch_size=settings.batch_size,
                gradient_accumulation=settings.gradient_accumulation,
                seed=self._config.seed,
                epoch=progress.epoch,
            )
            while True:
                if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW and self._may_go_back(len(plan)):
                    yield self._go_back()
                if progress.step_in_epoch == len(plan) or progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
                    break
                yield from self._step(plan[progress.step_in_epoch])
            if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW or progress.epoch_targets == 0:
                yield self._diverged()
                return
            yield self._end_epoch()
        require_gradients(progress.without_gradient, progress.telling_steps)
        yield from self._judge()

    def _may_go_back(self, steps_in_epoch: int) -> bool:
        """Whether another try is left, and a step to try it at before the run or an epoch without a good step ends."""
        progress = self.state.progress
        left = progress.step < self._total_steps
        return (
            progress.set_back < MAX_SET_BACK
            and left
            and bool(progress.epoch_targets or progress.step_in_epoch < steps_in_epoch)
        )

    def _go_back(self) -> SetBack:
        go_back(self.state)
        progress = self.state.progress
        progress.set_back += 1
        progress.skipped_in_a_row = 0
        progress.without_gradient, progress.telling_steps = (
            must_have_gradients(self.state.weights),
            0,
        )  # B may be zero once more
        return SetBack(progress.step, progress.set_back, 0.5**progress.set_back)

    def _step(self, plan: StepPlan) -> Working[RunEvent | None, None]:
        """One optimizer step: the loss is the mean over the step's counted positions, whatever the micro-batches."""
        mine = slice(self._group.shard.index, None, self._group.shard.count) if self._group else slice(None)
        nll = 0.0
        for part in (p for batch in plan.micro_batches for p in split_by_tokens(batch[mine], self._work_tokens)):
            nll += yield self._work(part, 1 / plan.targets)
            if not math.isfinite(nll):
                break
        nll = self._group.total(nll) if self._group else nll
        rate = learning_rate(
            self.state.progress.step + 1,
            total_steps=self._total_steps,
            warmup_steps=self._config.training.warmup_steps,
            peak=self._config.training.learning_rate * 0.5**self.state.progress.set_back,
            schedule=self._config.training.schedule,
        )
        outcome = self._apply(plan, rate) if math.isfinite(nll) else StepOutcome(math.nan, 0.0, applied=False)
        for parameter in self.state.weights.values():
            parameter.grad = None
        self._count(plan, nll, outcome)
        yield StepDone(self._metrics(nll / plan.targets, rate, outcome))

    def _work(self, windows: Sequence[Window], share: float | None = None) -> Work:
        recompute = self._config.training.activation_checkpointing
        return Work(self._slot, tuple(windows), share, recompute)

    def _apply(self, plan: StepPlan, rate: float) -> StepOutcome:
        state, optimizer = self.state, self._optimizer
        gradients = {name: p.grad for name, p in state.weights.items() if p.grad is not None}
        if self._group:
            gradients = self._group.sum_gradients(state.weights, gradients)
        progress = state.progress
        applied = progress.step - progress.skipped
        before = good_copy(state.weights, state.moments) if applied and applied % GOOD_EVERY_STEPS == 0 else state.good
        outcome = adamw_step(
            state.weights,
            gradients,
            state.moments,
            learning_rate=rate,
            config=optimizer.config,
            bound=optimizer.bound,
            exchange=optimizer.exchange,
        )
        if outcome.applied:
            state.good = before
        if outcome.applied and plan.attends and progress.without_gradient:
            progress.without_gradient = still_without(progress.without_gradient, gradients)
            progress.telling_steps += 1
            if progress.telling_steps == DUE_AFTER_STEPS:
                require_gradients(progress.without_gradient, progress.telling_steps)
        return outcome

    def _count(self, plan: StepPlan, nll: float, outcome: StepOutcome) -> None:
        progress = self.state.progress
        progress.step += 1
        progress.step_in_epoch += 1
        progress.tokens += plan.tokens
        if outcome.applied:
            progress.skipped_in_a_row = 0
            progress.epoch_nll += nll
            progress.epoch_targets += plan.targets
            progress.grad_norm = outcome.grad_norm
        else:
            progress.skipped += 1
            progress.skipped_in_a_row += 1

    def _metrics(self, loss: float, rate: float, outcome: StepOutcome) -> StepMetrics:
        progress = self.state.progress
        seconds, tokens = self._clock.elapsed() - self._measured_from[0], progress.tokens - self._measured_from[1]
        speed = tokens / seconds if seconds > 0 else 0.0
        return StepMetrics(
            step=progress.step,
            total_steps=self._total_steps,
            epoch=progress.epoch + 1,
            loss=loss if math.isfinite(loss) else None,
            grad_norm=outcome.grad_norm if math.isfinite(outcome.grad_norm) else None,
            learning_rate=rate,
            clamped=outcome.clamped,
            scaled=outcome.scaled,
            skipped=not outcome.applied,
            tokens=progress.tokens,
            tokens_per_second=speed,
            eta_seconds=(self._total_tokens - progress.tokens) / speed if speed else 0.0,
        )

    def _end_epoch(self) -> EpochDone:
        progress = self.state.progress
        loss = progress.epoch_nll / progress.epoch_targets
        progress.losses = [*progress.losses, loss]
        progress.epoch += 1
        progress.step_in_epoch, progress.epoch_nll, progress.epoch_targets = 0, 0.0, 0
        return EpochDone(progress.epoch, loss, progress.step, self._bank.weights(self._slot))

    def _measure_start(self, windows: Sequence[Window]) -> Working[RunEvent | None, float]:
        before = yield from self._evaluate(windows)
        if not math.isfinite(before):
            raise TrainingError("start_not_finite", "the start weights give no finite perplexity to judge against")
        return before

    def _evaluate(self, windows: Sequence[Window]) -> Working[RunEvent | None, float]:
        """Return the perplexity of `windows` under the weights in the slot."""
        nll = 0.0
        for part in split_by_tokens(windows, self._work_tokens):
            nll += yield self._work(part)
        return perplexity(nll, sum(w.targets for w in windows))

    def _judge(self) -> Working[RunEvent | None, None]:
        progress, rules = self.state.progress, self._config.rollback
        after, retained, reasons = None, None, []
        if progress.perplexity_before is not None:
            after = yield from self._evaluate(self._data.judge)
            reasons.append(regression(progress.perplexity_before, after, rules.tolerance, self._data.source))
        if progress.retention_before is not None:
            retained = yield from self._evaluate(self._retention)
            tolerance = rules.tolerance if rules.retention_tolerance is None else rules.retention_tolerance
            reasons.append(regression(progress.retention_before, retained, tolerance, "retention_file"))
        against = "; ".join(reason for reason in reasons if reason) if rules.enabled else ""
        yield self._finish(after, retained, against or None)

    def _diverged(self) -> Finished:
        progress = self.state.progress
        reason = (
            f"training diverged: the loss or its gradient was not finite at {progress.skipped_in_a_row} "
            f"optimizer step{'s' if progress.skipped_in_a_row > 1 else ''} in a row, up to step {progress.step}"
        )
        if progress.set_back:
            times = f"{progress.set_back} time{'s' if progress.set_back > 1 else ''}"
            reason += f", although it went back to its last good state {times}, at half the learning rate each"
        if not self._config.rollback.enabled:
            raise TrainingError("diverged", reason)
        return self._finish(None, None, reason)

    def _finish(self, after: float | None, retained: float | None, reason: str | None) -> Finished:
        progress = self.state.progress
        result = TrainingResult(
            losses=progress.losses,
            grad_norm=progress.grad_norm,
            perplexity_before=progress.perplexity_before,
            perplexity_after=after if after is not None and math.isfinite(after) else None,
            gate_data=self._data.source,
            retention_before=progress.retention_before,
            retention_after=retained if retained is not None and math.isfinite(retained) else None,
            rolled_back=reason is not None,
            rollback_reason=reason,
            steps=progress.step,
            trained_tokens=progress.tokens,
            duration_ms=round(self._clock.elapsed() * 1000),
            trainable_parameters=sum(weight.numel() for weight in self.state.weights.values()),
            optimizer_state_bytes=optimizer_bytes(self.state.moments),
        )
        if reason is not None:
            self._start_over()
            return Finished(result, None)
        return Finished(result, self._bank.weights(self._slot))
