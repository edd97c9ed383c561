"""The decorators of a clique, the same for `Clique` and `BlockingClique`."""

import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict, Unpack

from penstock.client.arguments import Headers, Seconds, Text, Unset, as_bytes, as_seconds, payload
from penstock.client.retry_policy import WorkerPolicy
from penstock.clique.codecs import Codec
from penstock.clique.errors import CliqueError
from penstock.clique.handlers import Function, HandlerTable, KeyFunction, check_callback, new_handler
from penstock.clique.message import Message, MessageHeaders
from penstock.clique.names import checked_stream

DEFAULT_MAX_ATTEMPTS: Final = 5
"""As often as queues deliver a job by default."""


class RetryOptions(TypedDict, total=False):
    """How often, and how soon, a message whose handler has raised is tried again: the same settings as workers of
    queues have."""

    max_attempts: int | None
    """After so many it is a dead letter (5); None: it is tried for ever."""
    backoff: Seconds
    """The delay after the first attempt (1 second)."""
    backoff_factor: float
    """How many times as long the delay is after each further one (2)."""
    max_backoff: Seconds
    """The longest delay (5 minutes)."""
    jitter: float
    """The largest part of a delay that is cut off at random (0.2)."""


def retry_policy(options: RetryOptions) -> WorkerPolicy:
    """Raises TypeError or ValueError, which name the option."""
    known = RetryOptions.__annotations__.keys()
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"{unknown[0]}=...: there is no such option; those of retries are {', '.join(known)}")
    return WorkerPolicy(
        max_attempts=options.get("max_attempts", DEFAULT_MAX_ATTEMPTS),
        backoff_s=as_seconds("backoff", options.get("backoff", 1.0)),
        backoff_factor=options.get("backoff_factor", 2.0),
        max_backoff_s=as_seconds("max_backoff", options.get("max_backoff", 300.0)),
        jitter=options.get("jitter", 0.2),
    )


class Registration:
    """`handler`, `responder`, `on_acquire` and `on_release`. All of them must be called before the clique is
    started."""

    def __init__(self, retries: RetryOptions, handlers: HandlerTable) -> None:
        retry_policy(retries)  # raises for wrong values
        self._retries = retries
        self._handlers = handlers
        self._is_started = False

    def handler(
        self,
        stream: str,
        *,
        key: KeyFunction | None = None,
        codec: Codec | None = None,
        timeout: Seconds | None = None,
        **retries: Unpack[RetryOptions],
    ) -> Callable[[Function], Function]:
        """Registers the function that handles the messages of a stream. It is called with the message and the slot of
        its key; for one key at a time, in order, in the one worker that owns the key. The message is acknowledged when
        it returns. If it raises, it is called again after a backoff, while later messages of the key wait, and finally
        the message goes to the dead letters; Retry and Reject say so explicitly.

        `key`: computes the key from the message, if it is not the message's own key. `codec`: of this stream, instead
        of the clique's. `timeout`: a coroutine that takes longer is cancelled and has failed.

        A function that is not a coroutine function runs in a thread.
        """
        return self._register(stream, False, key, codec, timeout, retries)

    def responder(
        self,
        stream: str,
        *,
        key: KeyFunction | None = None,
        codec: Codec | None = None,
        timeout: Seconds | None = None,
    ) -> Callable[[Function], Function]:
        """Registers the function that answers requests of a stream, in the worker that owns the key of the request. It
        returns bytes or text. It never runs at the same time as a handler of the same key, except if that handler has
        sent the request, directly or through others. If it raises, the sender of the request gets CallFailed, at once.
        """
        return self._register(stream, True, key, codec, timeout, {})

    def on_acquire(self, callback: Function) -> Function:
        """Registers a function that is called with the `Slots` that this worker gets, before any handler starts for
        them: the place to load state. If it raises, it is called again; the slots wait meanwhile."""
        return self._callback(self._handlers.on_acquire, callback)

    def on_release(self, callback: Function) -> Function:
        """Registers a function that is called with the `Slots` that this worker gives up, when no handler runs for
        them any more, before the next owner gets them: the place to save state. If `slots.lost`, the next owner may
        have them already: drop the state, and do not save it."""
        return self._callback(self._handlers.on_release, callback)

    def _register(
        self,
        stream: str,
        is_responder: bool,
        key: KeyFunction | None,
        codec: Codec | None,
        timeout: Seconds | None,
        retries: RetryOptions,
    ) -> Callable[[Function], Function]:
        self._check_not_started()
        checked_stream(stream)
        policy = retry_policy({**self._retries, **retries})

        def register(function: Function) -> Function:
            self._check_function(function)
            self._handlers.add(
                new_handler(
                    stream,
                    function,
                    is_responder=is_responder,
                    key=key,
                    codec=codec,
                    policy=policy,
                    timeout=timeout,
                )
            )
            return function

        return register

    def _callback(self, callbacks: list[Callable[..., Any]], callback: Function) -> Function:
        self._check_not_started()
        self._check_function(callback)
        check_callback(callback)
        callbacks.append(callback)
        return callback

    def _check_function(self, function: Callable[..., Any]) -> None:
        """Raises TypeError for a function that this kind of clique cannot call."""

    def _check_not_started(self) -> None:
        if self._is_started:
            raise CliqueError("the clique runs already: register all handlers before it is started")


def random_worker() -> str:
    """A name that says on which host it is, and that no other worker has."""
    host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname()[:60]) or "host"
    return f"{host}-{secrets.token_hex(4)}"


def outgoing(
    stream: str, value: Text | Unset | None, json: Any, key: Text | None, headers: Headers | None
) -> Message:
    """A message as people write it."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    made: MessageHeaders = tuple((name, as_bytes(f"headers[{name!r}]", one)) for name, one in pairs)
    return Message(
        stream=checked_stream(stream),
        value=payload(value, json),
        key=as_bytes("key", key),
        headers=made,
    )
