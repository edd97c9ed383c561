"""Cliques under test: workers whose handlers write down what they do, and an oracle that reads it."""

import asyncio
import functools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple, ParamSpec

from penstock.clique import Clique, CliqueError, Message, Slot

P = ParamSpec("P")
LONG_LEASE_MS = 30_000
"""For tests that do not wait for the end of a lease: a busy machine must not end it."""
LEASE_MS = 4_000
"""For those that do. A worker must keep it on a busy machine: a heartbeat may take a quarter of it."""
WAIT_S = 60.0
"""For things that happen within milliseconds; a busy machine may take longer."""
TEST_S = 240.0
"""The longest test, on a busy machine."""


def asynchronous(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test that is a coroutine function."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(_bounded(test(*args, **kwargs)))

    return run


async def _bounded(test: Awaitable[None]) -> None:
    async with asyncio.timeout(TEST_S):
        await test


async def turns(count: int = 50) -> None:
    """So many turns of the event loop: what is ready has happened by then, however busy the machine is."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(claim: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    """Until the claim holds. For facts of which no event tells."""
    async with asyncio.timeout(timeout_s):
        while not claim():
            await asyncio.sleep(0.01)


class Run(NamedTuple):
    """One call of a handler, by the monotonic clock."""

    key: bytes
    number: int
    worker: str
    slot: int
    epoch: int
    began: float
    ended: float


class RunLog:
    """All calls of the handlers of a test, in the order in which they ended."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._changed = asyncio.Event()

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self._changed.set()

    async def wait_for(self, is_enough: Callable[[list[Run]], bool], timeout_s: float = WAIT_S) -> list[Run]:
        async with asyncio.timeout(timeout_s):
            while not is_enough(self.runs):
                self._changed.clear()
                await self._changed.wait()
        return self.runs

    async def wait_for_numbers(self, numbers: range, timeout_s: float = WAIT_S) -> list[Run]:
        """Until every one of these messages was handled."""
        wanted = set(numbers)
        return await self.wait_for(lambda runs: wanted <= {run.number for run in runs}, timeout_s)


def by_key(runs: list[Run]) -> dict[bytes, list[Run]]:
    found: dict[bytes, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.began):
        found[run.key].append(run)
    return found


def check_one_at_a_time(runs: list[Run]) -> None:
    for key, of_key in by_key(runs).items():
        for earlier, later in pairwise(of_key):
            assert earlier.ended <= later.began, f"{key!r}: {earlier} overlaps with {later}"


def check_order(runs: list[Run]) -> None:
    """Numbers of a key grow. A message may run again, but not after a later one that had not run before it."""
    for key, of_key in by_key(runs).items():
        first_runs = list(dict.fromkeys(run.number for run in of_key))
        assert first_runs == sorted(first_runs), f"{key!r} ran as {[run.number for run in of_key]}"


def check_fencing_tokens(runs: list[Run]) -> None:
    """The epoch of a slot grows from owner to owner."""
    newest: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: run.began):
        before = newest.get(run.slot, run)
        assert run.epoch >= before.epoch
        assert run.epoch > before.epoch or run.worker == before.worker
        newest[run.slot] = run


def check_all(runs: list[Run]) -> None:
    check_one_at_a_time(runs)
    check_order(runs)
    check_fencing_tokens(runs)


class World:
    """One clique on one carrier."""

    def __init__(self, carrier: str, name: str, stream: str, *, lease_ms: int = LONG_LEASE_MS) -> None:
        self.carrier = carrier
        self.lease_ms = lease_ms
        self.name = name
        self.stream = stream
        self.log = RunLog()
        self._cliques: list[Clique] = []

    def clique(self, worker: str | None = None, **options: Any) -> Clique:
        """Without handlers. `close` closes it."""
        made = Clique(
            options.pop("name", self.name),
            self.carrier,
            worker=worker,
            **{"lease_ms": self.lease_ms, **options},
        )
        self._cliques.append(made)
        return made

    def recorder(
        self, worker: str, work: Callable[[Message, Slot], Awaitable[None]] | None = None, **options: Any
    ) -> Clique:
        """A worker that writes down each message: `work` is what it does meanwhile. Values are numbers."""
        made = self.clique(worker, **options)

        @made.handler(self.stream)
        async def record(message: Message, slot: Slot) -> None:
            began = time.monotonic()
            if work is not None:
                await work(message, slot)
            ended = time.monotonic()
            run = Run(
                message.key or b"", int(message.value or b"-1"), worker, slot.number, slot.epoch, began, ended
            )
            self.log.add(run)

        return made

    async def started(self, *cliques: Clique) -> None:
        """Starts them, and waits until every slot is with its owner."""
        await asyncio.gather(*(one.start() for one in cliques))
        await asyncio.gather(*(one.wait_for_slots(WAIT_S) for one in cliques))

    async def publish(self, clique: Clique, numbers: range, keys: int = 10) -> None:
        """Each number is a message; its key is the number modulo `keys`."""
        for number in numbers:
            await clique.publish(self.stream, b"%d" % number, key=b"key-%d" % (number % keys))

    @asynccontextmanager
    async def publishing(self, clique: Clique, keys: int = 10) -> AsyncIterator[Callable[[], range]]:
        """Publishes numbers as long as the block runs. The block gets a function that tells which, so far."""
        number = 0
        is_over = False

        async def publish() -> None:
            nonlocal number
            while not is_over:
                await self.publish(clique, range(number, number + 1), keys)
                number += 1
                await asyncio.sleep(0.001)

        task = asyncio.create_task(publish())
        try:
            yield lambda: range(number)
        finally:
            is_over = True
            await task

    async def close(self) -> None:
        for clique in self._cliques:
            with suppress(Exception):
                await clique.close(grace=0)

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


async def crash(clique: Clique) -> None:
    """What others see of a worker that was killed: it does not leave, and its connection ends."""
    membership, runner, transport = clique._membership, clique._runner, clique._transport
    assert membership is not None
    assert runner is not None
    await asyncio.to_thread(membership.stop)
    runner.cancel_running()
    await transport.close()
    clique._is_closed = True


class CutOff:
    """While the block runs, no heartbeat of a worker is answered, and it hears of no table."""

    def __init__(self, clique: Clique) -> None:
        assert clique._membership is not None
        self._coordinator: Any = clique._membership._coordinator

    def __enter__(self) -> None:
        async def refuse(*_args: object) -> None:
            raise CliqueError("cut off by the test", retriable=True)

        self._coordinator.heartbeat = self._coordinator.newer_table = refuse

    def __exit__(self, *exc: object) -> None:
        del self._coordinator.heartbeat, self._coordinator.newer_table
