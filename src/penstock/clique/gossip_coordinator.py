"""Owners on a carrier without compare-and-set: every worker decides for itself, by its own view of the clique.

Workers announce themselves and ping each other (`penstock.ring.view` has the rules). This coordinator makes a table of
the worker's own view, so that everything else is as on better carriers. There is no lease to lose: a worker is a member
as long as its control thread runs. Slots that move are lost at once, without a handover. While views differ, a key may
have two owners, and the epochs of different workers cannot be compared: they are no fencing tokens.

    _clique.NAME.gossip             for all workers
    _clique.NAME.gossip.WORKER      for one
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from penstock.client.errors import ClientError
from penstock.clique.clocks import lease_clock_ms, wall_clock_ms
from penstock.clique.errors import CliqueError
from penstock.clique.pubsub import Delivery, PubSub
from penstock.clique.tasks import end_tasks
from penstock.ring.assignment import UNASSIGNED, rebalanced
from penstock.ring.gossip import decode_gossip, encode_gossip
from penstock.ring.heartbeats import Heartbeat, HeartbeatReply, HeartbeatStatus
from penstock.ring.slots import SLOTS, bitmap_of
from penstock.ring.table import NO_OWNER, Table, pack_indexes
from penstock.ring.view import View, ViewSettings

log = logging.getLogger("penstock.clique")

INTRODUCED_RETRY_MS: Final = 50
"""How often a newcomer looks whether it knows the others."""


class GossipCoordinator:
    """On the loop of the control thread."""

    holds_heartbeats = False

    def __init__(self, pubsub: PubSub, clique: str) -> None:
        """`pubsub`: a connection of its own, on this loop."""
        self._pubsub = pubsub
        self._subject = f"_clique.{clique}.gossip"
        self._view: View | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_leaving = False
        self._slot_epochs = [0] * SLOTS
        self._table: Table | None = None
        self._known: Table | None = None
        """The newest table of the view."""
        self._picture: tuple[dict[str, str], list[str | None], bool] | None = None
        """What the table was made of: members, owners, and whether this worker leaves."""
        self._was_settled = False

    async def heartbeat(self, heartbeat: Heartbeat, wait_s: float = 0.0) -> HeartbeatReply:
        """Answered from this worker's own view."""
        view = self._view or await self._begin(heartbeat)
        view.tick(lease_clock_ms())  # after a pause it finds out that it slept, before it says what it owns
        if view.is_replaced:
            raise CliqueError(
                f"another process has the name of worker {heartbeat.worker}: give one of them another name"
            )
        self._is_leaving = heartbeat.leaving
        if heartbeat.leaving and not heartbeat.held:
            view.leave()
            await self._send(view)
            self._update(view)
            return self._reply(heartbeat, HeartbeatStatus.FENCED)
        self._was_settled |= view.is_settled
        if not self._was_settled:
            return self._reply(heartbeat, HeartbeatStatus.INTRODUCED, retry_ms=INTRODUCED_RETRY_MS)
        table = self._update(view)
        newer = table if table.epoch != heartbeat.epoch else None
        return self._reply(heartbeat, HeartbeatStatus.OK, lease_ms=heartbeat.lease_ms, table=newer)

    async def newer_table(self, epoch: int, timeout_s: float) -> Table | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._table is None or self._table.epoch <= epoch:
                    self._changed.clear()
                    await self._changed.wait()
        return self._table if self._table is not None and self._table.epoch > epoch else None

    def next_owner(self, slot: int) -> str | None:
        """Views change at once: there is no handover."""
        return None

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])
        await self._pubsub.close()

    # --- gossip

    async def _begin(self, heartbeat: Heartbeat) -> View:
        lease_ms = heartbeat.lease_ms
        settings = ViewSettings(
            probe_ms=lease_ms // 8, suspicion_ms=lease_ms * 5 // 8, announce_ms=lease_ms // 4
        )
        view = self._view = View(
            worker=heartbeat.worker,
            member_id=heartbeat.member_id,
            incarnation=wall_clock_ms(),
            now_ms=lease_clock_ms(),
            settings=settings,
        )
        await self._pubsub.subscribe(self._subject, self._received)
        await self._pubsub.subscribe(f"{self._subject}.{heartbeat.worker}", self._received)
        self._task = asyncio.get_running_loop().create_task(self._run(view))
        return view

    async def _run(self, view: View) -> None:
        while True:
            view.tick(lease_clock_ms())
            await self._send(view)
            self._update(view)
            self._wake.clear()
            delay_s = max(0.0, view.next_deadline_ms - lease_clock_ms()) / 1000
            with suppress(TimeoutError):
                async with asyncio.timeout(min(delay_s, 60.0)):
                    await self._wake.wait()

    async def _send(self, view: View) -> None:
        for worker, gossip in view.take():
            subject = self._subject if worker is None else f"{self._subject}.{worker}"
            try:
                await self._pubsub.publish(subject, encode_gossip(gossip))
            except ClientError as problem:
                log.info("gossip is lost: %s", problem)

    async def _received(self, delivery: Delivery) -> None:
        try:
            gossip = decode_gossip(delivery.data)
        except ValueError as problem:
            log.warning("%s: %s; it is ignored", delivery.subject, problem)
            return
        if self._view is not None and gossip.member_id != self._view.member_id:
            self._view.received(gossip, lease_clock_ms())
            self._wake.set()

    # --- the table

    def _update(self, view: View) -> Table:
        """A new table with a higher epoch, if anything has changed. A slot gets a new epoch only if it gets another
        owner, so that those that stay are not acquired again."""
        owners, member_ids = self._owners_by(view)
        picture = member_ids, owners, self._is_leaving
        if self._table is not None and picture == self._picture:
            return self._table
        epoch = max(1, wall_clock_ms() // 1000) if self._table is None else self._table.epoch + 1
        before = [None] * SLOTS if self._picture is None else self._picture[1]
        for slot in range(SLOTS):
            if owners[slot] != before[slot]:
                self._slot_epochs[slot] = epoch
        self._picture = picture
        mine = (slot for slot, owner in enumerate(owners) if owner == view.worker)
        self._table = self._make_table(epoch, bitmap_of(mine) if self._is_leaving else b"")
        self._changed.set()
        return self._table

    def _owners_by(self, view: View) -> "tuple[list[str | None], dict[str, str]]":
        """Who owns each slot, and the members. A worker that has left counts the others only: its slots go to them."""
        if view.table is None and not view.has_left:
            return [None] * SLOTS, {view.worker: view.member_id}
        known = view.table if view.table is not None else self._known
        self._known = known
        if known is None:
            return [None] * SLOTS, {}
        member_ids = dict(known.members)
        if not view.has_left:
            return [known.workers[at] for at in known.owner_indexes], member_ids
        member_ids.pop(view.worker, None)
        return rebalanced(UNASSIGNED, member_ids), member_ids

    def _make_table(self, epoch: int, revoked: bytes) -> Table:
        assert self._picture is not None
        member_ids, owners, _ = self._picture
        workers = sorted(member_ids)
        index: dict[str | None, int] = {worker: at for at, worker in enumerate(workers)}
        epochs = sorted(set(self._slot_epochs))
        epoch_index = {one: at for at, one in enumerate(epochs)}
        return Table(
            epoch=epoch,
            workers=tuple(workers),
            member_ids=tuple(member_ids[worker] for worker in workers),
            owners=pack_indexes([index.get(owner, NO_OWNER) for owner in owners]),
            epochs=tuple(epochs),
            slot_epochs=pack_indexes([epoch_index[one] for one in self._slot_epochs]),
            revoked=revoked,
        )

    def _reply(
        self,
        heartbeat: Heartbeat,
        status: HeartbeatStatus,
        *,
        lease_ms: int = 0,
        retry_ms: int = 0,
        table: Table | None = None,
    ) -> HeartbeatReply:
        epoch = 1 if self._table is None else self._table.epoch
        return HeartbeatReply(
            status=status,
            sequence=heartbeat.sequence,
            epoch=epoch,
            lease_ms=lease_ms,
            retry_ms=retry_ms,
            table=table,
        )
