"""Requests run within the bytes set aside for their states, or wait, or are told that they never could."""

from collections.abc import Callable

import pytest

from app.contracts.inference import (
    AcceptedEvent,
    DoneEvent,
    EmbedRequest,
    ErrorEvent,
    GenerateRequest,
    ScoredSequence,
    ScoreRequest,
)
from tests.unit.inference.conftest import Harness, generate
from workers.inference.state import Generation
from workers.loading import LoadedBase

Harnesses = Callable[..., Harness]
LONG = [(7 * i * i + 3 * i) % 96 for i in range(75)]


def held(made: Harness) -> int:
    """Return the bytes that the running generations keep alive."""
    caches = []
    for running in made.engine._running.values():
        assert isinstance(running, Generation)
        caches += [running.cache, *(choice.cache for choice in running.choices)]
    tensors = {id(tensor): tensor.nbytes for cache in caches for tensor in cache.tensors()}
    return sum(tensors.values())


def test_requests_wait_until_their_state_fits(harness: Harnesses, base: LoadedBase) -> None:
    room = 2 * base.model.state_bytes(128)
    made = harness(state_bytes=room)
    requests = [
        generate("first", LONG, max_tokens=30),
        generate("second", LONG, max_tokens=45),
        generate("third", LONG[:5], max_tokens=3),
        generate("choices", LONG[:40], n=4, max_tokens=20, temperature=1),
    ]
    for request in requests:
        made.engine.submit(request)
    order = []
    while made.engine.busy:
        out = made.engine.step()
        order += [name for name, events in out.items() if AcceptedEvent() in events]
        assert held(made) <= room
        ended = [name for name, events in out.items() if isinstance(events[-1], DoneEvent)]
        if "third" in order and "third" not in made.engine.request_ids + ended:
            assert "first" not in made.engine.request_ids, "the third starts when the first has ended"
    assert order == ["first", "second", "third", "choices"]
    assert made.engine._scheduler.state_bytes == 0


def test_answers_do_not_depend_on_the_room(harness: Harnesses, base: LoadedBase) -> None:
    requests = [generate(f"r{i}", LONG[i : 50 + i], max_tokens=14, temperature=1, seed=i) for i in range(6)]
    narrow = harness(state_bytes=base.model.state_bytes(64)).run(*requests)
    assert narrow == harness().run(*requests)


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (generate("r", LONG, max_tokens=54), "129 tokens (prompt and max_tokens)"),
        (generate("r", LONG[:10], max_tokens=4, n=3), "14 tokens (prompt and max_tokens) of 3 choices"),
        (EmbedRequest(id="r", base_model="tiny", adapter=None, sequences=[[1], LONG * 2]), "a sequence of 150 tokens"),
        (
            ScoreRequest(
                id="r", base_model="tiny", adapter=None,
                sequences=[ScoredSequence(token_ids=LONG * 2, loss_mask=[1] * 150)],
            ),
            "a sequence of 150 tokens",
        ),
    ],
    ids=["generate", "choices", "embed", "score"],
)  # fmt: skip
def test_what_never_fits_is_refused(
    harness: Harnesses, base: LoadedBase, request_: GenerateRequest | ScoreRequest | EmbedRequest, what: str
) -> None:
    room = base.model.state_bytes(128)
    events = harness(state_bytes=room, read_tokens=20).run(request_, generate("good", LONG, max_tokens=2))
    (error,) = events["r"]
    assert isinstance(error, ErrorEvent)
    assert (error.status, error.code) == (400, "state_too_large")
    assert isinstance(events["good"][-1], DoneEvent)
    assert what in error.message
    assert str(room) in error.message


def test_short_sequences_are_read_without_a_state(harness: Harnesses) -> None:
    made = harness(state_bytes=1, read_tokens=20)
    request = EmbedRequest(id="r", base_model="tiny", adapter=None, sequences=[LONG[:20]] * 3)
    assert isinstance(made.run(request)["r"][-1], DoneEvent)
