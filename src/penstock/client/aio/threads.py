"""Blocking calls of an asyncio client, each in a daemon thread of its own.

asyncio's own pool has few threads, and a process waits for them at its end. A handler that hangs, or a search for
brokers that are away, would take one of the few and keep the process alive.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

R = TypeVar("R")


def _ignore(*_facts: object) -> None:
    pass


async def call_in_thread(
    function: Callable[..., R],
    *args: Any,
    name: str = "penstock-call",
    on_abandon: Callable[[], None] = _ignore,
    on_late: Callable[[object], None] = _ignore,
) -> R:
    """Its result, or its exception. If the caller is cancelled, the thread goes on: `on_abandon` is called then, and
    `on_late`, with the result, when the thread has ended. Both are called on the event loop."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = copy_context()

    def report(result: Any, problem: BaseException | None) -> None:
        if outcome.done():
            on_late(result)
        else:
            outcome.set_result((result, problem))

    def call() -> None:
        result: Any = None
        problem: BaseException | None = None
        try:
            result = context.run(function, *args)
        except BaseException as raised:  # noqa: BLE001 - raised below, on the loop
            problem = raised
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(report, result, problem)

    threading.Thread(target=call, name=name, daemon=True).start()
    try:
        result, problem = await outcome
    finally:
        if outcome.cancelled():
            on_abandon()
    if problem is not None:
        raise problem
    returned: R = result
    return returned
