"""A stream lets go of its source however it ends: only so is an abandoned generation aborted at once."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from app.api.schemas.completion_answers import ChatAnswer
from app.api.streaming import event_stream
from app.services.generation import Delta, Usage


@pytest.mark.parametrize("sent_before", [0, 1, 2])
def test_a_broken_connection_closes_the_source(sent_before: int) -> None:
    closed = []

    async def source() -> AsyncGenerator[Delta | None, None]:
        try:
            yield None
            yield Delta(0, text="a")
        finally:
            closed.append(True)

    async def break_off() -> None:
        deltas = source()
        await anext(deltas)
        messages: list[Message] = []

        async def send(message: Message) -> None:
            if len(messages) == sent_before:
                raise ConnectionResetError
            messages.append(message)

        stream = event_stream(ChatAnswer("base"), deltas, Usage(), choices=1)
        with pytest.raises(ConnectionResetError):
            await stream.stream_response(send)
        assert len(messages) == sent_before
        assert closed == [True]

    asyncio.run(break_off())
