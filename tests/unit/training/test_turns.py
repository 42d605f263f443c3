"""Turns: how far tokens by weight may drift apart, what coming and going is worth, and what a pass is made of."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.training.turns import Bid, Turns

PASSES = 40
demand = st.tuples(st.sampled_from([0.5, 1.0, 2.0, 5.0]), st.integers(1, 12))
"""A tenant's weight, and the tokens of each of its works."""
demands = st.lists(demand, min_size=2, max_size=5)


def _serve(turns: Turns, bids: list[Bid], limit: int, passes: int) -> Counter[str]:
    """Let the same bids come again and again; return the tokens of each run."""
    served: Counter[str] = Counter()
    for _ in range(passes):
        for bid in turns.choose(bids, limit):
            served[bid.run] += bid.tokens
    return served


def _names(bids: list[Bid]) -> list[str]:
    return [bid.run for bid in bids]


@given(demands, st.integers(1, 16))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_tenants_who_always_wait_differ_by_a_work_each_by_weight(tenants: list[tuple[float, int]], limit: int) -> None:
    turns, bids, served = Turns(), [], [0] * len(tenants)
    for number, (weight, tokens) in enumerate(tenants):
        for run in range(limit // tokens + 2):
            turns.join(f"{number}.{run}", str(number), weight)
            bids.append(Bid(f"{number}.{run}", tokens))
    for _ in range(PASSES):
        for bid in turns.choose(bids, limit):
            served[int(bid.run.split(".")[0])] += bid.tokens
        for i, (weight, tokens) in enumerate(tenants):
            for j, (other_weight, other_tokens) in enumerate(tenants):
                lag = served[j] / other_weight - served[i] / weight
                assert lag <= tokens / weight + other_tokens / other_weight + 1e-9


@given(demands, st.integers(1, 16), st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_work_waits_for_others_by_their_weight_and_a_work_of_each(
    tenants: list[tuple[float, int]], limit: int, data: st.DataObject
) -> None:
    """Each tenant has one run, which may sit out a pass before it comes with its next work, of either kind."""
    turns, waited = Turns(), [Counter[int]() for _ in tenants]
    for number, (weight, _) in enumerate(tenants):
        turns.join(str(number), str(number), weight)
    away: set[int] = set()
    for _ in range(PASSES):
        kinds = {number: data.draw(st.sampled_from(["train", "score"])) for number in range(len(tenants))}
        here = [number for number in kinds if number not in away]
        chosen = turns.choose([Bid(str(n), tenants[n][1], kinds[n]) for n in here], limit)
        assert bool(chosen) == bool(here)
        served = {int(bid.run) for bid in chosen}
        for number in here:
            if number in served:
                waited[number].clear()
                continue
            for other in served:
                waited[number][other] += tenants[other][1]
                (weight, tokens), (other_weight, other_tokens) = tenants[number], tenants[other]
                assert waited[number][other] <= tokens * other_weight / weight + 3 * other_tokens + limit
        away = {number for number in served if data.draw(st.booleans())}


def test_weights_hold_where_each_tenant_has_one_run() -> None:
    turns = Turns()
    turns.join("small", "small", 1.0)
    turns.join("large", "large", 4.0)
    served = _serve(turns, [Bid("small", 100), Bid("large", 10)], 100, 1000)
    assert abs(served["large"] - 4 * served["small"]) <= 4 * 100 + 10


def test_a_tenants_runs_share_what_is_the_tenants() -> None:
    turns = Turns()
    for run in ("a1", "a2", "a3"):
        turns.join(run, "a")
    turns.join("b1", "b")
    served = _serve(turns, [Bid("a1", 10), Bid("a2", 10), Bid("a3", 30), Bid("b1", 10)], 10, 360)
    theirs = served["a1"] + served["a2"] + served["a3"]
    assert abs(theirs - served["b1"]) <= 40
    assert max(served[run] for run in ("a1", "a2", "a3")) - min(served[run] for run in ("a1", "a2", "a3")) <= 40


def test_nobody_is_owed_anything_for_time_spent_away() -> None:
    turns = Turns()
    for run in ("here", "away"):
        turns.join(run, run)
    _serve(turns, [Bid("here", 10)], 10, 100)
    turns.join("new", "new")
    served = _serve(turns, [Bid("here", 10), Bid("away", 10), Bid("new", 10)], 10, 300)
    assert all(abs(tokens - 1000) <= 10 for tokens in served.values())


def test_a_tenants_run_that_was_away_is_owed_nothing_by_the_others() -> None:
    turns = Turns()
    for run in ("here", "away"):
        turns.join(run, "tenant")
    _serve(turns, [Bid("here", 10)], 10, 100)
    served = _serve(turns, [Bid("here", 10), Bid("away", 10)], 10, 200)
    assert abs(served["here"] - served["away"]) <= 20


def test_all_who_were_away_at_once_come_back_level() -> None:
    turns = Turns()
    for run in ("busy", "idle"):
        turns.join(run, run)
    _serve(turns, [Bid("busy", 10)], 10, 100)
    _serve(turns, [Bid("idle", 10)], 10, 1)
    served = _serve(turns, [Bid("busy", 10), Bid("idle", 10)], 10, 200)
    assert abs(served["busy"] - served["idle"]) <= 20


def test_leaving_and_coming_back_gets_rid_of_no_debt() -> None:
    """A tenant of many short jobs gets no more than one of a long one."""
    turns, served = Turns(), Counter[str]()
    turns.join("long", "patient")
    for number in range(300):
        turns.join(f"short-{number}", "hasty")
        while f"short-{number}" not in served:
            for bid in turns.choose([Bid("long", 10), Bid(f"short-{number}", 100)], 100):
                served[bid.run] += bid.tokens
        turns.leave(f"short-{number}")
    assert 0.9 < served["long"] / (300 * 100) < 1.1


def test_the_first_goes_whatever_its_size_and_then_who_fits_in_turn() -> None:
    turns = Turns()
    for run in ("huge", "small", "large", "tiny"):
        turns.join(run, run)
    bids = [Bid("huge", 500), Bid("small", 30), Bid("large", 80), Bid("tiny", 1)]
    assert _names(turns.choose(bids, 100)) == ["huge"]
    assert _names(turns.choose(bids[1:], 100)) == ["small"]
    assert _names(turns.choose(bids[2:], 100)) == ["large", "tiny"]
    assert turns.choose([], 100) == []


def test_one_kind_goes_into_a_pass_and_the_other_into_the_next() -> None:
    turns = Turns()
    for run in ("a", "b", "c", "d"):
        turns.join(run, run)
    bids = [Bid("a", 10, "train"), Bid("b", 10, "score"), Bid("c", 10, "train"), Bid("d", 10, "score")]
    assert _names(turns.choose(bids, 100)) == ["a", "c"]
    assert _names(turns.choose(bids, 100)) == ["b", "d"]
