"""How a worker reaches the state of its clique: a coordinator takes heartbeats and tells of new tables.

Penstock's brokers have a durable coordinator (http_coordinator.py). On carriers with compare-and-set the state is in a
cell that the members share, and each applies its own heartbeats to it (`penstock.ring.observer` has the rules)."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Final, Protocol

from penstock.clique.clocks import lease_clock_ms, wall_clock_ms
from penstock.clique.errors import CliqueError
from penstock.clique.pubsub import Delivery, PubSub
from penstock.errors import UnknownFormat
from penstock.ring.clique_state import CliqueState
from penstock.ring.heartbeats import Heartbeat, HeartbeatReply
from penstock.ring.observer import SilenceObserver, apply_heartbeat, conflict_pause_s
from penstock.ring.state_codec import decode_state, encode_state
from penstock.ring.table import Table

HINT_BYTES_MAX: Final = 20
"""Digits of an epoch."""


class Coordinator(Protocol):
    """On the loop of the control thread."""

    @property
    def holds_heartbeats(self) -> bool:
        """Whether it can hold a heartbeat back until there is a newer table. Otherwise `newer_table` tells."""
        ...

    async def heartbeat(self, heartbeat: Heartbeat, wait_s: float = 0.0) -> HeartbeatReply:
        """Raises ClientError: one that is retriable if the reply may come with the next heartbeat. `wait_s`: how long
        the reply may be held back, if it has no news."""
        ...

    async def newer_table(self, epoch: int, timeout_s: float) -> Table | None:
        """A table of a higher epoch, as soon as there is one; None after the timeout."""
        ...

    def next_owner(self, slot: int) -> str | None:
        """The member id of the worker that should own the slot, as far as is known."""
        ...

    async def close(self) -> None: ...


class CellCoordinator:
    """The state in a cell with compare-and-set. Members tell each other of new epochs: that makes handovers quick, and
    nothing depends on it, because every heartbeat reads the cell."""

    holds_heartbeats = False

    def __init__(self, pubsub: PubSub, clique: str) -> None:
        """`pubsub`: a connection of its own, on this loop."""
        if pubsub.store is None:
            raise CliqueError(f"{pubsub!r} has no store with compare-and-set")
        self._pubsub = pubsub
        self._store = pubsub.store
        self._key = f"clique.{clique}"
        self._hints = f"_clique.{clique}.epoch"
        self._observer = SilenceObserver()
        self._random = Random()
        self._state: CliqueState | None = None
        self._newest_epoch = 0
        self._heard = asyncio.Event()

    async def open(self) -> None:
        await self._pubsub.subscribe(self._hints, self._received_hint)

    async def heartbeat(self, heartbeat: Heartbeat, wait_s: float = 0.0) -> HeartbeatReply:
        """Repeats until the state that it has read is the state that it replaces."""
        tries = 0
        while True:
            revision, before = await self._read()
            silent = self._observer.silent(before, lease_clock_ms())
            state, reply = apply_heartbeat(before, heartbeat, silent, wall_clock_ms())
            if await self._store.put(self._key, encode_state(state), revision) is not None:
                self._state = state
                if state.epoch != before.epoch:
                    await self._pubsub.publish(self._hints, b"%d" % state.epoch)
                return reply
            tries += 1
            await asyncio.sleep(conflict_pause_s(tries) * self._random.random())

    async def newer_table(self, epoch: int, timeout_s: float) -> Table | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._newest_epoch <= epoch:
                    self._heard.clear()
                    await self._heard.wait()
        _, state = await self._read()
        self._state = state
        self._newest_epoch = min(
            self._newest_epoch, state.epoch
        )  # someone may have told of an epoch that never was
        return state.table if state.epoch > epoch else None

    def next_owner(self, slot: int) -> str | None:
        state = self._state
        target = None if state is None else state.targets[slot]
        return None if state is None or target is None else state.members[target].member_id

    async def close(self) -> None:
        """The cell stays: the epochs of a clique only grow."""
        await self._pubsub.close()

    async def _received_hint(self, delivery: Delivery) -> None:
        if delivery.data.isdigit() and len(delivery.data) < HINT_BYTES_MAX:
            self._newest_epoch = max(self._newest_epoch, int(delivery.data))
            self._heard.set()

    async def _read(self) -> tuple[int, CliqueState]:
        """With the revision that a change of it has to name."""
        cell = await self._store.get(self._key)
        if cell is None:
            return 0, CliqueState.begin(wall_clock_ms())
        try:
            return cell.revision, decode_state(cell.value)
        except UnknownFormat as unknown:
            raise CliqueError(
                f"the cell {self._key!r} does not hold the state of a clique: {unknown}. Do all workers have the same "
                "version of Penstock?"
            ) from None
