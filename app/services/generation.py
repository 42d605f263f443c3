"""Generations as the client will see them: choices numbered across prompts, deltas while they come, or the whole.

Knows events and choices; the wire forms of chat and completions are made by the edge.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from redis.asyncio import Redis as AsyncRedis

from app.contracts.inference import (
    DoneEvent,
    FinishEvent,
    InferenceEvent,
    PromptEvent,
    TextEvent,
    TokenLogprob,
)
from app.services.inference import merged_events, submit
from app.services.prompts import PreparedGeneration


@dataclass(frozen=True)
class Delta:
    """What is new of one choice; `prompt` marks the echoed prompt's own log-probabilities."""

    index: int
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    prompt: bool = False


@dataclass
class Usage:
    """Tokens of all prompts and of all choices; grows while requests end."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def as_object(self) -> dict[str, object]:
        """Return OpenAI's usage object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass
class Choice:
    """A finished choice."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str = "stop"


async def deltas(
    client: AsyncRedis, prepared: PreparedGeneration, usage: Usage, *, silence: float
) -> AsyncGenerator[Delta | None, None]:
    """Yield what is new as submitted requests run, and before it None: a worker has taken one. Adds up `usage`."""
    ids = [request.id for request in prepared.requests]
    taken = False
    async with aclosing(merged_events(client, ids, silence=silence)) as events:
        async for position, event in events:
            if not taken:
                taken = True
                yield None
            for delta in _deltas_of(event, position, prepared.requests[position].sampling.n, usage):
                yield delta


async def generate(
    client: AsyncRedis, prepared: PreparedGeneration, *, silence: float, limit: int
) -> tuple[list[Choice], Usage]:
    """Submit the requests and return their finished choices. Raises ServiceError."""
    await submit(client, prepared.requests, limit=limit)
    choices = [Choice() for request in prepared.requests for _ in range(request.sampling.n)]
    usage = Usage()
    async with aclosing(deltas(client, prepared, usage, silence=silence)) as stream:
        async for delta in stream:
            if delta is not None:
                _add(choices[delta.index], delta)
    return choices, usage


async def start_stream(
    client: AsyncRedis, prepared: PreparedGeneration, usage: Usage, *, silence: float, limit: int
) -> AsyncGenerator[Delta | None, None]:
    """Submit the requests, wait until a worker has taken one, and return the deltas, which the caller must close.

    What fails before that raises ServiceError here, while a status can still be sent. The generator is handed over
    running and never wrapped: closing one that has not begun runs no line of it, and so would abort nothing.
    """
    await submit(client, prepared.requests, limit=limit)
    stream = deltas(client, prepared, usage, silence=silence)
    await anext(stream, None)
    return stream


def _deltas_of(event: InferenceEvent, position: int, n: int, usage: Usage) -> list[Delta]:
    first = position * n
    match event:
        case PromptEvent():
            return [Delta(first + i, logprobs=event.logprobs, prompt=True) for i in range(n)]
        case TextEvent():
            return [Delta(first + event.index, text=event.text, logprobs=event.logprobs)]
        case FinishEvent():
            return [Delta(first + event.index, finish_reason=event.reason)]
        case DoneEvent():
            usage.prompt_tokens += event.prompt_tokens
            usage.completion_tokens += event.completion_tokens
            usage.cached_tokens += event.cached_tokens
    return []


def _add(choice: Choice, delta: Delta) -> None:
    if delta.prompt:
        choice.prompt_logprobs = delta.logprobs
    else:
        choice.text += delta.text
        choice.logprobs += delta.logprobs
    choice.finish_reason = delta.finish_reason or choice.finish_reason
