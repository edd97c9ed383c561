"""The handlers of a clique, as its decorators register them."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.client.arguments import Seconds, as_bytes, as_seconds
from penstock.client.handler_checks import check_handler, is_coroutine_function
from penstock.client.retry_policy import WorkerPolicy
from penstock.clique.codecs import Codec, check_codec
from penstock.clique.errors import CliqueError
from penstock.clique.limits import STREAMS_MAX
from penstock.clique.message import Message
from penstock.clique.names import checked_stream

Function = TypeVar("Function", bound=Callable[..., object])
KeyFunction = Callable[[Message], bytes | str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Handler:
    """A function, and the stream whose messages or requests it gets."""

    stream: str
    function: Callable[..., Any]
    is_responder: bool
    key: KeyFunction | None
    codec: Codec | None
    policy: WorkerPolicy
    timeout_s: float | None
    is_coroutine: bool
    """Otherwise the function runs in a thread."""

    def key_of(self, message: Message) -> bytes | None:
        """The key that decides on the owner. Raises anything that the application's function raises."""
        return message.key if self.key is None else as_bytes("key", self.key(message))


class HandlerTable:
    """All handlers of one clique."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._responders: dict[str, Handler] = {}
        self.on_acquire: list[Callable[..., Any]] = []
        self.on_release: list[Callable[..., Any]] = []

    def add(self, handler: Handler) -> None:
        table = self._responders if handler.is_responder else self._handlers
        if handler.stream in table:
            kind = "responder" if handler.is_responder else "handler"
            raise ValueError(f"the clique has a {kind} for {handler.stream!r} already")
        table[handler.stream] = handler
        if len(self.streams) > STREAMS_MAX:
            raise CliqueError(f"more than {STREAMS_MAX} streams (limits.STREAMS_MAX): use another clique")

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(sorted({*self._handlers, *self._responders}))

    def handler_of(self, stream: str, *, is_request: bool) -> Handler | None:
        """The function for a message or a request. A message that is no request goes to the responder, and its result
        nowhere, if the stream has no handler."""
        if is_request:
            return self._responders.get(stream)
        return self._handlers.get(stream) or self._responders.get(stream)

    def has_key_function(self, stream: str) -> bool:
        """Whether a message may belong to another key than its own."""
        found = [table[stream] for table in (self._handlers, self._responders) if stream in table]
        return any(handler.key is not None for handler in found)

    def codec_of(self, stream: str) -> Codec | None:
        found = [table[stream].codec for table in (self._handlers, self._responders) if stream in table]
        return next((codec for codec in found if codec is not None), None)


NO_TIMEOUT_IN_THREADS: Final = (
    "a thread cannot be interrupted, and would go on working on a key that has another owner by then: use a coroutine "
    "function, or a timeout inside the handler"
)


def new_handler(
    stream: str,
    function: Callable[..., Any],
    *,
    is_responder: bool,
    key: KeyFunction | None,
    codec: Codec | None,
    policy: WorkerPolicy,
    timeout: Seconds | None,
) -> Handler:
    """Raises TypeError or ValueError, which name the argument."""
    check_handler(function, may_await=True)
    _check_arguments(function, ("message", "slot"))
    timeout_s = None if timeout is None else as_seconds("timeout", timeout)
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout={timeout!r}: expected more than 0 seconds, or None")
    if timeout_s is not None and not is_coroutine_function(function):
        raise TypeError(f"timeout={timeout!r} of {function!r}: {NO_TIMEOUT_IN_THREADS}")
    check_codec(codec)
    if key is not None and not callable(key):
        raise TypeError(f"key={key!r}: expected a function of the message, or None for the message's own key")
    return Handler(
        stream=checked_stream(stream),
        function=function,
        is_responder=is_responder,
        key=key,
        codec=codec,
        policy=policy,
        timeout_s=timeout_s,
        is_coroutine=is_coroutine_function(function),
    )


def check_callback(function: Callable[..., Any]) -> None:
    """For on_acquire and on_release."""
    check_handler(function, may_await=True)
    _check_arguments(function, ("slots",))


def _check_arguments(function: Callable[..., Any], names: Sequence[str]) -> None:
    """TypeError at the decorator instead of a failure of every message."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin
    try:
        signature.bind(*names)
    except TypeError as problem:
        expected = ", ".join(names)
        raise TypeError(f"{function!r} is called with ({expected}): {problem}") from None
