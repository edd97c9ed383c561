"""The tables of cliques on a node that serves their workers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.cliques import tables as module
from penstock.node.cliques.coordinators import CliqueCoordinators
from penstock.node.cliques.tables import EPOCHS_AHEAD_MAX, TABLE_WAIT_MS, CliqueTables, lanes_of
from penstock.node.queues.manager import QueueManager
from penstock.ring import SLOTS, Heartbeat, Table
from penstock.ring.clique_state import CliqueState

MEMBER = "5f0c"


def some_table(epoch: int) -> Table:
    state = CliqueState(epoch=epoch - 1)
    heartbeat = Heartbeat(worker="one", member_id=MEMBER, sequence=1, epoch=epoch - 1)
    return state.heartbeat(heartbeat, 0)[0].table


class FakeCoordinators:
    """Answers polls when the test says so."""

    def __init__(self) -> None:
        self.polls: list[tuple[int, asyncio.Future[Table | None]]] = []
        self.waits_ms: list[int] = []
        self.polled = asyncio.Event()

    async def table(self, clique: str, known_epoch: int, wait_ms: int, *, caller: Any) -> Table | None:
        answer: asyncio.Future[Table | None] = asyncio.get_running_loop().create_future()
        self.polls.append((known_epoch, answer))
        self.waits_ms.append(wait_ms)
        self.polled.set()
        return await answer

    async def next_poll(self) -> tuple[int, "asyncio.Future[Table | None]"]:
        while not self.polls:
            self.polled.clear()
            await self.polled.wait()
        return self.polls.pop(0)


class FakeQueues:
    def drivers_of(self, group_id: str) -> list[Any]:
        return []


def run(scenario: Callable[[CliqueTables, FakeCoordinators], Awaitable[None]]) -> None:
    async def main() -> None:
        coordinators = FakeCoordinators()
        tables = CliqueTables(cast(CliqueCoordinators, coordinators), cast(QueueManager, FakeQueues()))
        async with asyncio.timeout(30):
            await scenario(tables, coordinators)
        await tables.stop()

    asyncio.run(main())


def test_one_poll_serves_all_workers_of_a_clique_and_ends_with_the_last() -> None:
    async def scenario(tables: CliqueTables, coordinators: FakeCoordinators) -> None:
        told: list[str] = []
        news = asyncio.Event()
        one = tables.watch("pricing", lambda: told.append("one"))
        two = tables.watch("pricing", lambda: (told.append("two"), news.set())[1])
        known, poll = await coordinators.next_poll()
        assert (known, coordinators.polls) == (0, [])
        poll.set_result(some_table(7))
        await news.wait()
        assert (one.epoch, told) == (7, ["one", "two"])
        assert two.is_member("one", MEMBER)
        assert not two.is_member("one", "another incarnation")
        known, poll = await coordinators.next_poll()
        assert known == 7
        one.close()
        assert not poll.cancelled()
        two.close()
        await asyncio.wait({poll})
        assert poll.cancelled()

    run(scenario)


def test_an_older_table_changes_nothing() -> None:
    async def scenario(tables: CliqueTables, coordinators: FakeCoordinators) -> None:
        watch = tables.watch("pricing", lambda: None)
        for epoch in (7, 6):
            (await coordinators.next_poll())[1].set_result(some_table(epoch))
        known, _ = await coordinators.next_poll()
        assert (known, watch.epoch) == (7, 7)

    run(scenario)


def test_a_poll_that_fails_or_finds_no_clique_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)

    async def scenario(tables: CliqueTables, coordinators: FakeCoordinators) -> None:
        watch = tables.watch("pricing", lambda: None)
        refused = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "an election")
        (await coordinators.next_poll())[1].set_exception(refused)
        (await coordinators.next_poll())[1].set_result(None)
        (await coordinators.next_poll())[1].set_result(some_table(7))
        await coordinators.next_poll()
        assert watch.epoch == 7

    run(scenario)


def test_a_poll_that_does_not_bring_what_a_worker_knows_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits at a coordinator that was replaced and has not noticed."""
    monkeypatch.setattr(module, "REFRESH_SECONDS", 3_600.0)

    async def scenario(tables: CliqueTables, coordinators: FakeCoordinators) -> None:
        watch = tables.watch("pricing", lambda: None)
        followed = tables._followed["pricing"]
        _, lost = await coordinators.next_poll()
        watch.expect(7)
        assert followed.timer is not None
        tables._refresh(followed)  # as the timer does
        _, again = await coordinators.next_poll()
        assert lost.cancelled()
        again.set_result(some_table(7))
        _, last = await coordinators.next_poll()
        tables._refresh(followed)
        assert followed.timer is None, "there is nothing to expect any more"
        assert not last.cancelled()
        watch.expect(7)
        assert followed.timer is None

    run(scenario)


def test_a_worker_that_claims_an_impossible_epoch_is_refused_after_one_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.001)

    async def scenario(tables: CliqueTables, coordinators: FakeCoordinators) -> None:
        refused = asyncio.Event()
        liar = tables.watch("pricing", lambda: refused.set() if liar.refuted_by is not None else None)
        honest = tables.watch("pricing", lambda: None)
        (await coordinators.next_poll())[1].set_result(some_table(7))
        await coordinators.next_poll()  # the table is known now
        honest.expect(7)
        liar.expect(2**62)
        (await coordinators.next_poll())[1].set_result(some_table(7))
        await refused.wait()
        await coordinators.next_poll()
        followed = tables._followed["pricing"]
        assert (liar.refuted_by, honest.refuted_by, followed.timer) == (7, None, None)
        assert coordinators.waits_ms == [TABLE_WAIT_MS, TABLE_WAIT_MS, 0, TABLE_WAIT_MS]
        honest.expect(8)
        assert followed.timer is not None
        (await coordinators.next_poll())[1].set_result(some_table(8))
        await coordinators.next_poll()
        assert (honest.epoch, honest.refuted_by, followed.timer) == (8, None, None)

    run(scenario)


@pytest.mark.parametrize("ahead", [EPOCHS_AHEAD_MAX, EPOCHS_AHEAD_MAX + 1])
def test_a_claim_a_little_ahead_of_the_coordinator_waits(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.001)

    async def scenario(tables: CliqueTables, coordinators: FakeCoordinators) -> None:
        watch = tables.watch("pricing", lambda: None)
        (await coordinators.next_poll())[1].set_result(some_table(7))
        await coordinators.next_poll()
        watch.expect(7 + ahead)
        (await coordinators.next_poll())[1].set_result(some_table(7))
        await coordinators.next_poll()
        assert (watch.refuted_by is not None) == (ahead > EPOCHS_AHEAD_MAX)
        assert tables._followed["pricing"].timer is None, "nothing is asked every second"

    run(scenario)


def test_a_worker_that_claims_an_epoch_of_a_clique_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.001)

    async def scenario(tables: CliqueTables, coordinators: FakeCoordinators) -> None:
        refused = asyncio.Event()
        watch = tables.watch("pricing", refused.set)
        await coordinators.next_poll()
        watch.expect(1_762_000_000)
        (await coordinators.next_poll())[1].set_result(None)
        await refused.wait()
        assert watch.refuted_by == 0

    run(scenario)


def test_queues_take_member_ids_for_owners() -> None:
    lanes = lanes_of(some_table(7))
    assert lanes.epoch == 7
    assert list(lanes.owners) == [MEMBER] * SLOTS
    assert list(lanes.epochs) == [7] * SLOTS
    assert (lanes.revoked, lanes.present) == (frozenset(), frozenset({MEMBER}))
    nobody = lanes_of(CliqueState(epoch=3).table)
    assert (set(nobody.owners), nobody.present) == ({None}, frozenset())
