"""Bodies of the two completion routes. Every field of OpenAI's is known: used, harmless, or refused by name."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from app.api.schemas.common import RequestBody, Text, only
from app.api.schemas.fine_tuning import ModelName
from app.api.schemas.text_or_tokens import one_or_several
from app.services.prompts import Sampling

MAX_CHOICES = 16
MAX_PROMPTS = 128
COMPLETION_TOKENS = 16
"""OpenAI's default for completions; chat has no limit there, and the rest of the context, capped, here."""


def _as_tuple(stop: Any) -> Any:
    return (stop,) if isinstance(stop, str) else () if stop is None else tuple(stop) if isinstance(stop, list) else stop


def _text_of(content: Any) -> Any:
    """Return a message's content as one string; parts of another type than text are refused by their type."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise PydanticCustomError("unsupported_parameter", "content part {kind} is not supported", {"kind": kind})
        texts.append(part["text"])
    return "".join(texts)


def _role(role: Any) -> Any:
    if role in ("tool", "function"):
        raise PydanticCustomError("unsupported_parameter", "tools are not supported")
    return "system" if role == "developer" else role


class StreamOptions(RequestBody):
    """What a stream carries besides its deltas."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class Message(RequestBody):
    """One turn of a conversation."""

    role: Annotated[Literal["system", "user", "assistant"], BeforeValidator(_role)]
    content: Annotated[Text, BeforeValidator(_text_of)]
    name: Annotated[Any, only()] = None
    refusal: Annotated[Any, only()] = None
    audio: Annotated[Any, only()] = None
    annotations: Annotated[Any, only([])] = None
    tool_calls: Annotated[Any, only([])] = None
    function_call: Annotated[Any, only()] = None


class GenerationBody(RequestBody):
    """What both routes share."""

    model: ModelName
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1)], ...], Field(max_length=4), BeforeValidator(_as_tuple)
    ] = ()
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logit_bias: Annotated[dict[str, float] | None, only({})] = None
    user: Any = None

    def include_usage(self) -> bool:
        """Say whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_with(self, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: bool = False) -> Sampling:
        """Return the sampling wishes with OpenAI's defaults filled in."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            seed=self.seed,
            n=self.n or 1,
            stop=list(self.stop),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    parallel_tool_calls: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None

    audio: Annotated[Any, only()] = None
    function_call: Annotated[Any, only("none", "auto")] = None
    functions: Annotated[Any, only([])] = None
    modalities: Annotated[Any, only(["text"])] = None
    moderation: Annotated[Any, only()] = None
    prediction: Annotated[Any, only()] = None
    reasoning_effort: Annotated[Any, only("none")] = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None
    tools: Annotated[Any, only([])] = None
    verbosity: Annotated[Any, only("medium")] = None
    web_search_options: Annotated[Any, only()] = None

    @field_validator("top_logprobs")
    @classmethod
    def _alternatives_need_logprobs(cls, top_logprobs: int | None, info: ValidationInfo) -> int | None:
        if top_logprobs and not info.data.get("logprobs"):
            raise ValueError("needs logprobs to be true")
        return top_logprobs

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_limit(cls, max_completion_tokens: int | None, info: ValidationInfo) -> int | None:
        max_tokens = info.data.get("max_tokens")
        if max_tokens is not None and max_completion_tokens not in (None, max_tokens):
            raise ValueError("contradicts max_tokens; give one of them")
        return max_completion_tokens

    def sampling(self) -> Sampling:
        """Return how tokens are to be drawn."""
        wanted = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        return self.sampling_with(max_tokens=wanted, logprobs=(self.top_logprobs or 0) if self.logprobs else None)


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[list[Text] | list[list[int]], one_or_several(MAX_PROMPTS)]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None
    suffix: Annotated[str | None, only("")] = None

    @field_validator("best_of")
    @classmethod
    def _no_hidden_candidates(cls, best_of: int | None, info: ValidationInfo) -> int | None:
        if best_of not in (None, info.data.get("n") or 1):
            raise PydanticCustomError("unsupported_parameter", "other than n is not supported")
        return best_of

    @field_validator("prompt")
    @classmethod
    def _bounded(cls, prompt: list[str] | list[list[int]], info: ValidationInfo) -> list[str] | list[list[int]]:
        if len(prompt) * (info.data.get("n") or 1) > MAX_PROMPTS:
            raise ValueError(f"expected at most {MAX_PROMPTS} choices in all, prompts times n")
        return prompt

    def sampling(self) -> Sampling:
        """Return how tokens are to be drawn."""
        wanted = COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        echoed = bool(self.echo) and self.logprobs is not None
        return self.sampling_with(max_tokens=wanted, logprobs=self.logprobs, prompt_logprobs=echoed)
