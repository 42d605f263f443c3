"""Runs the service's side of the bus in an event loop of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis.asyncio

from app.bus.connection import connect_async

T = TypeVar("T")


def run(url: str, scenario: Callable[[redis.asyncio.Redis], Awaitable[T]]) -> T:
    """Return what `scenario` returns for a connected client."""

    async def main() -> T:
        async with connect_async(url) as client:
            return await scenario(client)

    return asyncio.run(main())
