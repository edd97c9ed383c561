"""A machine that runs a production node: its disk, clock, event loop and threads, and how clients reach it."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.batch import check_batch
from penstock.config import Address, NodeConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, PenstockError, PromisesLost, StorageError
from penstock.log import DataFolder, Disk, Log
from penstock.log.layout import CLEANED_SUFFIX, SWAP_SUFFIX
from penstock.node import Node, frame_kinds
from penstock.node.membership.links import Links
from penstock.node.peers import PeerHello, TransportEvents
from penstock.node.replication.multi_raft import unpack
from penstock.node.replication.partition import Partition
from penstock.node.replication.raft_driver import RaftDriver
from penstock.node.scheduling.clock import Clock
from penstock.raft import AppendReply, Raft, RequestVote, VoteReply
from penstock.raft.heartbeats import as_named
from penstock.sim.clients import Answer
from penstock.sim.clock import SimClock
from penstock.sim.disk import PowerCut
from penstock.sim.loop import NodeLoop
from penstock.sim.machine import SimMachine
from penstock.sim.network import SimTransport
from penstock.sim.outcome import Violation
from penstock.sim.threads import SimThread
from penstock.types import GroupId, Isolation, NodeId, Offset, Replica

if TYPE_CHECKING:
    from penstock.sim.cluster import ClusterWorld

MAX_SKEW_MS = 3_600_000
"""Clocks an hour apart must do no harm."""
READ_BYTES = 4096
COMPACTION_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX)
OPERATIONS_OF_A_SWAP = 12
"""About: two renames, two or three syncs, and some files that go."""
SWAPS = 15
"""How much likelier a crash is there."""


class Host(SimMachine):
    """A computer that runs the node as it ships."""

    def __init__(self, world: "ClusterWorld", node_id: NodeId, random: Random) -> None:
        super().__init__(f"n{node_id}", random)
        self.world = world
        self.node_id = node_id
        drift = world.mix.clock_drift
        self.rate = 1 + random.uniform(-1, 1) * drift
        skew_ms = int(random.uniform(-1, 1) * MAX_SKEW_MS) if drift else 0
        self.clock = SimClock(world.scheduler, skew_ms=skew_ms, rate=self.rate)
        self.is_assembled = False
        """Whether it runs a node that has opened its folder."""
        self.ready = False
        self.me: Replica | None = None
        self.node: Node
        self.loop: NodeLoop
        self._watched: dict[GroupId, WatchedReplica] = {}
        self._cut_at: int | None = None
        """The operation of the disk before which the power goes."""

    @property
    def address(self) -> Address:
        return Address(self.name, 7000)

    # --- life

    def start(self) -> None:
        self.running, self.ready = True, False
        self._watched = {}
        self._cut_at, self.disk.on_operation = None, self._at_operation
        self.loop = NodeLoop(  # type: ignore[abstract]  # sockets, signals and processes are missing on purpose
            self.world.scheduler, self, self.random, rate=self.rate, on_bug=self.world.found_bug
        )
        self.loop.enter(self._boot)

    def _boot(self) -> None:
        self.loop.create_task(self._live())

    def _config(self) -> NodeConfig:
        world = self.world
        return NodeConfig(
            node_id=self.node_id,
            kafka=Address(self.name, 9092),
            http=None,
            cluster=self.address,
            seeds=world.seeds_of(self),
            machine=world.machine_of(self.node_id),
            num_partitions=world.partition_count,
            replication=world.settings,
            groups=world.group_settings,
            transactions=world.transaction_settings,
            topic_defaults=world.topic_defaults,
        )

    async def _live(self) -> None:
        try:
            self.node = Node(
                self._config(),
                clock=self.clock,
                disk=self.disk,
                links=self._links,
                threads=self._thread,
                random=Random(self.random.getrandbits(64)),
            )
            self.is_assembled = True
            await self.node.start()
            await self.node.wait_ready()
        except StorageError as problem:
            self.world.halted(self, str(problem))
            return
        except (CorruptLog, PromisesLost) as problem:
            raise Violation("a crash never looks like rot", f"{self.name}: {problem}") from problem
        self.ready = True

    def stop(self) -> None:
        self.running = self.ready = self.is_assembled = False
        self.disk.on_operation = None
        self.world.bury(self.loop)
        self.world.scheduler.crash(self)

    def do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Something that an operator asks of this node. It may be refused, and asked again some other time."""

        async def attempt() -> None:
            try:
                await work()
            except PenstockError as refused:
                self.world.scheduler.note(self.name, f"refuses an operator: {refused}")

        if self.ready:
            self.loop.enter(lambda: self.loop.create_task(attempt()))

    def leave(self, ended: Callable[[], None]) -> None:
        """Stops the node in order, as a signal does."""

        async def stop() -> None:
            try:
                await self.node.retire()
                await self.node.stop()
            except StorageError as problem:
                self.world.scheduler.note(self.name, f"does not stop cleanly: {problem}")
            ended()

        self.loop.enter(lambda: self.loop.create_task(stop()))

    # --- the node's seams

    def _links(self, config: NodeConfig, folder: DataFolder, disk: Disk, clock: Clock) -> Links:
        self.me = Replica(self.node_id, folder.incarnation)
        return Links(
            config,
            folder,
            disk,
            clock,
            make_network=self._transport,
            datagrams=self.world.datagrams.at_node(self, self.loop),
            bind=self.address,
            key=None,
            random=Random(self.random.getrandbits(64)),
        )

    def _transport(self, hello: PeerHello, events: TransportEvents) -> SimTransport:
        return SimTransport(self.world.wires, self, self.loop, hello, events, audit=self._audit)

    def _audit(self, to: NodeId, kind: int, body: bytes) -> None:
        """A message that leaves this node must be true after a power cut at this moment."""
        if kind != frame_kinds.RAFT or self.me is None:
            return
        mix = self.world.mix
        for envelope in unpack(memoryview(body)):
            message, me = envelope.message, as_named(self.me, envelope.sender)
            witness = self.world.witnesses[GroupId(UUID(bytes=envelope.topic_id), envelope.partition)]
            if isinstance(message, VoteReply) and message.granted and not message.pre:
                witness.told_vote(me, message.term, Replica(to, envelope.incarnation))
                self.world.aim(self, mix.crash_after_vote)
            elif isinstance(message, RequestVote) and not message.pre:
                witness.told_vote(me, message.term, me)
                self.world.aim(self, mix.crash_after_vote)
            elif isinstance(message, AppendReply) and message.match_index:
                witness.told_match(me, message.term, message.match_index)
                self.world.aim(self, mix.crash_after_ack)

    def is_home_of(self, replica: Replica) -> bool:
        """Whether it is this host's, in whatever life."""
        return self.me is not None and replica.life_of(self.me) is not None

    def watched(self) -> dict[GroupId, "WatchedReplica"]:
        """The replicas that were looked at last."""
        return self._watched

    def _thread(self, name: str) -> SimThread:
        return SimThread(
            self.world.scheduler,
            self,
            delay=self._disk_time,
            aim=lambda: self.world.aim(self, self.world.mix.crash_at_flush),
        )

    def _disk_time(self) -> float:
        world = self.world
        if world.calm:
            return 0.003
        slow = world.scheduler.time < self.slow_until or self.random.random() < world.mix.stuck_flush
        base = world.mix.flush_s * (0.5 + self.random.random())
        return base + self.random.random() * 2.0 if slow else base

    def _at_operation(self, number: int, kind: str, path: str) -> None:
        """Compaction is one event here, however many files it writes: to be hit in its middle it has to be aimed at."""
        if self._cut_at is None and not self.world.calm and path.endswith(COMPACTION_SUFFIXES):
            # A new segment is written in dozens of operations, and put in place with one.
            chance = self.world.mix.crash_in_compaction * (SWAPS if path.endswith(SWAP_SUFFIX) else 1)
            if self.random.random() < chance:
                self._cut_at = number + self.random.randrange(OPERATIONS_OF_A_SWAP)
        if self._cut_at is not None and number >= self._cut_at:
            self.world.tally.add("power cuts in a compaction")
            self.world.scheduler.note(self.name, f"*** power cut in a compaction, before {kind} {path}")
            for group, one in self._watched.items():
                self.world.witnesses[group].interrupted(one)
            self.world.power_cut(self)
            raise PowerCut

    # --- what witnesses look at

    def members(self) -> list["WatchedReplica"]:
        """The replicas that take part in their groups on this node."""
        found = []
        for group, consensus in self.node.storage.raft._groups.items():
            watched = self._watched.get(group)
            if watched is None or watched.consensus is not consensus:
                if watched is not None:
                    # It was let go of and came back, as a blank one.
                    self.world.witnesses[group].forget(watched.me)
                watched = self._watched[group] = WatchedReplica(self, consensus)
            found.append(watched)
        return found

    def has_halted_replicas(self) -> bool:
        """Because their disk failed, while they were open or when they should have been opened."""
        table = self.node.partitions
        held = [(name, index) for name in table.names() for index in table.held(name)]
        return any(table.offline_reason(*one) is not None for one in held) or any(
            one.offline_reason is not None for one in table.tended()
        )

    def found_rot(self) -> CorruptLog | None:
        """Damage that this node reports although its disk is intact."""
        table = self.node.partitions
        if self.world.is_rotten(self):
            return None
        held = [(name, index) for name in table.names() for index in table.held(name)]
        reasons = [table.offline_reason(*one) for one in held] + [
            one.offline_reason for one in table.tended()
        ]
        return next((reason for reason in reasons if isinstance(reason, CorruptLog)), None)

    def forget(self) -> None:
        """The world is over."""
        self._watched.clear()
        for name in ("node", "loop"):
            self.__dict__.pop(name, None)


class WatchedReplica:
    """One replica on one host."""

    def __init__(self, host: Host, consensus: RaftDriver) -> None:
        self.host = host
        self.consensus = consensus
        self.name = host.name
        self.core: Raft = consensus.core
        self.log: Log = consensus.log
        self.me: Replica = consensus.core.me

    def now(self) -> float:
        return self.host.loop.time()


class PartitionServer:
    """One partition at one host, as clients reach it: what the handlers of the Kafka port do, without the port."""

    def __init__(self, host: Host, topic: str, index: int) -> None:
        self.process = host
        self._host = host
        self._topic = topic
        self._index = index

    @property
    def me(self) -> Replica | None:
        return self._host.me

    def produce(self, batch: bytes, answer: Answer) -> bool:
        if not self._host.ready:
            return False
        taken: list[bool] = []
        self._host.loop.enter(lambda: taken.append(self._produce(batch, answer)))
        return taken[0]

    def _produce(self, batch: bytes, answer: Answer) -> bool:
        data = memoryview(bytearray(batch))
        try:
            partition = self._leader()
            partition.check_in_sync()
            appended = partition.append(data, check_batch(data))
        except KafkaError as problem:
            if problem.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise Violation("a producer's sequence goes on", f"{self._host.name}: {problem}") from problem
            answer("refused", self._known_leader())
            return False
        except StorageError:
            answer("refused", -1)
            return False
        if appended.duplicate:
            self._host.world.tally.add("repetitions recognised")
        self._host.world.faults.isolate_writer(self._host)
        committed = partition.committed_at(appended)
        if committed is None:
            answer("ok", appended.base_offset)
        else:
            committed.add_done_callback(lambda done: _answer(done, answer, appended.base_offset))
        return True

    def _leader(self) -> Partition:
        return self._host.node.leader(self._topic, self._index)

    def _known_leader(self) -> int:
        topic = self._host.node.metadata.state.topics.get(self._topic)
        return self._host.node.view.partition(topic, self._index).leader if topic is not None else -1

    def read(self, offset: int, answer: Callable[[int, int, bytes], None]) -> None:
        if self._host.ready:
            self._host.loop.enter(self._read, offset, answer)

    def _read(self, offset: int, answer: Callable[[int, int, bytes], None]) -> None:
        try:
            partition = self._leader()
            partition.check_readable()
            start, watermark = partition.start_offset, partition.end_for(Isolation.READ_UNCOMMITTED)
            wanted = Offset(min(max(offset, start), watermark))
            data = partition.read(wanted, READ_BYTES, end=watermark, at_least_one=True)
        except (KafkaError, StorageError, CorruptLog):
            return
        witness = self._host.world.witnesses[partition.group]
        for watched in self._host.members():
            if watched.consensus.group == partition.group:
                witness.serves(watched)
        answer(start, watermark, bytes(data))


def _answer(done: "asyncio.Future[None]", answer: Answer, offset: int) -> None:
    if done.cancelled() or done.exception() is not None:
        answer("unknown", -1)
    else:
        answer("ok", offset)
