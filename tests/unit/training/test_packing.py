"""The order of training: complete, reproducible, different from epoch to epoch."""

from collections import Counter

from workers.training.dataset import Window
from workers.training.packing import StepPlan, plan_epoch, split_by_tokens, steps_per_epoch


def _windows(n: int) -> list[Window]:
    return [Window(tuple(range(i, i + 2 + i % 7)), (0, *[1] * (1 + i % 7))) for i in range(n)]


def _plan(n: int, *, seed: int = 3, epoch: int = 0, batch_size: int = 4, accumulation: int = 2) -> list[StepPlan]:
    return plan_epoch(_windows(n), batch_size=batch_size, gradient_accumulation=accumulation, seed=seed, epoch=epoch)


def test_every_window_is_trained_once_in_batches_of_the_asked_size() -> None:
    plan = _plan(43)
    batches = [b for step in plan for b in step.micro_batches]
    assert Counter(w for b in batches for w in b) == Counter(_windows(43))
    assert Counter(len(b) for b in batches) == {4: 10, 3: 1}
    assert len(plan) == steps_per_epoch(43, 4, 2) == 6
    for step in plan:
        members = [w for b in step.micro_batches for w in b]
        assert step.tokens == sum(len(w.token_ids) for w in members)
        assert step.targets == sum(w.targets for w in members)


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    assert _plan(43) == _plan(43)
    assert _plan(43) != _plan(43, epoch=1)
    assert _plan(43) != _plan(43, seed=4)


def test_micro_batches_hold_similar_lengths() -> None:
    spread = [
        max(lengths) - min(lengths)
        for s in _plan(64)
        for b in s.micro_batches
        if (lengths := [len(w.token_ids) for w in b])
    ]
    assert sum(spread) / len(spread) < 2


def test_windows_of_one_long_text_meet_in_batches_of_one_length_and_its_ragged_tail_is_trained_too() -> None:
    windows = [Window(tuple(range(i, i + 8)), (0, *[1] * 7)) for i in range(10)] + [Window((1, 2, 3), (0, 1, 1))]
    steps = plan_epoch(windows, batch_size=3, gradient_accumulation=1, seed=1, epoch=0)
    batches = [[len(w.token_ids) for w in step.micro_batches[0]] for step in steps]
    assert sorted(map(len, batches)) == [2, 3, 3, 3]
    assert sorted(batches)[0] == [3, 8, 8]
    assert [batch for batch in batches if len(set(batch)) > 1] == [[3, 8, 8]]


def test_neighbours_of_equal_length_stay_together_within_a_micro_batch() -> None:
    for step in _plan(64):
        for batch in step.micro_batches:
            lengths = [len(w.token_ids) for w in batch]
            assert lengths == sorted(lengths)


def test_a_micro_batch_is_cut_by_tokens_in_order() -> None:
    windows = _windows(7)
    parts = split_by_tokens(windows, 9)
    assert [w for part in parts for w in part] == windows
    assert [sum(len(w.token_ids) for w in part) for part in parts] == [9, 5, 6, 7, 8]
    assert split_by_tokens(windows, 1) == [(w,) for w in windows]
