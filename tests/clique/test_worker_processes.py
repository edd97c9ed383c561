"""Workers as processes, under load: some are killed (SIGKILL), some are paused past every timeout (SIGSTOP). An oracle
for each key reads what they have written down: one at a time, in order, none lost.

A handler that runs while its process is paused cannot be recalled, nor can the one call that was decided on when the
pause came: only these may overlap with others.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from penstock import Broker
from penstock.clique import Clique
from tests.clique.nats_server import NatsServer
from tests.clique.world import asynchronous, until

PROGRAM = Path(__file__).with_name("worker_program.py")
LEASE_MS = 3_000
"""A worker must keep it on a busy machine. A pause of two leases is shorter than the ten seconds after which NATS
closes a connection that does not read."""
KEYS = 40
ROUND_SECONDS = 0.1
"""A worker has some ten messages in hand at any time: their handlers take 50 ms in the mean."""
IN_HAND_S = 10 * LEASE_MS / 1000
"""How long a message may be in a worker: while its owner is away, and while earlier ones of its key are late."""
NOTICED_S = 2.0
"""How long the server of NATS may give messages to a process that was killed."""


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Call(NamedTuple):
    """One call of a handler. `end` of one whose process was killed is when that happened."""

    worker: str
    pid: int
    number: int
    slot: int
    epoch: int
    begin: float
    end: float
    is_done: bool


class Processes:
    """The workers of one clique."""

    def __init__(self, carrier: str, clique: str, stream: str, folder: Path) -> None:
        self._arguments = [carrier, clique]
        self._more = [stream, str(LEASE_MS), str(folder / "calls")]
        self._folder = folder
        self.file = folder / "calls"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.killed: dict[int, float] = {}
        """When a process was killed."""
        self.pauses: list[tuple[int, float, float]] = []

    def start(self, worker: str) -> None:
        command = [sys.executable, str(PROGRAM), *self._arguments, worker, *self._more]
        with (self._folder / f"{worker}.log").open("ab") as log:
            self.running[worker] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, worker: str) -> None:
        process = self.running.pop(worker)
        process.kill()
        process.wait()
        self.killed[process.pid] = now()

    @contextmanager
    def paused(self, worker: str) -> Iterator[None]:
        process, began = self.running[worker], now()
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.pauses.append((process.pid, began, now()))
            process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for worker, process in self.running.items():
            assert process.wait(60) == 0, (self._folder / f"{worker}.log").read_text()

    def abandon(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()

    # --- the oracle

    def _lines(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        whole, _, _ = self.file.read_text().rpartition("\n")  # a line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def joined(self) -> set[str]:
        return {line["worker"] for line in self._lines() if line["what"] == "joined"}

    def events(self) -> list[dict[str, Any]]:
        """What handlers did."""
        return [line for line in self._lines() if line["what"] != "joined"]

    def calls(self) -> dict[str, list[Call]]:
        """By key, in the order in which they began."""
        found: dict[str, list[Call]] = defaultdict(list)
        begun: dict[tuple[int, int], dict[str, Any]] = {}
        for event in self.events():
            place = event["pid"], event["number"]
            if event["what"] == "begin":
                begun[place] = event
            else:
                begin = begun.pop(place)
                found[event["key"]].append(_call(begin, event["at"], event["what"] == "end"))
        for (pid, _number), begin in begun.items():
            found[begin["key"]].append(_call(begin, self.killed.get(pid, begin["at"]), False))
        return {key: sorted(calls, key=lambda call: call.begin) for key, calls in found.items()}

    def _decided_before_a_pause(self) -> set[tuple[int, int]]:
        """For each pause the next call of that process, by its number: the process has one thread, which may have been
        paused between asking for its lease and the call."""
        found: set[tuple[int, int]] = set()
        begins = [event for event in self.events() if event["what"] == "begin"]
        for pid, _began, ended in self.pauses:
            later = [event for event in begins if event["pid"] == pid and event["at"] >= ended]
            if later:
                found.add((pid, min(later, key=lambda event: event["at"])["number"]))
        return found

    def check_one_at_a_time(self) -> None:
        excused = self._decided_before_a_pause()
        for key, calls in self.calls().items():
            for earlier, later in pairwise(calls):
                assert (
                    earlier.end <= later.begin
                    or self._was_paused(earlier)
                    or {(earlier.pid, earlier.number), (later.pid, later.number)} & excused
                ), f"{key}: {earlier} and {later}"

    def check_fencing_tokens(self) -> None:
        """Each begin of a slot has a token that is not lower than the one before it, in whichever process."""
        newest: dict[int, dict[str, Any]] = {}
        excused = self._decided_before_a_pause()
        for event in sorted(self.events(), key=lambda event: event["at"]):
            if event["what"] == "begin" and (event["pid"], event["number"]) not in excused:
                before = newest.get(event["slot"], event)
                assert event["epoch"] >= before["epoch"], f"{event} after {before}"
                newest[event["slot"]] = event

    def check_order(self) -> None:
        """The first calls of a key's messages that were handled in the end."""
        for key, calls in self.calls().items():
            numbers = list(dict.fromkeys(call.number for call in calls if call.is_done))
            assert numbers == sorted(numbers), f"{key}: {numbers}"

    def handled(self) -> set[int]:
        return {event["number"] for event in self.events() if event["what"] == "end"}

    def _was_paused(self, call: Call) -> bool:
        return any(
            pid == call.pid and call.begin <= began and call.end >= ended for pid, began, ended in self.pauses
        )


def _call(begin: dict[str, Any], end: float, is_done: bool) -> Call:
    names = ("worker", "pid", "number", "slot", "epoch")
    return Call(**{name: begin[name] for name in names}, begin=begin["at"], end=end, is_done=is_done)


class Load:
    """Publishes numbers, each with when it was published."""

    def __init__(self, clique: Clique, stream: str) -> None:
        self._clique = clique
        self._stream = stream
        self._is_over = False
        self.published: list[float] = []

    async def run(self) -> None:
        """In rounds: one message of each key, so that those of a key are published one after the other."""
        while not self._is_over:
            first = len(self.published)
            self.published += [now()] * KEYS
            await asyncio.gather(*(self._publish(number) for number in range(first, first + KEYS)))
            await asyncio.sleep(ROUND_SECONDS)

    async def _publish(self, number: int) -> None:
        key = f"key-{number % KEYS}"
        await self._clique.publish(self._stream, f"{key} {number}", key=key)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            self._is_over = True
            await task


@pytest.fixture(params=["penstock", pytest.param("nats", marks=pytest.mark.long)])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "nats":
        server: NatsServer = request.getfixturevalue("nats_server")
        return server.address
    broker: Broker = request.getfixturevalue("broker")
    return f"penstock://{broker.bootstrap_servers}"


@pytest.fixture
def processes(address: str, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Processes]:
    made = Processes(address, unique("pricing"), unique("orders"), tmp_path)
    yield made
    made.abandon()


def workers_since(processes: Processes, at: float) -> set[str]:
    """The workers that have begun something since then."""
    return {event["worker"] for event in processes.events() if event["at"] >= at}


async def all_work(processes: Processes) -> None:
    """Until every running process has handled something from now on."""
    began = now()
    await until(lambda: workers_since(processes, began) >= processes.running.keys(), 60)


@asynchronous
async def test_workers_that_are_killed_and_paused_keep_one_owner_for_each_key(
    processes: Processes, address: str
) -> None:
    stream = processes._more[0]
    async with Clique("publisher", address) as publisher:
        load = Load(publisher, stream)
        for worker in ("w1", "w2", "w3"):
            processes.start(worker)
        await until(lambda: processes.joined() == {"w1", "w2", "w3"}, 60)
        async with load.running():
            await all_work(processes)
            await asyncio.sleep(1)
            processes.kill("w1")
            await asyncio.sleep(2 * LEASE_MS / 1000)
            with processes.paused("w2"):
                await asyncio.sleep(2 * LEASE_MS / 1000)
            processes.start("w1")
            await all_work(processes)
            recovered = now()
            await asyncio.sleep(0.5)
        await _check(processes, load, recovered, is_durable=address.startswith("penstock"))


async def _check(processes: Processes, load: Load, recovered: float, *, is_durable: bool) -> None:
    numbers = set(range(len(load.published)))
    if not is_durable:
        numbers = {number for number in numbers if load.published[number] >= recovered}
    await until(lambda: numbers <= processes.handled(), 60)
    await asyncio.to_thread(processes.end)
    processes.check_one_at_a_time()
    processes.check_fencing_tokens()
    if is_durable:
        processes.check_order()
        return
    for number in set(range(len(load.published))) - processes.handled():
        in_hand_s = [killed - load.published[number] for killed in processes.killed.values()]
        assert any(-NOTICED_S < one < IN_HAND_S for one in in_hand_s), (
            "it was not in a process that was killed"
        )


@pytest.mark.long
@asynchronous
async def test_a_minute_of_kills_and_pauses(processes: Processes, address: str) -> None:
    random = Random(7)
    async with Clique("publisher", address) as publisher:
        load = Load(publisher, processes._more[0])
        names = [f"w{number}" for number in range(4)]
        for worker in names:
            processes.start(worker)
        await until(lambda: processes.joined() == set(names), 60)
        async with load.running():
            await all_work(processes)
            deadline = now() + 60
            while now() < deadline:
                victim = random.choice(sorted(processes.running))
                if random.random() < 0.5:
                    processes.kill(victim)
                    await asyncio.sleep(random.random() * 2 * LEASE_MS / 1000)
                    processes.start(victim)
                else:
                    with processes.paused(victim):
                        await asyncio.sleep(random.random() * 3 * LEASE_MS / 1000)
                await asyncio.sleep(random.random() * LEASE_MS / 1000)
            await all_work(processes)
            recovered = now()
            await asyncio.sleep(1)
        await _check(processes, load, recovered, is_durable=address.startswith("penstock"))


@asynchronous
async def test_a_worker_that_is_told_to_end_loses_no_time(processes: Processes, address: str) -> None:
    """SIGTERM: it finishes what runs, and its keys go on at once, long before a lease is over."""
    async with Clique("publisher", address) as publisher:
        load = Load(publisher, processes._more[0])
        for worker in ("w1", "w2"):
            processes.start(worker)
        await until(lambda: processes.joined() == {"w1", "w2"}, 60)
        async with load.running():
            await all_work(processes)
            leaving = processes.running.pop("w1")
            leaving.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(leaving.wait, 60) == 0
            left = now()
            await all_work(processes)
            await asyncio.sleep(1)
        await until(lambda: set(range(len(load.published))) <= processes.handled(), 60)
        await asyncio.to_thread(processes.end)
    processes.check_one_at_a_time()
    processes.check_fencing_tokens()
    processes.check_order()
    served = [[call.worker for call in calls if call.begin >= left] for calls in processes.calls().values()]
    assert len(served) == KEYS
    assert all(set(workers) == {"w2"} for workers in served)
