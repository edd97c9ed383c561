"""Terms and votes are on the disk before they are sent, a thousand with one flush."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import pytest

from penstock.errors import DiskFull, StorageError
from penstock.log.memory_disk import MemoryDisk
from penstock.log.votes import VoteStore
from penstock.node.replication import hard_states
from penstock.node.replication.hard_states import HardStates
from penstock.node.scheduling.threads import Job
from penstock.raft import HardState
from penstock.types import GroupId, NodeId, Replica
from tests.log_records import own_records

VOTE = HardState(3, Replica(NodeId(2), 9))


def group(number: int) -> GroupId:
    return GroupId(UUID(int=1), number)


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


class FailingStore(VoteStore):
    error: StorageError | None = None
    flushes = 0

    def flush(self) -> None:
        self.flushes += 1
        if self.error is not None:
            raise self.error
        super().flush()


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def note(told: list[int], number: int, error: StorageError | None) -> None:
    told.append(number)


def play(scenario: Callable[[HardStates, FailingStore, HandThread], Awaitable[None]]) -> None:
    async def run() -> None:
        disk, thread = MemoryDisk(), HandThread()
        disk.make_dir("meta")
        store = FailingStore(disk, "meta/votes")
        await scenario(HardStates(store, thread, volatile=False, adopts=False), store, thread)

    asyncio.run(run())


def test_a_vote_is_not_sent_before_it_is_flushed() -> None:
    async def scenario(states: HardStates, store: FailingStore, thread: HandThread) -> None:
        told: list[StorageError | None] = []
        states.save(group(0), VOTE, has_log=False, saved=told.append)
        await turns()
        assert not told
        await thread.work()
        assert told == [None]
        assert states.get(group(0)) == VOTE
        assert states.is_known(group(0))
        assert not states.had_log(group(0))

    play(scenario)


def test_votes_during_a_flush_share_the_next_one_and_are_confirmed_in_order() -> None:
    async def scenario(states: HardStates, store: FailingStore, thread: HandThread) -> None:
        told: list[int] = []
        for number in range(100):
            states.save(group(number), VOTE, has_log=True, saved=partial(note, told, number))
            if number == 0:
                await turns()
        await thread.work()
        assert told == [0]
        await thread.work()
        assert told == list(range(100))
        assert store.flushes == 2
        assert not thread.jobs

    play(scenario)


def test_a_full_disk_is_waited_for() -> None:
    async def scenario(states: HardStates, store: FailingStore, thread: HandThread) -> None:
        told: list[StorageError | None] = []
        store.error = DiskFull("no space")
        states.save(group(0), VOTE, has_log=False, saved=told.append)
        await turns()
        await thread.work()
        assert not told
        store.error = None
        while not thread.jobs:
            await asyncio.sleep(hard_states.RETRY_SECONDS / 20)
        await thread.work()
        assert told == [None]
        assert states.failed is None

    hard_states.RETRY_SECONDS, before = 0.02, hard_states.RETRY_SECONDS
    try:
        play(scenario)
    finally:
        hard_states.RETRY_SECONDS = before


def test_after_a_failed_flush_no_vote_is_confirmed() -> None:
    async def scenario(states: HardStates, store: FailingStore, thread: HandThread) -> None:
        told: list[StorageError | None] = []
        store.error = StorageError("the disk is gone")
        states.save(group(0), VOTE, has_log=False, saved=told.append)
        await turns()
        await thread.work()
        states.save(group(1), VOTE, has_log=False, saved=told.append)
        await turns()
        assert [type(error) for error in told] == [StorageError, StorageError]
        assert store.flushes == 1

    play(scenario)


def test_more_votes_than_one_cycle_reports_are_reported_by_the_next_ones_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hard_states, "SAVES_PER_CYCLE", 2)

    async def scenario(states: HardStates, store: FailingStore, thread: HandThread) -> None:
        told: list[int] = []
        for number in range(5):
            states.save(group(number), VOTE, has_log=False, saved=partial(note, told, number))
        await turns()
        counts = []
        while thread.jobs:
            await thread.work()
            counts.append(len(told))
        assert counts == [2, 4, 5]
        assert told == [0, 1, 2, 3, 4]
        await states.drain()

    play(scenario)


def test_a_group_that_fails_when_it_is_told_of_its_vote_stops_no_other_group(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hard_states, "SAVES_PER_CYCLE", 2)

    def fails(error: StorageError | None) -> None:
        raise ZeroDivisionError

    async def scenario(states: HardStates, store: FailingStore, thread: HandThread) -> None:
        told: list[int] = []
        states.save(group(0), VOTE, has_log=False, saved=fails)
        for number in range(1, 4):
            states.save(group(number), VOTE, has_log=False, saved=partial(note, told, number))
        await turns()
        while thread.jobs:
            await thread.work()
        assert told == [1, 2, 3]
        await states.drain()

    play(scenario)
    (line,) = own_records(caplog)
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], ZeroDivisionError)
