"""Requests that only read their tokens: scoring and embedding, one bounded slice after the other.

Knows the model and one request; knows nothing of the batch that decodes beside it.
"""

from typing import Protocol

from app.contracts.inference import (
    AcceptedEvent,
    DoneEvent,
    EmbedEvent,
    EmbedRequest,
    InferenceEvent,
    InferenceRequest,
    ScoreEvent,
    ScoreRequest,
)
from workers.models.language_model import LanguageModel
from workers.models.pooling import embeddings_by_window
from workers.models.scoring import scores_by_window
from workers.models.windows import spans_of


class Reading(Protocol):
    """A running request that is read slice by slice."""

    @property
    def request(self) -> InferenceRequest:
        """What was asked for."""
        ...

    def advance(self) -> tuple[list[InferenceEvent], bool]:
        """Read one slice; return its events, at least a sign of life, and whether the request has ended."""
        ...


class Scoring:
    """A running ScoreRequest."""

    def __init__(self, request: ScoreRequest, model: LanguageModel, slot: int, tokens: int) -> None:
        """A slice has up to `tokens` tokens."""
        self.request = request
        sequences = [(sequence.token_ids, sequence.loss_mask) for sequence in request.sequences]
        self._scores = scores_by_window(model, sequences, slot, tokens)
        self._left = len(list(spans_of([len(ids) for ids, _ in sequences], tokens)))
        self._nll, self._tokens = 0.0, 0

    def advance(self) -> tuple[list[InferenceEvent], bool]:
        """Read one slice."""
        nll, tokens = next(self._scores)
        self._nll += nll
        self._tokens += tokens
        self._left -= 1
        if not self._left:
            return [ScoreEvent(nll=self._nll, tokens=self._tokens)], True
        return [AcceptedEvent()], False


class Embedding:
    """A running EmbedRequest."""

    def __init__(self, request: EmbedRequest, model: LanguageModel, slot: int, tokens: int) -> None:
        """A slice has up to `tokens` tokens."""
        self.request = request
        self._vectors = embeddings_by_window(model, request.sequences, slot, tokens)
        self._left = len(request.sequences)

    def advance(self) -> tuple[list[InferenceEvent], bool]:
        """Read one slice."""
        ended = next(self._vectors)
        self._left -= len(ended)
        events: list[InferenceEvent] = [
            EmbedEvent(index=number, vector=vector_D.tolist()) for number, vector_D in ended
        ]
        if not self._left:
            tokens = sum(len(ids) for ids in self.request.sequences)
            return [*events, DoneEvent(prompt_tokens=tokens, completion_tokens=0)], True
        return events or [AcceptedEvent()], False


def open_reading(request: ScoreRequest | EmbedRequest, model: LanguageModel, slot: int, tokens: int) -> Reading:
    """Return the running request; a slice of it has up to `tokens` tokens."""
    if isinstance(request, ScoreRequest):
        return Scoring(request, model, slot, tokens)
    return Embedding(request, model, slot, tokens)
