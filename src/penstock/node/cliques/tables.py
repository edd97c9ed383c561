"""The newest tables of the cliques whose workers are connected to this node.

While a worker of a clique is connected, one long poll at the clique's coordinator waits for the next table. Each new
table goes to the clique's queues on the partitions that this node leads, which take back the messages of owners that
lost their slots, and then to the connections of the workers. The rules are those of `ring.owner_fence`; invariant 10 of
`queue.partition` keeps them for whole ranges of messages.

A table may be late. That delays deliveries and never allows too much: a worker starts handlers only by a table that it
knows itself, and while its lease lasts (`ring.member`).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import KafkaError
from penstock.node.calls import BROKER
from penstock.node.cliques.coordinators import CliqueCoordinators
from penstock.node.queues.lane_driver import LaneDriver
from penstock.node.queues.manager import QueueManager
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.queue.lanes import LaneTable
from penstock.ring import Table, slots_of
from penstock.ring.table import NO_OWNER, unpack_indexes

log = logging.getLogger("penstock.cliques")

TABLE_WAIT_MS = 10_000
"""One long poll. A coordinator that was replaced unnoticed is found after this time at the latest."""
PAUSE_SECONDS = 0.2
"""After a poll that failed, or found no such clique. Deliveries wait for the next table, so this is no background work
(`RetryBackoff`), whose pauses grow."""
REFRESH_SECONDS = 1.0
"""A worker may know a newer table than this node. If the long poll has not brought that table after this time, it is
given up: its coordinator may have been replaced without having noticed. The coordinator is then asked once for its
newest table."""
EPOCHS_AHEAD_MAX = 100
"""A worker that claims to know an epoch further ahead of the coordinator's is refused. An honest one knows none ahead:
its table was committed before. The claims of others cost one question each, so this bounds these, too."""

Notify = Callable[[], None]


class Answer(NamedTuple):
    """Of the coordinator: the newest table, or None if there is no such clique."""

    table: Table | None


class FollowedTable:
    """The newest table of one clique, and the connections that want to know of the next one."""

    def __init__(self) -> None:
        self.members: frozenset[tuple[str, str]] = frozenset()
        """Workers with their member ids."""
        self.lanes = LaneTable()
        self.watches: dict[TableWatch, Notify] = {}
        self.task: asyncio.Task[None] | None = None
        self.poll: asyncio.Task[Answer | None] | None = None
        self.must_look = False
        """The next question is what the coordinator knows now, and not a long poll."""
        self.timer: asyncio.TimerHandle | None = None


class TableWatch:
    """One worker's interest in its clique."""

    def __init__(self, tables: "CliqueTables", clique: str, followed: FollowedTable) -> None:
        self._tables = tables
        self._clique = clique
        self._followed = followed
        self.claimed_epoch = 0
        """The newest table that the worker claims to know."""
        self.is_checked = True
        """Whether the coordinator was asked since the worker has claimed that."""
        self.refuted_by: int | None = None
        """The coordinator's epoch, if the worker cannot know what it claims to know."""

    @property
    def is_waiting(self) -> bool:
        """Whether the worker knows a newer table than this node, and the coordinator was not asked since."""
        return not self.is_checked and self.claimed_epoch > self._followed.lanes.epoch

    @property
    def epoch(self) -> int:
        """Of the newest table that this node knows; 0 if it knows none."""
        return self._followed.lanes.epoch

    def is_member(self, worker: str, member_id: str) -> bool:
        """Whether the newest table has this incarnation of the worker."""
        return (worker, member_id) in self._followed.members

    def expect(self, epoch: int) -> None:
        """The worker claims to know this table, so there should be one."""
        if epoch > self.claimed_epoch:
            self.claimed_epoch, self.is_checked = epoch, False
            self._tables.expect(self._followed)

    def check(self, claimed_epoch: int, epoch: int) -> None:
        """The coordinator was asked after the worker had claimed this, and is at that epoch."""
        self.is_checked = self.claimed_epoch == claimed_epoch
        if claimed_epoch > epoch + EPOCHS_AHEAD_MAX:
            self.refuted_by = epoch

    def apply(self, driver: LaneDriver) -> None:
        """Makes a queue deliver by the newest table."""
        if driver.lane_epoch < self._followed.lanes.epoch:
            driver.assign_lanes(self._followed.lanes)

    def close(self) -> None:
        self._tables.forget(self._clique, self)


class CliqueTables:
    """The tables of this node. Every method is called on the event loop."""

    def __init__(self, coordinators: CliqueCoordinators, queues: QueueManager) -> None:
        self._coordinators = coordinators
        self._queues = queues
        self._followed: dict[str, FollowedTable] = {}

    def watch(self, clique: str, notify: Notify) -> TableWatch:
        """Follows the clique's table until the watch is closed; `notify` is called after each new one."""
        followed = self._followed.get(clique)
        if followed is None:
            followed = self._followed[clique] = FollowedTable()
            followed.task = asyncio.get_running_loop().create_task(self._follow(clique, followed))
        watch = TableWatch(self, clique, followed)
        followed.watches[watch] = notify
        return watch

    def forget(self, clique: str, watch: TableWatch) -> None:
        followed = self._followed.get(clique)
        if followed is None or followed.watches.pop(watch, None) is None or followed.watches:
            return
        del self._followed[clique]
        _end(followed)

    async def stop(self) -> None:
        tasks = [one.task for one in self._followed.values() if one.task is not None]
        for followed in self._followed.values():
            _end(followed)
        self._followed.clear()
        if tasks:
            await asyncio.wait(tasks)

    def expect(self, followed: FollowedTable) -> None:
        """Asks again if the poll that is under way does not bring the table that a worker knows soon."""
        if followed.timer is None and any(watch.is_waiting for watch in followed.watches):
            loop = asyncio.get_running_loop()
            followed.timer = loop.call_later(REFRESH_SECONDS, self._refresh, followed)

    def _refresh(self, followed: FollowedTable) -> None:
        followed.timer = None
        if followed.poll is not None and any(watch.is_waiting for watch in followed.watches):
            followed.must_look = True
            followed.poll.cancel()

    async def _follow(self, clique: str, followed: FollowedTable) -> None:
        try:
            while True:
                goes_on = False
                with logged_bugs(f"following the table of clique {clique!r}"):
                    goes_on = await self._follow_once(clique, followed)
                if not goes_on:
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            if followed.poll is not None:
                followed.poll.cancel()

    async def _follow_once(self, clique: str, followed: FollowedTable) -> bool:
        """Whether the coordinator can be asked again at once."""
        is_look = followed.must_look
        claims = {watch: watch.claimed_epoch for watch in followed.watches} if is_look else {}
        wait_ms = 0 if is_look else TABLE_WAIT_MS
        followed.poll = asyncio.ensure_future(self._ask(clique, followed.lanes.epoch, wait_ms))
        await asyncio.wait({followed.poll})
        if followed.poll.cancelled():
            return True
        answer = followed.poll.result()
        table = answer.table if answer is not None else None
        if table is not None and table.epoch > followed.lanes.epoch:
            self._take(clique, followed, table)
        if is_look and answer is not None:
            followed.must_look = False
            self._check_claims(followed, claims, table.epoch if table is not None else 0)
            return True
        return table is not None

    async def _ask(self, clique: str, known_epoch: int, wait_ms: int) -> Answer | None:
        """None if the coordinator does not answer."""
        try:
            return Answer(await self._coordinators.table(clique, known_epoch, wait_ms, caller=BROKER))
        except KafkaError as problem:
            log.debug("the table of clique %r is not known: %s", clique, problem)
            return None

    def _check_claims(self, followed: FollowedTable, claims: "dict[TableWatch, int]", epoch: int) -> None:
        for watch, claimed_epoch in claims.items():
            watch.check(claimed_epoch, epoch)
            notify = followed.watches.get(watch)
            if watch.refuted_by is not None and notify is not None:
                notify()
        self.expect(followed)

    def _take(self, clique: str, followed: FollowedTable, table: Table) -> None:
        followed.members = frozenset(table.members)
        followed.lanes = lanes_of(table)
        # The table counts as taken from here on, so each is told of it, whatever bug another one has.
        for driver in self._queues.drivers_of(clique):
            if isinstance(driver, LaneDriver) and driver.is_open:
                with logged_bugs(f"telling {driver.partition.name} of the table of clique {clique!r}"):
                    driver.assign_lanes(followed.lanes)
        for notify in list(followed.watches.values()):
            with logged_bugs(f"telling a worker of the table of clique {clique!r}"):
                notify()


def _end(followed: FollowedTable) -> None:
    if followed.task is not None:
        followed.task.cancel()
    if followed.timer is not None:
        followed.timer.cancel()


def lanes_of(table: Table) -> LaneTable:
    """The table as queues take it: an owner is a member id, which no other incarnation of a worker ever has."""
    owners: dict[int, str | None] = dict(enumerate(table.member_ids))
    owners[NO_OWNER] = None
    return LaneTable(
        epoch=table.epoch,
        owners=[owners[index] for index in table.owner_indexes],
        epochs=[table.epochs[index] for index in unpack_indexes(table.slot_epochs)],
        revoked=frozenset(slots_of(table.revoked)),
        present=frozenset(table.member_ids),
    )
