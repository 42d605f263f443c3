"""Scores and embeddings: read in bounded slices beside decoding, and the same as the model computes at once."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.functional import normalize

from app.contracts.inference import (
    AcceptedEvent,
    DoneEvent,
    EmbedEvent,
    EmbedRequest,
    ErrorEvent,
    ScoredSequence,
    ScoreEvent,
    ScoreRequest,
    TextEvent,
)
from tests.unit.inference.conftest import Events, Harness, generate, ref
from workers.loading import LoadedBase
from workers.models.batch import pack
from workers.models.windows import Span, spans_of

Harnesses = Callable[..., Harness]
LONG = [(7 * i * i + 3 * i) % 96 for i in range(75)]
SEQUENCES = [LONG[:20], LONG, [5], LONG[3:9], LONG[::-1][:40], LONG[1:33]]


def embed(request_id: str, sequences: list[list[int]], adapter: str | None = None) -> EmbedRequest:
    """A request for embeddings."""
    pinned = None if adapter is None else ref(adapter)
    return EmbedRequest(id=request_id, base_model="tiny", adapter=pinned, sequences=sequences)


def mean_of(base: LoadedBase, ids: list[int], slot: int = -1) -> torch.Tensor:
    """The normalised mean of the final hidden states, from one pass over the sequence alone."""
    with torch.no_grad():
        return normalize(base.model.hidden(pack([ids], [slot], "cpu")).mean(0), dim=0)


def vectors_of(events: Events) -> list[torch.Tensor]:
    """Return the embeddings in order; each must have come once."""
    vectors = {event.index: torch.tensor(event.vector) for event in events if isinstance(event, EmbedEvent)}
    assert len(vectors) == sum(isinstance(event, EmbedEvent) for event in events)
    return [vectors[index] for index in range(len(vectors))]


@pytest.mark.parametrize("read_tokens", [16, 25, 512])
def test_an_embedding_is_the_normalised_mean_of_the_hidden_states(
    harness: Harnesses, base: LoadedBase, read_tokens: int
) -> None:
    made = harness(read_tokens=read_tokens)
    events = made.run(embed("base", SEQUENCES), embed("adapted", SEQUENCES, "v1"), generate("r", LONG[:5]))
    slot = made.engine._adapters.acquire(ref("v1"))
    assert slot is not None
    for name, its_slot in (("base", -1), ("adapted", slot)):
        vectors = vectors_of(events[name])
        for ids, vector in zip(SEQUENCES, vectors, strict=True):
            assert (vector - mean_of(base, ids, its_slot)).abs().max() < 1e-5
            assert vector.norm().item() == pytest.approx(1, abs=1e-5)
        assert events[name][-1] == DoneEvent(prompt_tokens=sum(map(len, SEQUENCES)), completion_tokens=0)
    assert (vectors_of(events["base"])[0] - vectors_of(events["adapted"])[0]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["score", "embed"])
def test_a_long_sequence_is_read_in_chunks_while_others_decode(
    harness: Harnesses, base: LoadedBase, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    lengths: list[int] = []
    hidden = base.model.hidden
    monkeypatch.setattr(
        base.model, "hidden", lambda batch, caches: (lengths.append(sum(batch.lengths)), hidden(batch, caches))[1]
    )
    engine = harness(read_tokens=10, prefill_tokens=8).engine
    engine.submit(generate("decodes", LONG[:3], max_tokens=30))
    engine.step()
    if kind == "score":
        sequence = ScoredSequence(token_ids=LONG, loss_mask=[0] + [1] * 74)
        engine.submit(ScoreRequest(id="r", base_model="tiny", adapter=None, sequences=[sequence]))
    else:
        engine.submit(embed("r", [LONG]))
    steps = 0
    while "r" in engine.request_ids:
        out = engine.step()
        steps += 1
        assert [type(event) for event in out["decodes"]] == [TextEvent]
        assert out["r"], "every slice is a sign of life"
    assert steps == 8
    assert max(lengths) <= 10


def test_readers_take_turns(harness: Harnesses) -> None:
    engine = harness(read_tokens=10).engine
    engine.submit(embed("long", [LONG] * 3))
    engine.submit(embed("short", [[1, 2]]))
    assert set(engine.step()) == {"long", "short"}  # both are accepted, the first is read
    assert isinstance(engine.step()["short"][-1], DoneEvent)


def test_chunked_scores_equal_those_of_one_pass(harness: Harnesses) -> None:
    masks = [[0, *(int(t % 3 != 0) for t in range(1, len(ids)))] for ids in SEQUENCES]
    sequences = [ScoredSequence(token_ids=ids, loss_mask=m) for ids, m in zip(SEQUENCES, masks, strict=True)]
    request = ScoreRequest(id="r", base_model="tiny", adapter=ref("v2"), sequences=sequences)
    whole = harness(read_tokens=512).run(request)["r"]
    pieces = harness(read_tokens=10).run(request)["r"]
    assert isinstance(whole[-1], ScoreEvent)
    assert isinstance(pieces[-1], ScoreEvent)
    assert pieces[-1].tokens == whole[-1].tokens == sum(map(sum, masks))
    assert pieces[-1].nll == pytest.approx(whole[-1].nll, rel=1e-5)
    assert [type(event) for event in pieces[:-1]] == [AcceptedEvent] * (len(pieces) - 1)


def test_empty_sequences_are_refused_before_they_reach_a_batch(harness: Harnesses) -> None:
    empty = ScoredSequence(token_ids=[], loss_mask=[])
    score = ScoreRequest(id="score", base_model="tiny", adapter=None, sequences=[empty])
    events = harness().run(embed("embed", [[1], []]), score, generate("good", [1]))
    for name in ("embed", "score"):
        (error,) = events[name]
        assert isinstance(error, ErrorEvent)
        assert (error.status, error.code) == (400, "empty_sequence")
    assert isinstance(events["good"][-1], DoneEvent)


def test_windows_cover_every_token_once_and_keep_their_size() -> None:
    lengths = [3, 4, 5, 21, 10, 1, 1]
    windows = list(spans_of(lengths, 10))
    assert windows[:4] == [[Span(0, 0, 3), Span(1, 0, 4)], [Span(2, 0, 5)], [Span(3, 0, 10)], [Span(3, 10, 20)]]
    for number, length in enumerate(lengths):
        spans = [span for window in windows for span in window if span.sequence == number]
        assert [t for span in spans for t in range(span.start, span.stop)] == list(range(length))
    assert all(sum(span.stop - span.start for span in window) <= 10 for window in windows)
