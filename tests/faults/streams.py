"""Inference requests as the service sends them, and their events as it reads them."""

import asyncio

from app.bus.connection import connect_async
from app.bus.inference_requests import submit
from app.bus.token_streams import events
from app.contracts.adapters import AdapterRef
from app.contracts.inference import GenerateRequest, InferenceEvent, InferenceRequest, SamplingParams, TextEvent
from app.db.tables import AdapterVersion

SILENCE = 60.0


def stream(request_id: str, *, tokens: int, n: int = 1, version: AdapterVersion | None = None) -> GenerateRequest:
    """Return a sampled request of `tokens` tokens, on the base or on a version."""
    return GenerateRequest(
        id=request_id,
        tenant_id="tnt-1" if version is None else version.tenant_id,
        base_model="tiny",
        adapter=None
        if version is None
        else AdapterRef(
            tenant_id=version.tenant_id,
            adapter_id=version.adapter_id,
            version_id=version.id,
            weights_id=version.weights_id,
            config=version.config,
        ),
        prompt_token_ids=[40, 41, 42],
        sampling=SamplingParams(
            max_tokens=tokens, temperature=1, top_p=1, top_k=0, seed=1, n=n, stop=[], presence_penalty=0,
            frequency_penalty=0, logprobs=None, prompt_logprobs=False,
        ),
    )  # fmt: skip


def send(url: str, request: InferenceRequest) -> None:
    """Queue a request."""

    async def run() -> None:
        async with connect_async(url) as r:
            await submit(r, request, limit=100)

    asyncio.run(run())


def read(url: str, request_id: str) -> list[InferenceEvent]:
    """Return the request's events up to its terminal one."""

    async def run() -> list[InferenceEvent]:
        async with connect_async(url) as r:
            return [event async for event in events(r, request_id, SILENCE)]

    return asyncio.run(run())


def read_first_text(url: str, request_id: str) -> TextEvent:
    """Wait for the request's first text."""

    async def run() -> TextEvent:
        async with connect_async(url) as r:
            async for event in events(r, request_id, SILENCE):
                if isinstance(event, TextEvent):
                    return event
        raise AssertionError("the request ended without text")

    return asyncio.run(run())
