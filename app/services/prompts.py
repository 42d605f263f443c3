"""A client's prompt as a request for the workers: model resolved once, text tokenised, context length checked.

Nothing here waits: it runs in a thread with a session, and what it returns pins the adapter version.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.contracts.base_models import BaseModelInfo
from app.contracts.inference import GenerateRequest, SamplingParams
from app.core.errors import InvalidRequestError
from app.core.ids import new_id
from app.services.model_names import ResolvedModel, resolve_model
from app.services.token_ids import known
from app.text.chat_template import ChatTemplateError
from app.text.tokenize import tokenize_prompt
from app.text.tokenizer import tokenizer_for

DEFAULT_CHAT_TOKENS = 512


@dataclass(frozen=True)
class Sampling:
    """How a client wants tokens drawn. `max_tokens` None means what is left of the context, up to a cap."""

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    n: int
    stop: list[str]
    presence_penalty: float
    frequency_penalty: float
    logprobs: int | None
    prompt_logprobs: bool = False


@dataclass(frozen=True)
class PreparedGeneration:
    """Requests ready to be submitted, one per prompt, and the prompts' texts where they will be echoed."""

    model: str
    requests: list[GenerateRequest]
    prompt_texts: list[str]


def prepare_chat(
    session: Session, tenant_id: str, model: str, messages: list[dict[str, str]], sampling: Sampling
) -> PreparedGeneration:
    """Return the request for the assistant's next turn. Raises ServiceError naming the field at fault."""
    resolved = resolve_model(session, tenant_id, model)
    try:
        token_ids = tokenize_prompt(resolved.info, messages)
    except ChatTemplateError as error:
        raise InvalidRequestError(f"messages: {error}", code="chat_template_error", param="messages") from error
    request = _request(tenant_id, resolved, token_ids, sampling, param="messages")
    return PreparedGeneration(resolved.name, [request], [])


def prepare_completions(
    session: Session, tenant_id: str, model: str, prompts: Sequence[str | list[int]], sampling: Sampling, *, echo: bool
) -> PreparedGeneration:
    """Return one request per prompt. Raises ServiceError naming the field at fault."""
    resolved = resolve_model(session, tenant_id, model)
    tokenizer = tokenizer_for(resolved.info)
    requests, texts = [], []
    for position, prompt in enumerate(prompts):
        param = "prompt" if len(prompts) == 1 else f"prompt[{position}]"
        token_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else known(resolved.info, prompt, param=param)
        token_ids = token_ids or _start(resolved.info, param)
        requests.append(_request(tenant_id, resolved, token_ids, sampling, param=param))
        if echo:
            texts.append(prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=False))
    return PreparedGeneration(resolved.name, requests, texts)


def _start(info: BaseModelInfo, param: str) -> list[int]:
    """An empty prompt starts where a document does."""
    starts = [info.bos_token_id] if info.bos_token_id is not None else info.eos_token_ids[:1]
    if not starts:
        raise InvalidRequestError(f"{param}: expected at least one token", code="invalid_value", param=param)
    return starts


def _request(
    tenant_id: str, resolved: ResolvedModel, token_ids: list[int], sampling: Sampling, *, param: str
) -> GenerateRequest:
    info = resolved.info
    left = info.context_length - len(token_ids)
    wanted = min(left, DEFAULT_CHAT_TOKENS) if sampling.max_tokens is None else sampling.max_tokens
    if left < max(wanted, 1 if sampling.max_tokens is None else 0):
        raise InvalidRequestError(
            f"{param}: {len(token_ids)} tokens with {max(wanted, 1)} to generate exceed the context of {info.id}, "
            f"{info.context_length} tokens",
            code="context_length_exceeded",
            param=param,
        )
    return GenerateRequest(
        id=new_id("req"),
        tenant_id=tenant_id,
        base_model=info.id,
        adapter=resolved.ref,
        prompt_token_ids=token_ids,
        sampling=SamplingParams(
            max_tokens=wanted,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=secrets.randbelow(2**31) if sampling.seed is None else sampling.seed,
            n=sampling.n,
            stop=sampling.stop,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logprobs=sampling.logprobs,
            prompt_logprobs=sampling.prompt_logprobs,
        ),
    )
