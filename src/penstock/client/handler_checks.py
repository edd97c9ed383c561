"""Which functions can be handlers, and what they may return."""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Final


def is_coroutine_function(handler: Callable[..., object]) -> bool:
    """Also for callable objects and functools.partial."""
    return any(inspect.iscoroutinefunction(one) for one in _bodies(handler))


def discarded(result: object) -> TypeError | None:
    """An error if the handler returned a coroutine or generator, of which nothing has run. Closes it."""
    if isinstance(result, Coroutine):
        result.close()
        return TypeError(f"the handler returned a coroutine, which Client does not await: {USE_ASYNC}")
    if inspect.isawaitable(result):
        return TypeError(f"the handler returned {result!r}, which Client does not await: {USE_ASYNC}")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return TypeError("the handler returned a generator, of which nothing has run: it must not yield")
    return None


USE_ASYNC: Final = "use penstock.client.AsyncClient for coroutines"


def _bodies(handler: Callable[..., object]) -> tuple[Callable[..., object], ...]:
    """The function that runs when it is called: itself, or its `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler, type(handler).__call__


def check_handler(handler: Callable[..., object], may_await: bool) -> None:
    """TypeError for a handler that would never run although its jobs would be acked."""
    if not callable(handler):
        raise TypeError(f"{handler!r} is not a handler: expected a function that takes a job")
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in _bodies(handler)):
        raise TypeError(f"{handler!r} is a generator function, of which nothing would run: it must not yield")
    if not may_await and is_coroutine_function(handler):
        raise TypeError(f"{handler!r} is a coroutine function, which Client cannot await: {USE_ASYNC}")
