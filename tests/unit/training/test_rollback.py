"""What must not be published: regressions and divergence leave everything exactly as it was."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from app.text.tokenize import TokenizedExample
from tests.unit.training.tiny import config_of, examples_of, run_of, same_adapter, start_of
from workers.models.scoring import sequence_nll
from workers.training.errors import TrainingError
from workers.training.events import EpochDone, Finished, RunEvent, SetBack, StepDone
from workers.training.state import Progress
from workers.training.trainer import TrainingRun

WILD = {"learning_rate": 30.0, "max_delta": 0.0, "max_grad_norm": 0.0, "warmup_steps": 0}


def _finish(run: TrainingRun) -> tuple[list[StepDone], Finished]:
    events: list[RunEvent] = [e for e in run.slices() if e is not None]
    assert isinstance(events[-1], Finished)
    return [e for e in events if isinstance(e, StepDone)], events[-1]


def _spoil(run: TrainingRun, *, steps: set[int], how: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let `how` alter the gradient of one factor at the given optimizer steps (from 1)."""
    name = "model.layers.1.mlp.down_proj.lora_B"

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        return how(gradient) if run.state.progress.step + 1 in steps else gradient

    run.state.weights[name].register_hook(hook)


def test_a_regression_restores_weights_moments_step_and_random_state_bit_for_bit() -> None:
    _, trained = _finish(run_of(config_of(epochs=5), examples_of(8))[0])
    run, _, bank = run_of(config_of(**WILD), examples_of(12), start=trained.adapter)
    random_state = torch.get_rng_state()
    start = bank.weights(0)
    steps, finished = _finish(run)
    assert len(steps) == 8
    assert finished.adapter is None
    result = finished.result
    assert result.rolled_back
    assert result.perplexity_before is not None
    assert result.perplexity_after is not None
    assert result.perplexity_after > 1.25 * result.perplexity_before
    assert result.rollback_reason == (
        f"held-out perplexity rose from {result.perplexity_before:.4g} to {result.perplexity_after:.4g}, "
        "more than the 1.25 times allowed"
    )
    assert same_adapter(bank.weights(0), start)
    assert run.state.moments == {}
    assert run.state.progress == Progress(without_gradient=list(bank.parameters(0)))
    assert torch.equal(torch.get_rng_state(), random_state)


def test_the_tolerance_decides() -> None:
    _, strict = _finish(run_of(config_of(epochs=1, tolerance=0.01), examples_of(6))[0])
    assert strict.result.rolled_back
    assert "only fell from" in (strict.result.rollback_reason or "")
    _, lenient = _finish(run_of(config_of(epochs=1, tolerance=1e6, **WILD), examples_of(6))[0])
    assert not lenient.result.rolled_back


def test_without_rollback_a_regression_is_reported_and_kept() -> None:
    _, trained = _finish(run_of(config_of(epochs=5), examples_of(8))[0])
    run, _, _ = run_of(config_of(enabled=False, **WILD), examples_of(12), examples_of(3), start=trained.adapter)
    _, finished = _finish(run)
    assert finished.result.perplexity_before is not None
    assert finished.result.perplexity_after is not None
    assert finished.adapter is not None
    assert finished.result.perplexity_after > 1.25 * finished.result.perplexity_before


def _forgetful(**changes: object) -> tuple[Finished, float, float]:
    """Teach the adapter what it has not learnt yet and measure what it had; return the true perplexities as well."""
    old, new = examples_of(8), [TokenizedExample(e.token_ids[::-1], e.loss_mask) for e in examples_of(8, seed=3)]
    _, trained = _finish(run_of(config_of(epochs=12), old)[0])
    run, model, bank = run_of(config_of(epochs=20, **changes), new, retention=old, start=trained.adapter)
    _, finished = _finish(run)
    measured = []
    for adapter in (trained.adapter, finished.adapter):
        if adapter is None:
            measured.append(math.nan)
            continue
        bank.load(3, adapter)
        scores = list(sequence_nll(model, [(e.token_ids, e.loss_mask) for e in old], 3))
        measured.append(math.exp(sum(nll for nll, _ in scores) / sum(n for _, n in scores)))
    return finished, measured[0], measured[1]


def test_forgetting_what_the_retention_file_holds_rolls_a_run_back() -> None:
    finished, before, _ = _forgetful(retention_tolerance=1.25)
    result = finished.result
    assert finished.adapter is None
    assert result.perplexity_before is not None
    assert result.perplexity_after is not None
    assert result.perplexity_after < result.perplexity_before
    assert result.retention_before == pytest.approx(before, rel=1e-6)
    assert result.rollback_reason == (
        f"the model forgets: retention-file perplexity rose from {result.retention_before:.4g} to "
        f"{result.retention_after:.4g}, more than the 1.25 times allowed"
    )


@pytest.mark.parametrize("changes", [{"retention_tolerance": 1e6}, {"retention_tolerance": 1.25, "enabled": False}])
def test_forgetting_that_is_allowed_is_only_reported(changes: dict[str, object]) -> None:
    finished, before, after = _forgetful(**changes)
    assert finished.result.rollback_reason is None
    assert finished.result.retention_before == pytest.approx(before, rel=1e-6)
    assert finished.result.retention_after == pytest.approx(after, rel=1e-6)
    assert after > 1.25 * before


def test_both_reasons_of_a_rollback_are_given() -> None:
    finished, _, _ = _forgetful(retention_tolerance=1.25, tolerance=1e-3)
    reason = finished.result.rollback_reason or ""
    assert reason.startswith("training-text perplexity only fell")
    assert "; the model forgets: " in reason


def test_a_retention_file_with_nothing_to_measure_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no example of the retention file has a token to measure") as caught:
        run_of(config_of(), examples_of(2), retention=[TokenizedExample([1, 2], [0, 0])])
    assert caught.value.code == "no_retention_tokens"


@pytest.mark.parametrize("how", [lambda g: g * math.nan, lambda g: g + math.inf], ids=["nan", "inf"])
def test_a_non_finite_gradient_is_skipped_and_counted(how: Callable[[torch.Tensor], torch.Tensor]) -> None:
    run, _, bank = run_of(config_of(epochs=3), examples_of(6))
    _spoil(run, steps={2, 3, 5}, how=how)
    seen: list[tuple[bool, dict[str, torch.Tensor], int]] = []
    finished = None
    for event in run.slices():
        if isinstance(event, StepDone):
            weights = {n: p.detach().clone() for n, p in bank.parameters(0).items()}
            seen.append((event.metrics.skipped, weights, run.state.moments["model.layers.0.mlp.up_proj.lora_A"].step))
            assert (event.metrics.grad_norm is None) == event.metrics.skipped
            assert event.metrics.loss is not None
            assert all(m.m.isfinite().all() and m.v.isfinite().all() for m in run.state.moments.values())
        finished = event
    assert [skipped for skipped, _, _ in seen] == [False, True, True, False, True, False]
    assert [applied for _, _, applied in seen] == [1, 1, 1, 2, 2, 3]
    for (_, before, _), (skipped, after, _) in pairwise(seen):
        assert all(torch.equal(before[n], after[n]) for n in before) == skipped
    assert run.state.progress.skipped == 3
    assert isinstance(finished, Finished)
    assert finished.adapter is not None
    assert all(f.isfinite().all() for pair in finished.adapter.tensors.values() for f in pair)


def test_a_non_finite_loss_never_reaches_a_weight() -> None:
    """The base is poisoned for one step, as a broken kernel would."""
    run, model, bank = run_of(config_of(epochs=2), examples_of(6))
    weight = model.weights()["model.norm.weight"].base
    norm = weight.clone()
    metrics = []
    for event in run.slices():
        if isinstance(event, StepDone):
            metrics.append(event.metrics)
            weight.copy_(norm)
            if event.metrics.step == 1:
                weight.fill_(math.nan)
        assert all(p.isfinite().all() for p in bank.parameters(0).values())
    assert [m.skipped for m in metrics] == [False, True, False, False]
    assert metrics[1].loss is None
    assert metrics[1].grad_norm is None


def test_three_bad_steps_in_a_row_go_back_to_the_last_good_state_at_half_the_rate() -> None:
    """The state after step 10 is the one known to be good: step 11, taken from it, was finite."""
    run, _, bank = run_of(config_of(epochs=8, schedule="constant"), examples_of(8))
    _spoil(run, steps={14, 15, 16}, how=lambda g: g * math.nan)
    after: dict[int, dict[str, torch.Tensor]] = {}
    rates, backs = [], []
    for event in run.slices():
        if isinstance(event, StepDone):
            after[event.metrics.step] = {n: p.detach().clone() for n, p in bank.parameters(0).items()}
            rates.append(event.metrics.learning_rate)
        elif isinstance(event, SetBack):
            backs.append(event)
            assert all(torch.equal(p, after[10][n]) for n, p in bank.parameters(0).items())
            assert not all(torch.equal(p, after[13][n]) for n, p in bank.parameters(0).items())
            assert {moments.step for moments in run.state.moments.values()} == {10}
    assert backs == [SetBack(step=16, times=1, share=0.5)]
    assert rates == [0.01] * 16 + [0.005] * 8
    assert event is not None
    assert isinstance(event, Finished)
    assert event.adapter is not None
    assert event.result.steps == 24
    assert {moments.step for moments in run.state.moments.values()} == {18}


def test_early_trouble_goes_back_to_the_start() -> None:
    run, model, bank = run_of(config_of(epochs=4), examples_of(8))
    _spoil(run, steps={3, 4, 5}, how=lambda g: g * math.nan)
    for event in run.slices():
        if isinstance(event, SetBack):
            assert same_adapter(bank.weights(0), start_of(model, config_of()))
            assert run.state.moments == {}
            assert run.state.progress.set_back == 1
    assert isinstance(event, Finished)
    assert event.adapter is not None


def _diverging(*, first_bad: int = 3, **changes: object) -> TrainingRun:
    run, _, _ = run_of(config_of(batch_size=1, **changes), examples_of(20))
    _spoil(run, steps=set(range(first_bad, 100)), how=lambda g: g * math.nan)
    return run


def test_a_run_that_no_halving_helps_ends_as_rolled_back() -> None:
    run = _diverging()
    start = start_of(run_of(config_of(), examples_of(8))[1], config_of())
    steps, finished = _finish(run)
    assert [s.metrics.skipped for s in steps] == [False] * 2 + [True] * 12
    assert finished.adapter is None
    assert finished.result.rolled_back
    assert finished.result.rollback_reason == (
        "training diverged: the loss or its gradient was not finite at 3 optimizer steps in a row, up to step 14, "
        "although it went back to its last good state 3 times, at half the learning rate each"
    )
    assert finished.result.perplexity_after is None
    assert finished.result.losses == []
    for name, (a, b) in start.tensors.items():
        assert torch.equal(run.state.weights[f"{name}.lora_A"], a)
        assert torch.equal(run.state.weights[f"{name}.lora_B"], b)


def test_a_run_that_no_halving_helps_fails_without_a_gate() -> None:
    with pytest.raises(TrainingError, match=r"up to step 14, although it went back .* 3 times") as caught:
        _finish(_diverging(enabled=False))
    assert caught.value.code == "diverged"


def test_the_runs_last_steps_leave_nothing_to_try_again() -> None:
    run = _diverging(first_bad=34)
    steps, finished = _finish(run)
    assert len(steps) == 36
    assert run.state.progress.set_back == 0
    assert str(finished.result.rollback_reason).endswith("at 3 optimizer steps in a row, up to step 36")


def test_an_epoch_without_one_good_step_is_divergence_too() -> None:
    run, _, _ = run_of(config_of(epochs=4, batch_size=8), examples_of(8))
    _spoil(run, steps={2}, how=lambda g: g * math.nan)
    steps, finished = _finish(run)
    assert len(steps) == 2
    assert "not finite at 1 optimizer step in a row, up to step 2" in (finished.result.rollback_reason or "")


def test_two_bad_steps_in_a_row_do_not_end_a_run() -> None:
    run, _, _ = run_of(config_of(epochs=4), examples_of(8))
    _spoil(run, steps={4, 5}, how=lambda g: g * math.nan)
    events = [e for e in run.slices() if isinstance(e, (EpochDone, Finished))]
    assert len(events) == 5
    assert isinstance(events[-1], Finished)
    assert events[-1].adapter is not None
