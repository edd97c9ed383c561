"""`Clique`: the worker, publisher and requester that applications use.

    clique = Clique("pricing", "penstock://127.0.0.1:9092", worker="w1")

    @clique.handler("orders")
    async def price(message: Message, slot: Slot) -> None: ...

    async with clique:                       # joins; leaves at the end of the block
        await clique.publish("orders", b"...", key=b"alice")

A clique without handlers joins nothing: it publishes and requests.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Final, Self, Unpack, cast

from penstock.client.aio.threads import call_in_thread
from penstock.client.arguments import UNSET, Headers, Seconds, Text, Unset, as_seconds
from penstock.client.forks import ForkGuard
from penstock.client.security_arguments import SecurityArguments
from penstock.client.signals import stopping_on_signals
from penstock.clique.carriers import Carrier, described, transport_of
from penstock.clique.clocks import lease_clock_ms
from penstock.clique.codecs import Codec, check_codec
from penstock.clique.errors import CliqueError, Closed
from penstock.clique.guarantees import Guarantee, Level, check_guarantee, check_level, guarantee_of
from penstock.clique.handlers import HandlerTable
from penstock.clique.limits import CONCURRENCY_MAX
from penstock.clique.membership import Membership, not_joined
from penstock.clique.names import DEFAULT_CLIQUE, checked_clique, checked_worker
from penstock.clique.registration import Registration, RetryOptions, outgoing, random_worker
from penstock.clique.runner import HandlerRunner
from penstock.clique.slot_keeper import SlotKeeper
from penstock.clique.status import CliqueStatus, membership_facts
from penstock.clique.transport import Transport
from penstock.ring.heartbeats import DEFAULT_LEASE_MS, LEASE_MS_MAX, LEASE_MS_MIN
from penstock.ring.member import MemberCore

log = logging.getLogger("penstock.clique")

DEFAULT_CARRIER: Final = "penstock://127.0.0.1:9092"
DEFAULT_CONCURRENCY: Final = 32
REQUEST_SECONDS: Final = 30.0
PUBLISH_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 30.0
"""How long the end waits for handlers: as long as most process managers wait before they kill."""
LAST_SECONDS: Final = 1.0
"""How long it then waits until slots of cancelled handlers are handed over."""
JOIN_LEASES: Final = 3.0
JOIN_SECONDS_MIN: Final = 30.0
"""How long the start waits. A name may be taken until the lease of a process that was killed has ended."""


class WorkerOptions(RetryOptions, SecurityArguments, total=False):
    """How often messages are tried, and how the clique logs in."""


class CliqueOptions(WorkerOptions, total=False):
    """The options of a clique, which `Clique` explains."""

    worker: str | None
    lease_ms: int
    codec: Codec | None
    concurrency: int
    guarantee: Level | None
    dead_letters: bool
    release_timeout: Seconds


class Clique(Registration):
    """A worker of a clique, on the event loop on which it is started."""

    def __init__(
        self,
        name: str = DEFAULT_CLIQUE,
        carrier: Carrier = DEFAULT_CARRIER,
        *,
        worker: str | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
        codec: Codec | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        guarantee: Level | None = None,
        dead_letters: bool = True,
        release_timeout: Seconds = GRACE_SECONDS,
        **options: Unpack[WorkerOptions],
    ) -> None:
        """`carrier`: penstock://host:port, with several addresses separated by commas; nats://host:port; memory://NAME
        within one process; or any object with the methods of PubSub. `user`, `password`, `token`, `tls`, `tls_ca`,
        `tls_cert` and `tls_key`, as in `penstock.client.Client`, are for carriers that are named by their address.

        `worker`: the same name gets its slots back after a restart; by default a random one. `lease_ms`: a worker that
        has crashed keeps its keys for so long. `codec`: how messages become bytes; by default the record's own key,
        value and headers on Penstock, and a wrapping codec elsewhere. `concurrency`: the most handlers that run at
        once, each for another key. `guarantee`: the clique refuses to start if the carrier cannot give it.
        `dead_letters`: whether messages that cannot be handled are kept in the stream's dead letters, or only logged.
        `release_timeout`: how long on_release may take; one that is no coroutine function cannot be interrupted, and
        keeps its slots until it returns, which is logged. Other options are those of RetryOptions."""
        security, retries = _divided(options)
        super().__init__(retries, HandlerTable())
        if not isinstance(concurrency, int) or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency={concurrency!r}: expected 1 to {CONCURRENCY_MAX}")
        if not isinstance(lease_ms, int) or not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
            raise ValueError(f"lease_ms={lease_ms!r}: expected {LEASE_MS_MIN} to {LEASE_MS_MAX}")
        check_codec(codec)
        self.name = checked_clique(name)
        self.worker = random_worker() if worker is None else checked_worker(worker)
        self._carrier = described(carrier)
        self._lease_ms = lease_ms
        self._concurrency = concurrency
        self._level = check_level(guarantee)
        self._release_timeout_s = as_seconds("release_timeout", release_timeout)
        self._guard = ForkGuard()
        self._transport: Transport = transport_of(
            carrier,
            self.name,
            self.worker,
            self._handlers,
            codec,
            keeps_dead_letters=dead_letters,
            security=security,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._membership: Membership | None = None
        self._runner: HandlerRunner | None = None
        self._keeper: SlotKeeper | None = None
        self._is_change_due = False
        self._waiters: set[asyncio.Event] = set()
        self._has_joined = False
        self._closing: asyncio.Future[None] | None = None
        self._is_closed = False
        self._is_stop_asked = False
        self._exit: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Clique {self.name} on {self._carrier}, worker {self.worker}>"

    # --- the start and the end

    async def start(self) -> None:
        """Connects and joins. Returns when this worker is a member; it may own no slots yet."""
        self._guard.check()
        if self._is_started:
            raise CliqueError(f"{self!r} was started before: make another one")
        self._is_started = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._transport.open()
            if self._level is not None:
                check_guarantee(self._level, self._transport.capabilities, self._carrier)
            if self._handlers.streams:
                await self._join()
        except BaseException:
            await self.close(grace=0)
            raise

    async def _join(self) -> None:
        core = MemberCore(
            worker=self.worker,
            new_member_id=self._transport.new_member_id,
            now_ms=lease_clock_ms(),
            lease_ms=self._lease_ms,
            streams=self._handlers.streams,
        )
        membership = self._membership = Membership(
            core, self._lease_ms, self._transport.open_coordinator, self._on_change
        )
        runner = self._runner = HandlerRunner(membership, self._concurrency, self._on_exit)
        self._keeper = SlotKeeper(
            membership, runner, self._transport, self._handlers, self._release_timeout_s
        )
        await self._transport.attach(membership, runner, self._on_exit)
        membership.start()
        timeout_s = max(JOIN_SECONDS_MIN, JOIN_LEASES * self._lease_ms / 1000)
        if not await self._wait_until(
            lambda: membership.is_member or membership.failure is not None, timeout_s
        ):
            raise not_joined(membership, self.name, timeout_s)
        if membership.failure is not None:
            raise membership.failure
        await self._transport.begin_intake()
        self._has_joined = True

    async def close(self, *, grace: Seconds = GRACE_SECONDS) -> None:
        """Leaves: takes no more messages, waits for handlers that run, hands slots over, and disconnects. After `grace`
        seconds it cancels handlers and goes; what they had begun is handled by the next owners. May be called again."""
        if self._guard.is_forked:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(time.monotonic() + as_seconds("grace", grace)))
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float) -> None:
        """Handlers that run may publish and request until the end."""
        with suppress(Exception):  # a carrier that is away must not keep the others from closing
            await self._transport.end_intake()
        if self._membership is not None and self._runner is not None:
            await self._leave(self._membership, self._runner, deadline)
        self._is_closed = True
        if self._keeper is not None:
            await self._keeper.close()
        if self._membership is not None:
            await call_in_thread(self._membership.stop)
        await self._transport.close()

    async def _leave(self, membership: Membership, runner: HandlerRunner, deadline: float) -> None:
        if membership.failure is None:
            membership.leave()
            await self._wait_until(
                lambda: membership.has_left or membership.failure is not None, deadline - time.monotonic()
            )
        await self._transport.drain(deadline - time.monotonic())
        if not await runner.stop(max(0.0, deadline - time.monotonic())):
            log.warning("%r: handlers were cancelled after the grace time", self)
        if not membership.has_left and membership.failure is None:
            # What was cancelled has ended: its slots can still be handed over, if the carrier answers at once.
            await self._wait_until(lambda: membership.has_left, LAST_SECONDS)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def run(self, *, grace: Seconds = GRACE_SECONDS, signals: bool = False) -> None:
        """Joins, works until `stop` is called or the call is cancelled, and leaves. Raises the error that has ended the
        membership, and the SystemExit of a handler.

        `signals`: whether SIGTERM and Ctrl-C end it, too, and a second one the process, at once. The program that has
        the event loop usually handles them itself; set it if this call is all that the program does."""
        loop = asyncio.get_running_loop()
        taking = (
            stopping_on_signals(lambda: loop.call_soon_threadsafe(self.stop)) if signals else nullcontext()
        )
        with taking:
            await self.start()
            try:
                await self.wait_until_stopped()
            finally:
                await self.close(grace=grace)

    async def wait_until_stopped(self) -> None:
        """Returns after `stop`. Raises what has ended the membership, or what a handler has raised to exit."""
        await self._wait_until(lambda: self._is_stop_asked or self._failure is not None, None)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Asks `run` to end, and returns at once. On the event loop of the clique."""
        self._is_stop_asked = True
        self._wake()

    # --- messages

    async def publish(
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
        on a durable carrier, when it is stored. `json`: a value to be published as JSON, instead of `value`."""
        self._check_running()
        await self._transport.publish(
            outgoing(stream, value, json, key, headers), as_seconds("timeout", timeout)
        )

    async def request(
        self,
        stream: str,
        value: Text | Unset | None = UNSET,
        *,
        json: Any = UNSET,
        key: Text | None = None,
        headers: Headers | None = None,
        timeout: Seconds = REQUEST_SECONDS,
    ) -> bytes:
        """Asks the worker that owns the key, in whichever clique answers this stream, and returns what its responder
        returns. Raises CallFailed if the responder has failed, and TimeoutError after `timeout` seconds; a responder
        that has not begun by then does not begin."""
        self._check_running()
        return await self._transport.request(
            outgoing(stream, value, json, key, headers), as_seconds("timeout", timeout)
        )

    # --- facts

    @property
    def guarantee(self) -> Guarantee:
        """What holds for the handlers on this carrier. Known once the clique is started."""
        return guarantee_of(self._transport.capabilities)

    def status(self) -> CliqueStatus:
        """The view of this process of its clique, without a request."""
        facts: dict[str, Any] = {}
        if self._membership is not None:
            facts = membership_facts(self._membership, has_joined=self._has_joined)
        runner = self._runner
        return CliqueStatus(
            clique=self.name,
            carrier=self._carrier,
            guarantee=str(self.guarantee) if self._is_started else "",
            in_flight=self._transport.in_flight,
            handled=0 if runner is None else runner.handled,
            failed=0 if runner is None else runner.failed,
            **facts,
        )

    async def wait_for_slots(self, timeout: Seconds | None = None) -> int:
        """Waits until this worker owns slots and no slot of the clique is on its way to another owner, and returns how
        many it owns. Raises TimeoutError. For tests, and for programs that want to begin when all is in place."""
        timeout_s = None if timeout is None else as_seconds("timeout", timeout)
        membership = self._check_running()
        if membership is None:
            raise CliqueError(f"{self!r} has no handlers, so it never owns slots")
        if not await self._wait_until(lambda: membership.is_settled or self._failure is not None, timeout_s):
            raise TimeoutError(f"{self!r} owns no slots, or they change hands, after {timeout_s} s")
        if self._failure is not None:
            raise self._failure
        return membership.held

    # --- changes, from any thread

    @property
    def _failure(self) -> BaseException | None:
        if self._exit is not None:
            return self._exit
        return None if self._membership is None else self._membership.failure

    def _on_change(self) -> None:
        if self._is_change_due or self._loop is None:
            return
        self._is_change_due = True
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._changed)

    def _changed(self) -> None:
        self._is_change_due = False
        if self._keeper is not None:
            self._keeper.changed()
        self._wake()

    def _on_exit(self, problem: BaseException) -> None:
        self._exit = self._exit or problem
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def _wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Looks after every change. Returns whether it became true in time."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                while not is_true():
                    await waiter.wait()
                    waiter.clear()
        except TimeoutError:
            return is_true()
        finally:
            self._waiters.discard(waiter)
        return True

    def _check_running(self) -> Membership | None:
        self._guard.check()
        if not self._is_started or self._is_closed:
            raise Closed(f"{self!r} is not running: use it inside `async with`")
        return self._membership


def _divided(options: WorkerOptions) -> tuple[SecurityArguments, RetryOptions]:
    names = SecurityArguments.__annotations__
    security = {name: value for name, value in options.items() if name in names}
    retries = {name: value for name, value in options.items() if name not in names}
    return cast(SecurityArguments, security), cast(RetryOptions, retries)
