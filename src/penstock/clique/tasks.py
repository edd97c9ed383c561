"""Ends tasks for certain."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

AGAIN_SECONDS: Final = 0.1


async def end_tasks(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancels them until they have ended, whatever they raise. Once is not enough: asyncio.wait_for of Python 3.11,
    which nats-py uses, swallows a cancellation that comes together with the result."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _done, running = await asyncio.wait(running, timeout=AGAIN_SECONDS)
