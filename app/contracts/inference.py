"""Requests the service sends to workers over the bus, and the events that come back.

The service renders and tokenises; a worker generates, detokenises and honours stop strings.
"""

from typing import Annotated, Literal

from pydantic import Field

from app.contracts.adapters import AdapterRef
from app.contracts.base import Contract


class SamplingParams(Contract):
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch those filters off."""

    max_tokens: int = Field(ge=0)
    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    seed: int
    n: int = Field(ge=1)
    stop: list[str]
    presence_penalty: float
    frequency_penalty: float
    logprobs: int | None
    """How many alternatives to report for each generated token; None reports no log-probabilities."""
    prompt_logprobs: bool
    """Report the prompt's own log-probabilities too (`echo` with `logprobs`)."""


class GenerateRequest(Contract):
    """Continue one prompt `sampling.n` times."""

    kind: Literal["generate"] = "generate"
    id: str
    tenant_id: str
    """Whose request it is, also on the bare base model: what a worker keeps of it serves nobody else."""
    base_model: str
    adapter: AdapterRef | None
    prompt_token_ids: list[int] = Field(min_length=1)
    sampling: SamplingParams


class ScoredSequence(Contract):
    """Token ids with a loss mask of the same length; position t counts if mask[t] is 1 (never position 0)."""

    token_ids: list[int]
    loss_mask: list[int]


class ScoreRequest(Contract):
    """Sum the negative log-likelihood over the masked positions of all sequences."""

    kind: Literal["score"] = "score"
    id: str
    base_model: str
    adapter: AdapterRef | None
    sequences: list[ScoredSequence] = Field(min_length=1)


class EmbedRequest(Contract):
    """Embed each sequence: the mean of its final hidden states, scaled to length 1."""

    kind: Literal["embed"] = "embed"
    id: str
    base_model: str
    adapter: AdapterRef | None
    sequences: list[list[int]] = Field(min_length=1)


InferenceRequest = Annotated[GenerateRequest | ScoreRequest | EmbedRequest, Field(discriminator="kind")]


class TokenLogprob(Contract):
    """One token, its log-probability under the model at temperature 1, and the best alternatives."""

    token_id: int
    token: str
    logprob: float | None
    """None for the first token of a prompt."""
    top: list[tuple[int, str, float]]
    """(token id, token text, log-probability), best first."""


class AcceptedEvent(Contract):
    """A worker has taken the request and pinned its adapter version."""

    type: Literal["accepted"] = "accepted"


class PromptEvent(Contract):
    """The prompt's own log-probabilities, sent once before the first token when asked for."""

    type: Literal["prompt"] = "prompt"
    logprobs: list[TokenLogprob]


class TextEvent(Contract):
    """New text of choice `index`; text may be empty while a stop string or a character is incomplete."""

    type: Literal["text"] = "text"
    index: int
    text: str
    logprobs: list[TokenLogprob]


class FinishEvent(Contract):
    """Choice `index` ended."""

    type: Literal["finish"] = "finish"
    index: int
    reason: Literal["stop", "length"]


class DoneEvent(Contract):
    """The request ended well; nothing follows."""

    type: Literal["done"] = "done"
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that were not computed, because an earlier request's state held them."""


class ScoreEvent(Contract):
    """The result of a ScoreRequest; nothing follows. `nll` is a sum in nats over `tokens` positions."""

    type: Literal["score"] = "score"
    nll: float
    tokens: int


class EmbedEvent(Contract):
    """The embedding of sequence `index` of an EmbedRequest; a DoneEvent follows the last."""

    type: Literal["embedding"] = "embedding"
    index: int
    vector: list[float]


class ErrorEvent(Contract):
    """The request failed; nothing follows. `status` is the HTTP status the client should see."""

    type: Literal["error"] = "error"
    status: int
    code: str
    message: str


InferenceEvent = Annotated[
    AcceptedEvent | PromptEvent | TextEvent | FinishEvent | DoneEvent | ScoreEvent | EmbedEvent | ErrorEvent,
    Field(discriminator="type"),
]
TERMINAL_EVENTS = (DoneEvent, ScoreEvent, ErrorEvent)
