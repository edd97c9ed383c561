"""One flush at a time, for everything that was requested before it started."""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.errors import StorageError
from penstock.node.replication.flush_cycle import FlushCycle, attempt
from penstock.node.scheduling.threads import Job


class HandThread:
    """Runs a job on request."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    async def stop(self) -> None: ...

    async def work(self) -> None:
        self.jobs.pop(0)()
        await turns()


class Owner:
    """Keeps pending numbers, and records what each cycle flushed."""

    def __init__(self) -> None:
        self.thread = HandThread()
        self.cycle = FlushCycle(self.thread, begin=self._begin, flush=sum, finish=self._finish)
        self.pending: list[int] = []
        self.finished: list[tuple[list[int], int]] = []
        self.needs_thread = True

    def add(self, number: int) -> None:
        self.pending.append(number)
        self.cycle.request()

    def _begin(self) -> list[int] | None:
        work, self.pending = self.pending, []
        if self.needs_thread:
            return work
        self.finished.append((work, -1))
        return None

    def _finish(self, work: list[int], outcome: int) -> None:
        self.finished.append((work, outcome))


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def play(scenario: Callable[[Owner], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Owner())

    asyncio.run(run())


def test_requests_of_one_turn_share_a_cycle_and_later_ones_share_the_next() -> None:
    async def scenario(owner: Owner) -> None:
        owner.add(1)
        owner.add(2)
        await turns()
        owner.add(3)
        owner.add(4)
        await turns()
        assert len(owner.thread.jobs) == 1
        await owner.thread.work()
        await owner.thread.work()
        assert owner.finished == [([1, 2], 3), ([3, 4], 7)]
        assert not owner.thread.jobs

    play(scenario)


def test_drain_waits_for_work_that_arrives_while_a_cycle_runs() -> None:
    async def scenario(owner: Owner) -> None:
        owner.add(1)
        drained = asyncio.ensure_future(owner.cycle.drain())
        await turns()
        owner.add(2)
        await owner.thread.work()
        assert not drained.done()
        await owner.thread.work()
        await drained
        assert owner.finished == [([1], 1), ([2], 2)]

    play(scenario)


def test_work_that_needs_no_thread_ends_its_cycle_at_once() -> None:
    async def scenario(owner: Owner) -> None:
        owner.needs_thread = False
        owner.add(1)
        await owner.cycle.drain()
        assert owner.finished == [([1], -1)]
        assert not owner.thread.jobs

    play(scenario)


def test_a_delayed_cycle_carries_requests_that_come_before_it_starts() -> None:
    async def scenario(owner: Owner) -> None:
        owner.pending.append(1)
        owner.cycle.request(1.0)
        owner.add(2)
        await turns()
        assert not owner.thread.jobs
        while not owner.thread.jobs:
            await asyncio.sleep(0.001)
        await owner.thread.work()
        assert owner.finished == [([1, 2], 3)]

    play(scenario)


def test_an_unforeseen_error_counts_as_a_failed_flush() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    def refuses() -> None:
        raise StorageError("no")

    assert str(attempt(refuses)) == "no"
    assert "ZeroDivisionError" in str(attempt(fails))
    assert attempt(lambda: None) is None


def test_a_flush_that_ends_after_the_loop_is_no_error() -> None:
    jobs: list[Job] = []

    async def scenario(owner: Owner) -> None:
        await owner.cycle.stop()
        owner.add(1)
        await turns()
        jobs.extend(owner.thread.jobs)

    play(scenario)
    for job in jobs:
        job()
    assert len(jobs) == 1
