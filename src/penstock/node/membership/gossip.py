"""Drives gossip: datagrams in and out, one timer, and the numbers that must survive a restart.

`meta/gossip` holds a CRC-32C of 4 bytes, big-endian, and behind it a MessagePack array: boot epoch, reserved
incarnation. It is written once at every start, and again only when this node has had to contradict others some sixty
times. A lost or damaged file does no harm: the epoch also follows the wall clock, and this node learns from the others
the last incarnation and uses a higher one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from random import Random
from types import MappingProxyType

import msgspec

from penstock.batch.checksum import crc32c
from penstock.errors import CorruptLog, StorageError
from penstock.log.data_folder import GOSSIP_PATH
from penstock.log.disk import Disk
from penstock.node.membership.datagrams import DatagramNetwork, Datagrams
from penstock.node.scheduling.clock import Clock
from penstock.swim import (
    SALT_BYTES,
    Conflict,
    Effect,
    GossipEndpoint,
    Member,
    MemberChanged,
    MemberMeta,
    PacketRefusal,
    PacketRefused,
    SaveIncarnation,
    SendPacket,
    SendReliable,
    Session,
    State,
    Swim,
    SwimSettings,
)
from penstock.types import NodeId, Replica

log = logging.getLogger("penstock.gossip")

META = "meta"
CRC_SIZE = 4

Reliable = Callable[[NodeId | GossipEndpoint, bytes], bool]
"""Sends over the connection between nodes, never waits; False when the data was dropped. The receiving node passes it
to `Gossip.receive_reliable`. The address of a node is in `Gossip.members()`."""
OnChange = Callable[[Member, State], None]


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """The content of `meta/gossip`."""

    epoch: int = -1
    incarnation: int = -1

    @classmethod
    def load(cls, disk: Disk) -> "Saved":
        try:
            data = disk.read_file(GOSSIP_PATH)
        except FileNotFoundError:
            return cls()
        except CorruptLog:
            data = b""
        with suppress(msgspec.DecodeError):
            if int.from_bytes(data[:CRC_SIZE], "big") == crc32c(data[CRC_SIZE:]):
                return msgspec.msgpack.decode(data[CRC_SIZE:], type=cls)
        log.warning("%s is damaged; gossip starts without what it held", GOSSIP_PATH)
        return cls()

    def save(self, disk: Disk) -> None:
        body = msgspec.msgpack.encode(self)
        disk.write_file_atomic(GOSSIP_PATH, crc32c(body).to_bytes(CRC_SIZE, "big") + body)


class Gossip:
    """One node's membership. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        meta: MemberMeta,
        settings: SwimSettings,
        key: bytes | None,
        disk: Disk,
        clock: Clock,
        network: DatagramNetwork,
        reliable: Reliable,
        on_change: OnChange,
        chance: Random | None = None,
    ) -> None:
        """`on_change` is called for every member but this one, after `members()` has changed. Without `key`, gossip
        believes every sender that can reach the port: for loopback only."""
        self._meta = meta
        self._settings = settings
        self._key = key
        self._disk = disk
        self._network = network
        self._reliable = reliable
        self._on_change = on_change
        self._chance = chance or Random()
        self._core: Swim | None = None
        self._datagrams: Datagrams | None = None
        self._saved = Saved.load(disk)
        self._epoch = max(self._saved.epoch + 1, clock.wall_ms())
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0  # not every event loop's timer handles have `when`
        self._left = asyncio.Event()

    async def start(self, bind: GossipEndpoint) -> GossipEndpoint:
        """Listens, and returns the address. A port 0 in the metadata's `cluster` becomes the port that was bound."""
        self._disk.make_dir(META)
        self._loop = asyncio.get_running_loop()
        self._datagrams = await self._network.open(bind, self._receive)
        if self._meta.cluster.port == 0:
            cluster = GossipEndpoint(self._meta.cluster.host, self._datagrams.local.port)
            self._meta = msgspec.structs.replace(self._meta, cluster=cluster)
        self._core = Swim(
            meta=self._meta,
            last_incarnation=self._saved.incarnation,
            epoch=self._epoch,
            key=self._key,
            salt=self._chance.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big") if self._key else b"",
            settings=self._settings,
            random=self._chance,
            now=self._loop.time(),
        )
        self._carry_out(self._core.start(self._loop.time()))
        return self._datagrams.local

    def join(self, seeds: Iterable[GossipEndpoint]) -> None:
        """Tries the seeds now, and again whenever no other member is known to be alive."""
        self._carry_out(self._running.join(self._loop.time(), seeds))

    async def leave(self, timeout_s: float = 5.0) -> None:
        """Announces that this node leaves and waits until that was sent often enough, or for `timeout_s`. Does nothing
        if gossip was never started."""
        if self._core is None:
            return
        self._carry_out(self._running.leave(self._loop.time()))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._left.wait(), timeout_s)

    def stop(self) -> None:
        """Sends nothing from now on; without `leave` the others will find this node dead. Calling it twice is fine."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._datagrams is not None:
            self._datagrams.close()
        self._core = None

    def set_meta(self, meta: MemberMeta) -> None:
        """Announces new metadata of this node."""
        self._meta = meta
        self._carry_out(self._running.set_meta(self._loop.time(), meta))

    def forget(self, replica: Replica) -> None:
        """The metadata group has removed a dead member: it is no longer looked for."""
        self._carry_out(self._running.forget(self._loop.time(), replica))

    def peer_up(self, node: NodeId, session: Session | None = None, *, decrypts: bool = True) -> None:
        """The connection with a node has come up: nodes find each other by this where datagrams are blocked. `session`:
        which run of the node; None from a node of a version that does not send it. `decrypts`: whether it reads
        encrypted packets."""
        if self._core is not None:
            self._carry_out(self._core.connected(self._loop.time(), node, session, decrypts=decrypts))

    def peer_down(self, node: NodeId) -> None:
        if self._core is not None:
            self._carry_out(self._core.disconnected(self._loop.time(), node))

    def receive_reliable(self, sender: NodeId, data: bytes | memoryview) -> None:
        """A gossip frame arrived over the connection with `sender`."""
        if self._core is not None:
            self._carry_out(self._core.step_reliable(self._loop.time(), sender, bytes(data)))

    # --- what is known

    @property
    def epoch(self) -> int:
        """The epoch of this run, for the handshake; greater than that of any earlier run."""
        return self._epoch

    @property
    def meta(self) -> MemberMeta:
        return self._meta

    def members(self) -> Mapping[Replica, Member]:
        """All known members, this node included: the mapping changes as members do."""
        return MappingProxyType(self._running.members)

    def find(self, node: NodeId) -> Member | None:
        """The member with this node id that is most likely alive: of several folders, one that is alive."""
        known = [member for member in self._running.members.values() if member.node == node]
        return min(known, key=lambda member: (member.state, -member.incarnation), default=None)

    @property
    def refused(self) -> Mapping[PacketRefusal, int]:
        """Packets and claims that were dropped, by reason, for metrics."""
        return MappingProxyType(self._running.refused)

    @property
    def health_score(self) -> int:
        """0: this node is healthy; up to 7: it is slow or badly connected itself, and uses longer timeouts."""
        return self._running.health_score

    # --- inside

    @property
    def _running(self) -> Swim:
        if self._core is None:
            raise RuntimeError("gossip is not running")
        return self._core

    def _receive(self, source: GossipEndpoint, packet: bytes) -> None:
        if self._core is not None:
            self._carry_out(self._core.step(self._loop.time(), source, packet))

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._running.tick(self._loop.time()))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendPacket(to=to, data=data):
                    assert self._datagrams is not None
                    self._datagrams.send(to, data)
                case SendReliable(to=to, data=data):
                    self._reliable(to, data)
                case MemberChanged(member=member, state=state):
                    _tell_change(member, state)
                    self._on_change(member, state)
                case SaveIncarnation(incarnation=incarnation):
                    self._save(incarnation)
                case PacketRefused() | Conflict():
                    _tell_trouble(effect)
        self._set_timer()
        if self._core is not None and self._core.has_left:
            self._left.set()

    def _save(self, incarnation: int) -> None:
        try:
            Saved(self._epoch, incarnation).save(self._disk)
        except StorageError as problem:
            # After a restart the others would know a greater incarnation, and this node would use a higher one: slower,
            # and harmless.
            log.error("cannot save the gossip incarnation: %s", problem)

    def _set_timer(self) -> None:
        if self._core is None:  # a callback has stopped this gossip
            return
        due = self._core.next_deadline
        if self._timer is not None:
            if self._timer_due == due:
                return
            self._timer.cancel()
            self._timer = None
        if due != float("inf"):
            self._timer = self._loop.call_at(due, self._tick)
            self._timer_due = due


def _tell_change(member: Member, state: State) -> None:
    level = logging.INFO if state in (State.ALIVE, State.LEFT) else logging.WARNING
    log.log(level, "node %d at %s is %s", member.node, member.meta.cluster, state.name.lower())


def _tell_trouble(trouble: PacketRefused | Conflict) -> None:
    match trouble:
        case PacketRefused(reason=reason, source=source, detail=detail, suppressed=suppressed):
            again = f"; {suppressed} more were not logged" if suppressed else ""
            log.warning("gossip from %s refused: %s (%s)%s", source, reason.value, detail, again)
        case Conflict(first=first, second=second):
            log.error(
                "two nodes have the id %d: one at %s and one at %s. Give one of them another node id",
                first.node,
                first.cluster,
                second.cluster,
            )
