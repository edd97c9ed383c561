"""`BlockingClique`: the same as `Clique` for programs without an event loop.

    clique = BlockingClique("pricing", "penstock://127.0.0.1:9092", worker="w1")

    @clique.handler("orders")
    def price(message: Message, slot: Slot) -> None: ...      # in a thread, one for each key that has work

    with clique:
        clique.publish("orders", b"...", key=b"alice")
        answer = clique.request("quote", b"...", key=b"alice", timeout=2)

    clique.run()                                              # or: works until SIGTERM or Ctrl-C

It runs a `Clique` on an event loop in a thread of its own. Threads may share it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from contextvars import copy_context
from typing import Any, Self, TypeVar, Unpack

from penstock.client.arguments import UNSET, Headers, Seconds, Text, Unset
from penstock.client.handler_checks import is_coroutine_function
from penstock.client.signals import stopping_on_signals
from penstock.clique.carriers import Carrier
from penstock.clique.clique import (
    DEFAULT_CARRIER,
    GRACE_SECONDS,
    PUBLISH_SECONDS,
    REQUEST_SECONDS,
    Clique,
    CliqueOptions,
)
from penstock.clique.errors import CliqueError, Closed
from penstock.clique.guarantees import Guarantee
from penstock.clique.names import DEFAULT_CLIQUE
from penstock.clique.registration import Registration
from penstock.clique.status import CliqueStatus

T = TypeVar("T")


class BlockingClique(Registration):
    """A worker of a clique, whose handlers are plain functions and run in threads."""

    def __init__(
        self,
        name: str = DEFAULT_CLIQUE,
        carrier: Carrier = DEFAULT_CARRIER,
        **options: Unpack[CliqueOptions],
    ) -> None:
        """The arguments are those of `Clique`."""
        self._clique = Clique(name, carrier, **options)
        super().__init__(self._clique._retries, self._clique._handlers)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        return self._clique.name

    @property
    def worker(self) -> str:
        return self._clique.worker

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._clique)[1:]}"

    def _check_function(self, function: Callable[..., Any]) -> None:
        if is_coroutine_function(function):
            raise TypeError(f"{function!r} is a coroutine function: use Clique, or a plain function")

    # --- the start and the end

    def start(self) -> None:
        """Connects and joins. Returns when this worker is a member; it may own no slots yet."""
        if self._is_started:
            raise CliqueError(f"{self!r} was started before: make another one")
        self._is_started = True
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="penstock-clique-loop", daemon=True)
        self._thread.start()
        try:
            self._call(self._clique.start())
        except BaseException:
            self._end_loop()
            raise

    def close(self, *, grace: Seconds = GRACE_SECONDS) -> None:
        """Leaves: takes no more messages, waits for handlers that run, hands slots over, and disconnects. May be called
        again."""
        if self._loop is None or self._loop.is_closed():
            return
        try:
            self._call(self._clique.close(grace=grace))
        finally:
            self._end_loop()

    def run(self, *, grace: Seconds = GRACE_SECONDS, signals: bool = True) -> None:
        """Joins, works until `stop` is called, or SIGTERM or Ctrl-C comes, and leaves; a second signal ends the
        process at once. Raises the error that has ended the membership. `signals`: whether it takes them, which it can
        in the main thread only."""
        with stopping_on_signals(self.stop) if signals else nullcontext():
            self.start()
            try:
                self._call(self._clique.wait_until_stopped())
            finally:
                self.close(grace=grace)

    def stop(self) -> None:
        """Asks `run` to end, and returns at once. From any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._clique.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- messages

    def publish(
        self,
        stream: str,
        value: Text | Unset | None = UNSET,
        *,
        json: Any = UNSET,
        key: Text | None = None,
        headers: Headers | None = None,
        timeout: Seconds = PUBLISH_SECONDS,
    ) -> None:
        """Publishes to a stream: every clique that handles it gets the message once. Returns when the carrier has it;
        on a durable carrier, when it is stored."""
        self._call(self._clique.publish(stream, value, json=json, key=key, headers=headers, timeout=timeout))

    def request(
        self,
        stream: str,
        value: Text | Unset | None = UNSET,
        *,
        json: Any = UNSET,
        key: Text | None = None,
        headers: Headers | None = None,
        timeout: Seconds = REQUEST_SECONDS,
    ) -> bytes:
        """Asks the worker that owns the key, and returns what its responder returns. Raises CallFailed and
        TimeoutError."""
        return self._call(
            self._clique.request(stream, value, json=json, key=key, headers=headers, timeout=timeout)
        )

    # --- facts

    @property
    def guarantee(self) -> Guarantee:
        """What holds for the handlers on this carrier. Known once the clique is started."""
        return self._clique.guarantee

    def status(self) -> CliqueStatus:
        """The view of this process of its clique, without a request."""
        return self._clique.status()

    def wait_for_slots(self, timeout: Seconds | None = None) -> int:
        """Waits until this worker owns slots and none of the clique's changes hands; returns how many it owns."""
        return self._call(self._clique.wait_for_slots(timeout))

    # --- the loop

    def _run_loop(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _end_loop(self) -> None:
        if self._loop is not None and self._thread is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it on the loop, in the context of the caller: a handler's requests belong to its chain."""
        loop, context = self._loop, copy_context()
        if loop is None or loop.is_closed():
            work.close()
            raise Closed(f"{self!r} is not running: use it inside `with`")
        if threading.current_thread() is self._thread:
            work.close()
            raise CliqueError(f"{self!r} was called on its own event loop, which would wait for itself")
        outcome: Future[T] = Future()

        async def run() -> None:
            try:
                outcome.set_result(await work)
            except BaseException as problem:  # noqa: BLE001 - raised in the caller's thread
                outcome.set_exception(problem)

        loop.call_soon_threadsafe(lambda: loop.create_task(run(), context=context))
        return outcome.result()
