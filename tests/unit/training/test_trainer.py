"""A whole run on a tiny model: events, numbers, limits, and the three ways to end."""

import math

import pytest
import torch

from app.text.tokenize import TokenizedExample
from tests.unit.training.tiny import TARGETS, VOCAB, config_of, examples_of, run_of, same_adapter, start_of
from workers.lora.bank import AdapterBank
from workers.models.scoring import sequence_nll
from workers.training.errors import TrainingError
from workers.training.events import EpochDone, Finished, RunEvent, StepDone
from workers.training.shared_pass import Slices, run_pass
from workers.training.trainer import TrainingRun
from workers.training.work import Work


def _drive(run: TrainingRun) -> tuple[list[RunEvent], Finished]:
    events = [event for event in run.slices() if event is not None]
    finished = events[-1]
    assert isinstance(finished, Finished)
    return events, finished


def test_a_run_reports_its_steps_and_epochs_and_learns() -> None:
    run, _, bank = run_of(config_of(epochs=12), examples_of(8))
    events, finished = _drive(run)
    steps = [e.metrics for e in events if isinstance(e, StepDone)]
    epochs = [e for e in events if isinstance(e, EpochDone)]
    assert [m.step for m in steps] == list(range(1, 37))
    assert {m.total_steps for m in steps} == {36}
    assert [m.epoch for m in steps] == [e for e in range(1, 13) for _ in range(3)]
    assert [(e.epoch, e.step) for e in epochs] == [(i, 3 * i) for i in range(1, 13)]
    assert steps[0].learning_rate == pytest.approx(0.01)
    assert steps[-1].learning_rate == pytest.approx(0.001)
    assert steps[-1].tokens == finished.result.trained_tokens == 12 * sum(len(e.token_ids) for e in examples_of(8))
    assert steps[-1].eta_seconds == 0
    assert steps[0].eta_seconds > 0
    assert all(m.tokens_per_second > 0 and (m.grad_norm or 0) > 0 and not m.skipped for m in steps)
    result = finished.result
    assert result.losses == [e.loss for e in epochs]
    assert result.losses[-1] < 0.5 * result.losses[0]
    assert result.steps == 36
    assert result.grad_norm == steps[-1].grad_norm
    assert result.gate_data == "training_text"
    assert result.perplexity_before is not None
    assert result.perplexity_after is not None
    assert result.perplexity_after < 0.6 * result.perplexity_before
    assert not result.rolled_back
    assert finished.adapter is not None
    assert same_adapter(finished.adapter, bank.weights(0))
    assert same_adapter(finished.adapter, epochs[-1].adapter)
    assert not same_adapter(epochs[0].adapter, epochs[1].adapter)


def test_a_constant_schedule_keeps_the_rate_to_the_last_step() -> None:
    events, _ = _drive(run_of(config_of(warmup_steps=2, schedule="constant"), examples_of(8))[0])
    rates = [e.metrics.learning_rate for e in events if isinstance(e, StepDone)]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.01, 0.01, 0.01])


def test_the_epoch_loss_is_the_mean_over_its_counted_positions() -> None:
    run, _, _ = run_of(config_of(epochs=1, batch_size=8, max_delta=1e-30), examples_of(8))
    events, finished = _drive(run)
    step = events[0]
    assert isinstance(step, StepDone)
    assert finished.result.losses == [step.metrics.loss]
    assert math.exp(finished.result.losses[0]) == pytest.approx(finished.result.perplexity_before, rel=1e-5)


def test_gradient_accumulation_equals_the_big_batch() -> None:
    """Eight windows of different lengths: one batch of 8, or 4 micro-batches of 2 before each step."""
    examples = examples_of(8, length=4)
    ends = []
    for batch_size, accumulation in ((8, 1), (2, 4)):
        config = config_of(epochs=4, batch_size=batch_size, gradient_accumulation=accumulation)
        run, _, bank = run_of(config, examples, dtype=torch.float64)
        _, finished = _drive(run)
        ends.append((finished.result, {n: p.detach().clone() for n, p in bank.parameters(0).items()}))
    (big, big_weights), (accumulated, weights) = ends
    assert big.steps == accumulated.steps == 4
    assert accumulated.losses == pytest.approx(big.losses, rel=1e-9)
    assert accumulated.grad_norm == pytest.approx(big.grad_norm, rel=1e-6)
    for name, weight in big_weights.items():
        assert (weights[name] - weight).norm() <= 1e-6 * weight.norm(), name


def test_a_run_asks_for_every_micro_batch_and_tells_every_step() -> None:
    config = config_of(epochs=1, batch_size=2, gradient_accumulation=3, enabled=False)
    run, model, _ = run_of(config, examples_of(8))
    works, answer, kinds = run.works(), None, []
    for _ in range(len(TARGETS) + 8):
        item = works.send(answer)
        kinds.append(type(item).__name__)
        answer = None
        if isinstance(item, Work):
            (answer,) = _drain(run_pass(model, [item]))
    probed = ["NoneType"] * len(TARGETS)
    assert kinds == [*probed, "Work", "Work", "Work", "StepDone", "Work", "StepDone", "EpochDone", "Finished"]


def _drain(slices: Slices) -> list[float]:
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return list(stop.value)


def test_the_caller_is_heard_after_every_layer_there_and_back() -> None:
    run, model, _ = run_of(config_of(enabled=False), examples_of(3))
    work = next(item for item in run.works() if isinstance(item, Work))
    layers = len(model.layers)
    assert list(run_pass(model, [work])) == ["forward"] * layers + ["head"] + ["backward"] * (layers + 1)


def test_serving_another_slot_between_slices_changes_nothing() -> None:
    config = config_of(epochs=2)
    alone, _, _ = run_of(config, examples_of(6))
    _, expected = _drive(alone)
    run, model, bank = run_of(config, examples_of(6))
    bank.load(1, start_of(model, config_of(seed=99)))
    finished = None
    for event in run.slices():
        list(sequence_nll(model, [([1, 2, 3], [0, 1, 1])], 1))
        finished = event
    assert isinstance(finished, Finished)
    assert expected.adapter is not None
    assert finished.adapter is not None
    assert same_adapter(finished.adapter, expected.adapter)
    assert finished.result.losses == expected.result.losses


def test_a_seed_reproduces_a_run_bit_for_bit_and_touches_no_global_generator() -> None:
    before = torch.get_rng_state()
    ends = [_drive(run_of(config_of(seed=seed), examples_of(12))[0])[1] for seed in (7, 7, 8)]
    assert torch.equal(torch.get_rng_state(), before)
    adapters = [e.adapter for e in ends]
    assert adapters[0] is not None
    assert adapters[1] is not None
    assert adapters[2] is not None
    assert same_adapter(adapters[0], adapters[1])
    assert ends[0].result.losses == ends[1].result.losses
    assert not same_adapter(adapters[0], adapters[2])


@pytest.mark.parametrize("max_delta", [0.05, 1e-4])
def test_the_trust_region_holds_at_every_step_of_a_run(max_delta: float) -> None:
    config = config_of(learning_rate=100.0, weight_decay=3.0, max_delta=max_delta, enabled=False)
    run, _, bank = run_of(config, examples_of(6))
    before = {n: p.detach().double() for n, p in bank.parameters(0).items()}
    shares = []
    for event in run.slices():
        if isinstance(event, StepDone):
            shares.append(event.metrics.clamped)
            after = {n: p.detach().double() for n, p in bank.parameters(0).items()}
            moved = max((after[n] - before[n]).abs().max().item() for n in before)
            assert 0 < moved <= max_delta
            before = after
    assert len(shares) == 4
    assert all(share > 0.4 for share in shares)


def test_the_gates_numbers_are_the_perplexities_of_start_and_end() -> None:
    validation = examples_of(3, seed=9)
    run, model, bank = run_of(config_of(epochs=3), examples_of(20), validation)
    _, finished = _drive(run)
    assert finished.adapter is not None
    for weights, reported in (
        (start_of(model, config_of()), finished.result.perplexity_before),
        (finished.adapter, finished.result.perplexity_after),
    ):
        bank.load(3, weights)
        scores = list(sequence_nll(model, [(e.token_ids, e.loss_mask) for e in validation], 3))
        expected = math.exp(sum(nll for nll, _ in scores) / sum(n for _, n in scores))
        assert reported == pytest.approx(expected, rel=1e-6)
    assert finished.result.gate_data == "validation_file"


def test_ten_examples_lose_one_to_the_gate() -> None:
    run, _, _ = run_of(config_of(epochs=1, batch_size=1), examples_of(10))
    _, finished = _drive(run)
    assert finished.result.gate_data == "held_out"
    assert finished.result.steps == 9


def test_with_the_gate_off_nothing_is_judged_or_held_out() -> None:
    run, _, _ = run_of(config_of(epochs=1, batch_size=1, enabled=False), examples_of(10))
    _, finished = _drive(run)
    assert finished.result.perplexity_before is finished.result.perplexity_after is None
    assert finished.result.steps == 10


def test_a_trained_adapter_is_continued_where_it_ended() -> None:
    first, _, _ = run_of(config_of(epochs=6), examples_of(8))
    _, one = _drive(first)
    second, _, _ = run_of(config_of(epochs=1), examples_of(8), start=one.adapter)
    _, two = _drive(second)
    assert two.result.perplexity_before == pytest.approx(one.result.perplexity_after)


def test_long_examples_are_trained_in_windows_and_useless_ones_counted() -> None:
    long = TokenizedExample([t % 40 for t in range(20)], [0, *[1] * 19])
    run, _, _ = run_of(config_of(epochs=1, batch_size=1, seq_len=8), [long, TokenizedExample([1, 2], [0, 0])])
    _, finished = _drive(run)
    assert run.dropped_examples == 1
    assert finished.result.steps == 3
    assert finished.result.trained_tokens == 20


def test_nothing_to_learn_is_an_error() -> None:
    with pytest.raises(TrainingError, match="no example has a token to learn from") as caught:
        run_of(config_of(), [TokenizedExample([1, 2], [0, 0])])
    assert caught.value.code == "no_trainable_tokens"


@pytest.mark.parametrize("token", [-1, VOCAB])
@pytest.mark.parametrize("place", ["train", "validation", "retention"])
def test_a_token_that_the_model_does_not_have_is_an_error(place: str, token: int) -> None:
    files = dict.fromkeys(("train", "validation", "retention"), examples_of(4))
    files[place] = [*examples_of(3), TokenizedExample([3, token, 5], [0, 1, 1])]
    with pytest.raises(TrainingError, match=f"token {token}, but the base model has {VOCAB} tokens") as caught:
        run_of(config_of(), **files)
    assert caught.value.code == "unknown_token"


def test_two_tokens_are_learnt_although_attention_has_no_choice_in_them() -> None:
    pair = TokenizedExample([3, 7], [0, 1])
    run, _, _ = run_of(config_of(epochs=4, batch_size=1), [pair])
    _, finished = _drive(run)
    assert finished.result.losses[-1] < finished.result.losses[0]
    assert finished.adapter is not None


@pytest.mark.parametrize(("factor", "epochs"), [("lora_A", 2), ("lora_B", 1)])
def test_targets_that_no_gradient_reaches_fail_the_run_by_name(factor: str, epochs: int) -> None:
    """Their gradients are cut off, as a fused kernel that bypasses a projection would; one step is enough for B."""
    run, _, _ = run_of(config_of(epochs=epochs, batch_size=6), examples_of(6))
    for name, weight in run.state.weights.items():
        if name.split(".")[-2] in {"k_proj", "up_proj"} and name.endswith(factor):
            weight.register_hook(torch.zeros_like)
    with pytest.raises(TrainingError, match=r"no gradient reached target k_proj, up_proj \(4 parameters") as caught:
        _drive(run)
    assert caught.value.code == "zero_gradient"
    assert run.state.progress.step == (epochs - 1 if factor == "lora_A" else epochs)


def test_a_bfloat16_base_trains_float32_factors() -> None:
    run, model, bank = run_of(config_of(epochs=12), examples_of(8), dtype=torch.bfloat16)
    _, finished = _drive(run)
    assert model.dtype == torch.bfloat16
    assert {p.dtype for p in bank.parameters(0).values()} == {torch.float32}
    assert finished.result.losses[-1] < 0.5 * finished.result.losses[0]


def test_the_base_never_moves() -> None:
    run, model, _ = run_of(config_of(), examples_of(6))
    before = {n: w.base.clone() for n, w in model.weights().items()}
    _drive(run)
    assert all(torch.equal(w.base, before[n]) for n, w in model.weights().items())


def test_another_slots_weights_are_left_alone() -> None:
    run, model, bank = run_of(config_of(), examples_of(6))
    other = start_of(model, config_of())
    bank.load(2, other, trainable=True)
    _drive(run)
    assert same_adapter(bank.weights(2), other)
    assert isinstance(bank, AdapterBank)
