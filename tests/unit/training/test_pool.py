"""The pool: who meets in a pass, what goes between passes, and how runs that pause, stay busy or are closed fare."""

from collections import Counter

import pytest

from tests.unit.training.tiny import VOCAB, config_of, model_of, start_of
from workers.lora.bank import AdapterBank
from workers.models.language_model import LanguageModel
from workers.training import pool as pool_module
from workers.training.dataset import Window
from workers.training.pool import RETURN_SLICES, RunPool
from workers.training.shared_pass import Slices, run_pass
from workers.training.work import Work, Working


def window(length: int, first: int = 0) -> Window:
    """Return ascending tokens that all count but the first."""
    return Window(tuple((first + t) % VOCAB for t in range(length)), (0, *[1] * (length - 1)))


def score(length: int = 4, first: int = 0) -> Work:
    """Return a work of the base alone, without gradients."""
    return Work(-1, (window(length, first),))


class Watched:
    """A pool on a tiny model whose clock stands still unless it is moved, and what its passes held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tokens_per_pass: int = 100) -> None:
        self.now = 0.0
        self.passes: list[int] = []
        """How many works each pass had."""
        self.tokens: Counter[str] = Counter()
        """Tokens of each run's answered works."""
        self.model = model_of()
        self.bank = AdapterBank(self.model)
        self.pool = RunPool(self.model, self.bank.parameters, tokens_per_pass=tokens_per_pass, clock=lambda: self.now)

        def counted(model: LanguageModel, works: list[Work]) -> Slices:
            self.passes.append(len(works))
            return run_pass(model, works)

        monkeypatch.setattr(pool_module, "run_pass", counted)

    def scores(self, name: str, works: int, *, length: int = 4, between: int = 1) -> Working[float, bool]:
        """A run of equal works with slices of its own before each."""
        for _ in range(works):
            for _ in range(between):
                yield 0.0
            answer = yield score(length)
            assert answer > 0
            self.tokens[name] += length
        return True

    def drive(self) -> dict[str, bool]:
        """Step until everybody has left."""
        left: dict[str, bool] = {}
        while len(self.pool):
            left |= self.pool.step()
        return left


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A pool of passes of a hundred tokens."""
    return Watched(monkeypatch)


def test_runs_of_a_pass_meet_again_in_the_next(watched: Watched) -> None:
    for name in "abcd":
        watched.pool.add(name, watched.scores(name, 20), tenant=name)
    assert watched.drive() == dict.fromkeys("abcd", True)
    assert sum(watched.passes) == 80
    assert watched.passes.count(4) >= 19


def test_a_run_that_stays_busy_with_its_own_does_not_hold_up_the_others(watched: Watched) -> None:
    done: list[int] = []

    def busy() -> Working[float, bool]:
        yield score()
        for number in range(1000):
            done.append(number)
            yield 0.0
        return True

    watched.pool.add("busy", busy(), tenant="busy")
    watched.pool.add("other", watched.scores("other", 5), tenant="other")
    while watched.tokens["other"] < 20:
        watched.pool.step()
    assert RETURN_SLICES <= len(done) < 200
    assert watched.drive() == {"busy": True}


def test_a_run_that_pauses_is_not_asked_before_its_time(watched: Watched) -> None:
    asked: list[float] = []

    def pausing() -> Working[float, bool]:
        for pause in (0.5, 2.0):
            yield pause
            asked.append(watched.now)
        return True

    watched.pool.add("pausing", pausing(), tenant="a")
    assert watched.pool.pause == 0
    assert watched.pool.step() == {}
    assert watched.pool.pause == 0.5
    assert watched.pool.step() == {}
    watched.now = 0.5
    watched.pool.step()
    assert watched.pool.pause == 2.0
    watched.pool.add("other", watched.scores("other", 3), tenant="b")
    for _ in range(200):
        watched.pool.step()
    assert (watched.tokens["other"], asked) == (12, [0.5])
    watched.now = 2.5
    assert watched.pool.step() == {"pausing": True}
    assert asked == [0.5, 2.5]
    assert watched.pool.pause == 0


def test_tenants_share_passes_by_weight_though_each_has_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, tokens_per_pass=8)
    watched.pool.add("heavy", watched.scores("heavy", 1000), tenant="heavy", weight=3.0)
    watched.pool.add("light", watched.scores("light", 1000, length=8), tenant="light")
    while sum(watched.tokens.values()) < 400:
        watched.pool.step()
    assert abs(watched.tokens["heavy"] - 3 * watched.tokens["light"]) <= 3 * 8 + 4
    assert sorted(watched.pool.close()) == ["heavy", "light"]


def test_tenants_with_many_runs_and_with_one_get_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, tokens_per_pass=8)
    for number in range(6):
        watched.pool.add(f"a{number}", watched.scores("many", 1000, length=8), tenant="many")
    watched.pool.add("b", watched.scores("one", 1000, length=8), tenant="one")
    while sum(watched.tokens.values()) < 800:
        watched.pool.step()
    assert abs(watched.tokens["many"] - watched.tokens["one"]) <= 16
    watched.pool.close()


def test_passes_keep_to_their_tokens_as_they_are_changed(watched: Watched) -> None:
    seen: list[int] = []
    for name in "abcd":
        watched.pool.add(name, watched.scores(name, 4, length=10), tenant=name)
    for limit in (100, 25, 10, 5):
        watched.pool.tokens_per_pass = limit
        before = len(watched.passes)
        while len(watched.pool) and len(watched.passes) < before + 4:
            watched.pool.step()
            seen.append(watched.pool.pass_tokens)
        assert all(10 * works <= max(10, limit) for works in watched.passes[before + 1 :])
    assert {0, 10, 20} <= set(seen)


def test_trained_and_scored_works_take_passes_of_their_own(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[set[bool]] = []
    counted = pool_module.run_pass

    def noted(model: LanguageModel, works: list[Work]) -> Slices:
        kinds.append({work.share is None for work in works})
        return counted(model, works)

    monkeypatch.setattr(pool_module, "run_pass", noted)

    def trains(slot: int) -> Working[float, bool]:
        for _ in range(3):
            yield Work(slot, (window(4),), share=0.1)
        return True

    for slot, name in enumerate(("t1", "t2")):
        watched.bank.load(slot, start_of(watched.model, config_of()), trainable=True)
        watched.pool.add(name, trains(slot), tenant=name)
    for name in ("s1", "s2"):
        watched.pool.add(name, watched.scores(name, 3), tenant=name)
    watched.drive()
    assert {len(kind) for kind in kinds} == {1}
    assert sum(watched.passes) == 12
    assert len(watched.passes) <= 8


def test_closing_stops_every_run_where_it_is(watched: Watched) -> None:
    ended: list[str] = []

    def closing(name: str) -> Working[float, bool]:
        try:
            yield from watched.scores(name, 5)
        finally:
            ended.append(name)
        return True

    for name in "abc":
        watched.pool.add(name, closing(name), tenant=name)
    while not watched.pool.pass_tokens:
        watched.pool.step()
    assert sorted(watched.pool.close()) == sorted(ended) == ["a", "b", "c"]
    assert len(watched.pool) == 0
    assert watched.pool.step() == {}
