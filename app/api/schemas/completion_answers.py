"""Answers of the two completion routes, whole and in chunks, in OpenAI's exact forms."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from app.contracts.inference import TokenLogprob
from app.services.generation import Choice, Delta, Usage


@dataclass(frozen=True)
class ChatAnswer:
    """Makes the answer to one chat request. `usage_wanted` gives every chunk a usage field, null until the last."""

    model: str
    usage_wanted: bool = False
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Choice], usage: Usage, *, logprobs: bool) -> dict[str, Any]:
        """Return the object of a finished generation."""
        shaped = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": {"content": [_chat_token(t) for t in choice.logprobs], "refusal": None}
                if logprobs
                else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return {**self._head("chat.completion"), "choices": shaped, "usage": usage.as_object()}

    def opening(self, index: int) -> dict[str, Any]:
        """Return the chunk that says who speaks."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, delta: Delta) -> dict[str, Any] | None:
        """Return the chunk of a delta, or None when it carries nothing to show."""
        if delta.finish_reason:
            return self._chunk(delta.index, {}, None, delta.finish_reason)
        if delta.prompt or not (delta.text or delta.logprobs):
            return None
        logprobs = {"content": [_chat_token(t) for t in delta.logprobs], "refusal": None} if delta.logprobs else None
        return self._chunk(delta.index, {"content": delta.text}, logprobs, None)

    def closing(self, usage: Usage) -> dict[str, Any]:
        """Return the last chunk: no choices, the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage.as_object()}

    def _chunk(self, index: int, delta: dict[str, str], logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        usage = {"usage": None} if self.usage_wanted else {}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True)
class CompletionAnswer:
    """Makes the answer to one completion request. `prompts` are echoed before the text; empty where no echo is wanted.

    `offsets` remembers how many characters of each choice have been sent, for `text_offset`.
    """

    model: str
    n: int
    prompts: Sequence[str]
    logprobs: bool
    usage_wanted: bool = False
    id: str = field(default_factory=lambda: f"cmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    offsets: dict[int, int] = field(default_factory=dict)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """Return the object of a finished generation."""
        shaped = [
            {
                "index": index,
                "text": self.echo(index) + choice.text,
                "logprobs": self._logprobs(index, choice.prompt_logprobs + choice.logprobs),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ]
        return {**self._head(), "choices": shaped, "usage": usage.as_object()}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the chunk that echoes a prompt, unless its log-probabilities will come with it."""
        echo = self.echo(index)
        return self._chunk(index, echo, None, None) if echo and not self.logprobs else None

    def chunk(self, delta: Delta) -> dict[str, Any] | None:
        """Return the chunk of a delta, or None when it carries nothing to show."""
        if delta.finish_reason:
            return self._chunk(delta.index, "", None, delta.finish_reason)
        text = self.echo(delta.index) if delta.prompt else delta.text
        if not (text or delta.logprobs):
            return None
        logprobs = self._logprobs(delta.index, delta.logprobs) if delta.logprobs else None
        return self._chunk(delta.index, text, logprobs, None)

    def closing(self, usage: Usage) -> dict[str, Any]:
        """Return the last chunk: no choices, the usage."""
        return {**self._head(), "choices": [], "usage": usage.as_object()}

    def echo(self, index: int) -> str:
        """Return the prompt to put before a choice."""
        return self.prompts[index // self.n] if self.prompts else ""

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, list[Any]] | None:
        if not self.logprobs:
            return None
        offsets, offset = [], self.offsets.get(index, 0)
        for token in tokens:
            offsets.append(offset)
            offset += len(token.token)
        self.offsets[index] = offset
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_alternatives(token) for token in tokens],
            "text_offset": offsets,
        }

    def _chunk(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        usage = {"usage": None} if self.usage_wanted else {}
        return {**self._head(), "choices": [choice], **usage}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    top = [{"token": text, "logprob": value, "bytes": _bytes(text)} for _, text, value in token.top]
    return {"token": token.token, "logprob": token.logprob, "bytes": _bytes(token.token), "top_logprobs": top}


def _bytes(token: str) -> list[int] | None:
    """The token's bytes; None for one that is part of a character, whose text does not tell them."""
    return None if "\ufffd" in token else list(token.encode())


def _alternatives(token: TokenLogprob) -> dict[str, float] | None:
    """The best tokens by text, and the one that was drawn, as OpenAI adds it."""
    if token.logprob is None:
        return None
    alternatives: dict[str, float] = {}
    for _, text, value in token.top:
        alternatives.setdefault(text, value)
    alternatives.setdefault(token.token, token.logprob)
    return alternatives
