"""Every mode of training on the same tiny model: what it moves, how it ends, resumes, recovers and is undone."""

from typing import Any

import pytest
import torch

from app.services.trained_part import trainable_parameters
from tests.unit.training.tiny import (
    TARGETS,
    config_of,
    examples_of,
    info_of,
    model_of,
    run_of,
    same_adapter,
    start_in_mode,
)
from workers.lora.bank import AdapterBank
from workers.training.adamw import AdamWConfig, Moments, adamw_step
from workers.training.dataset import build_dataset, flatten
from workers.training.errors import TrainingError
from workers.training.events import Finished, RunEvent, SetBack, StepDone
from workers.training.loss import nll_sum
from workers.training.trainer import TrainingRun
from workers.training.work import Work

MODES: dict[str, dict[str, Any]] = {
    "lora": {"targets": [*TARGETS, "embeddings", "input_layernorm"]},
    "wsla": {"mode": "wsla"},
    "full": {"mode": "full", "learning_rate": 0.003},
}
EACH_MODE = pytest.mark.parametrize("mode", MODES)


def _run(mode: str, examples: int = 8, retention: Any = None, **changes: Any) -> tuple[TrainingRun, AdapterBank]:
    config = config_of(**MODES[mode] | changes)
    start = start_in_mode(model_of(), config)
    run, _, bank = run_of(config, examples_of(examples), retention=retention, start=start)
    return run, bank


def _drive(run: TrainingRun) -> tuple[list[RunEvent], Finished]:
    events = [event for event in run.slices() if event is not None]
    finished = events[-1]
    assert isinstance(finished, Finished)
    return events, finished


@EACH_MODE
def test_a_mode_trains_all_of_its_own_and_nothing_else(mode: str) -> None:
    config = config_of(**MODES[mode], epochs=4)
    model = model_of()
    base = {name: weight.base.clone() for name, weight in model.weights().items()}
    start = start_in_mode(model, config)
    bank = AdapterBank(model)
    run = TrainingRun(model, bank, 0, config, start, examples_of(8))
    kinds = {name.rpartition(".")[2] for name in run.state.weights}
    assert kinds == {"lora": {"lora_A", "lora_B", "delta"}, "wsla": {"delta"}, "full": {"own"}}[mode]
    before = {name: p.detach().clone() for name, p in run.state.weights.items()}
    _, finished = _drive(run)
    assert all(not torch.equal(p, before[name]) for name, p in run.state.weights.items())
    assert all(torch.equal(weight.base, base[name]) for name, weight in model.weights().items())
    result, adapter = finished.result, finished.adapter
    assert adapter is not None
    assert result.losses[-1] < result.losses[0]
    assert result.perplexity_before is not None
    assert result.perplexity_after is not None
    assert result.perplexity_after < result.perplexity_before
    promised = trainable_parameters(info_of(model), config)
    assert (result.trainable_parameters, result.optimizer_state_bytes) == (promised, 8 * promised)
    assert set(adapter.own) == (set(base) if mode == "full" else set())


@EACH_MODE
def test_a_resumed_run_ends_bit_identical_to_the_unbroken_one(mode: str) -> None:
    whole, _ = _run(mode, epochs=3, max_delta=0.01, weight_decay=0.1)
    _, expected = _drive(whole)
    first, _ = _run(mode, epochs=3, max_delta=0.01, weight_decay=0.1)
    taken = next(first.snapshot() for e in first.slices() if isinstance(e, StepDone) and e.metrics.step == 5)
    second, _ = _run(mode, epochs=3, max_delta=0.01, weight_decay=0.1)
    second.restore(taken)
    _, finished = _drive(second)
    assert expected.adapter is not None
    assert finished.adapter is not None
    assert same_adapter(finished.adapter, expected.adapter)
    same = {"duration_ms": 0}
    assert finished.result.model_copy(update=same) == expected.result.model_copy(update=same)


@EACH_MODE
def test_steps_that_are_not_finite_go_back_to_the_last_good_state(mode: str) -> None:
    run, _ = _run(mode, epochs=3, enabled=False)
    spoilt = next(iter(run.state.weights.values()))
    spoilt.register_hook(lambda g: g * float("nan") if 4 <= run.state.progress.step < 7 else g)
    events, finished = _drive(run)
    assert [e.times for e in events if isinstance(e, SetBack)] == [1]
    assert finished.adapter is not None
    assert run.state.progress.skipped == 3
    assert all(bool(p.isfinite().all()) for p in run.state.weights.values())


@EACH_MODE
def test_what_the_gate_refuses_leaves_the_weights_where_they_were(mode: str) -> None:
    for changes, says in (
        ({"tolerance": 1e-6}, "training-text perplexity"),
        ({"retention_tolerance": 1e-6}, "the model forgets: retention-file"),
    ):
        run, bank = _run(mode, retention=examples_of(2, seed=5), epochs=1, **changes)
        before = bank.weights(0)
        _, finished = _drive(run)
        assert finished.adapter is None
        assert says in str(finished.result.rollback_reason)
        assert same_adapter(bank.weights(0), before)


@EACH_MODE
def test_activation_checkpointing_changes_no_bit_of_a_run(mode: str) -> None:
    ends = [_drive(_run(mode, activation_checkpointing=on)[0])[1] for on in (False, True)]
    assert ends[0].adapter is not None
    assert ends[1].adapter is not None
    assert same_adapter(ends[0].adapter, ends[1].adapter)
    assert ends[0].result.losses == ends[1].result.losses


@EACH_MODE
def test_one_shard_steps_its_part_and_holds_its_part_of_the_moments(mode: str) -> None:
    whole, _ = _run(mode, examples=3, epochs=1)
    _, unsharded = _drive(whole)
    assert unsharded.result.optimizer_state_bytes is not None
    held = 0
    for index in range(2):
        run, _ = _run(mode, examples=3, epochs=1, shard={"index": index, "count": 2})
        start = {name: p.detach().clone() for name, p in run.state.weights.items()}
        _, finished = _drive(run)
        for i, (name, p) in enumerate(run.state.weights.items()):
            expected = whole.state.weights[name] if i % 2 == index else start[name]
            assert torch.equal(p, expected), name
        assert finished.result.optimizer_state_bytes is not None
        held += finished.result.optimizer_state_bytes
    assert held == unsharded.result.optimizer_state_bytes


@EACH_MODE
def test_max_relative_update_bounds_what_every_step_does_to_every_matrix(mode: str) -> None:
    share = 0.01
    run, bank = _run(mode, epochs=2, max_relative_update=share, learning_rate=0.05)
    model = model_of()
    base = {name: weight.base.double() for name, weight in model.weights().items()}

    def deltas() -> dict[str, torch.Tensor]:
        held = bank.weights(0)
        products = {f"{n}.weight": held.scales[n] * b.double() @ a.double() for n, (a, b) in held.tensors.items()}
        return products | {n: t.double() for n, t in (held.dense | held.own).items()}

    before, seen = deltas(), []
    for event in run.slices():
        if isinstance(event, StepDone):
            seen.append(event.metrics.scaled)
            after = deltas()
            moved = {n: float((after[n] - before[n]).norm() / base[n].norm()) for n in before}
            assert max(moved.values()) <= share * (1 + 1e-6)
            before = after
    assert len(seen) == 6
    assert all(scaled is not None and scaled > 0.3 for scaled in seen)


def test_without_max_relative_update_no_share_is_reported() -> None:
    run, _ = _run("lora", epochs=1)
    events, _ = _drive(run)
    assert {e.metrics.scaled for e in events if isinstance(e, StepDone)} == {None}


def test_moments_survive_switching_between_modes() -> None:
    """One dictionary of moments, by tensor where tensors train, stays what an optimizer for each parameter holds."""
    windows = flatten(build_dataset(examples_of(4), 32).examples)
    model = model_of(torch.float64)
    config = AdamWConfig(0.9, 0.95, 1e-8, 0.0, 0, 0)
    moments: dict[str, Moments] = {}
    alone: dict[str, Moments] = {}
    for step, mode in enumerate(["wsla", "lora", "full", "wsla", "lora", "wsla", "full"]):
        bank = AdapterBank(model)
        bank.load(0, start_in_mode(model, config_of(**MODES[mode])), trainable=True)
        nll_sum(model, windows[step % 3 :], 0).backward()
        parameters = {n.removesuffix(".delta").removesuffix(".own"): p for n, p in bank.parameters(0).items()}
        gradients = {n: p.grad for n, p in parameters.items() if p.grad is not None}
        kept = {n: (held.m.clone(), held.step) for n, held in moments.items() if n not in gradients}
        before = {n: p.detach().clone() for n, p in parameters.items()}
        adamw_step(parameters, gradients, moments, learning_rate=0.01, config=config)
        for name, gradient in gradients.items():
            adamw_step({name: before[name]}, {name: gradient}, alone, learning_rate=0.01, config=config)
        for name, (m, seen) in kept.items():
            assert torch.equal(moments[name].m, m)
            assert moments[name].step == seen
        for name, held in alone.items():
            assert torch.equal(moments[name].m, held.m)
            assert torch.equal(moments[name].v, held.v)
            assert moments[name].step == held.step
        bank.clear(0)
    keys = "model.layers.0.self_attn.k_proj.weight"
    assert (moments[keys].step, moments["model.norm.weight"].step) == (5, 2)
    assert moments["model.layers.0.self_attn.k_proj.lora_A"].step == 2


@pytest.mark.parametrize(
    ("mode", "parameter", "target"),
    [
        ("lora", "model.layers.1.input_layernorm.weight.delta", "input_layernorm"),
        ("lora", "model.embed_tokens.lora_B", "embed_tokens"),
        ("wsla", "model.layers.0.self_attn.k_proj.weight.delta", "k_proj"),
    ],
)
def test_a_target_that_no_gradient_reaches_fails_the_run_by_name(mode: str, parameter: str, target: str) -> None:
    run, _ = _run(mode)
    run.state.weights[parameter].register_hook(torch.zeros_like)
    with pytest.raises(TrainingError, match=f"no gradient reached target {target} ") as caught:
        _drive(run)
    assert caught.value.code == "zero_gradient"
    assert run.state.progress.step == 1


def test_a_target_that_moves_no_logits_fails_the_run_by_name() -> None:
    """As if a fused path passed a projection and a dense tensor by."""
    config = config_of(**MODES["lora"])
    model = model_of()
    bank = AdapterBank(model)
    run = TrainingRun(model, bank, 0, config, start_in_mode(model, config), examples_of(4))
    for layer in range(2):
        model.linears()[f"model.layers.{layer}.self_attn.v_proj"].detach(0)
        model.weights()[f"model.layers.{layer}.input_layernorm.weight"].forget(0)
    with pytest.raises(TrainingError, match="target v_proj, input_layernorm does not change") as caught:
        _drive(run)
    assert caught.value.code == "no_effect"
    assert run.state.progress.step == 0


def test_the_probe_leaves_a_run_as_it_was_and_asks_once_in_a_worker_for_what_is_fresh() -> None:
    config = config_of(**MODES["lora"], epochs=1, batch_size=8, enabled=False)
    start = start_in_mode(model_of(), config)
    run, model, bank = run_of(config, examples_of(8), start=start)
    slices = run.slices()
    for _ in range(len(MODES["lora"]["targets"])):
        assert next(slices) is None
        assert same_adapter(bank.weights(0), start)
    *_, finished = slices
    assert isinstance(finished, Finished)
    assert finished.adapter is not None
    again = TrainingRun(model, bank, 1, config, start, examples_of(8))
    assert isinstance(next(again.works()), Work)
    continued, _, _ = run_of(config, examples_of(8), start=finished.adapter)
    assert isinstance(next(continued.works()), Work)
