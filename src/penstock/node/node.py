"""One broker without its ports: a data folder, its replicas, and everything that keeps them going.

Alone it is a cluster of one: it leads everything and waits for nobody. With an inter-node port it first finds its
cluster (`membership`), then follows the metadata group like every other node.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING

from penstock.cluster import METADATA_TOPIC, ClusterState, PlacementRules
from penstock.config import ClusterSettings, NodeConfig, TopicConfig, static_broker_configs
from penstock.config.group import GroupConfig as QueueConfig
from penstock.errors import CorruptLog, ErrorCode, KafkaError, PromisesLost
from penstock.log import DataFolder
from penstock.log.disk import Disk
from penstock.log.memory_disk import MemoryDisk
from penstock.log.os_disk import OsDisk
from penstock.node import frame_kinds
from penstock.node.calls import Calls, Changes, Directory
from penstock.node.clock import Clock, SystemClock
from penstock.node.coordination.acked_cleanup import AckedCleanup
from penstock.node.coordination.group_manager import GroupManager
from penstock.node.coordination.record_forwarder import RecordForwarder
from penstock.node.coordination.share_groups import ShareGroups
from penstock.node.dedup.deduplication import Deduplication
from penstock.node.exclusive_producers import ExclusiveProducers
from penstock.node.housekeeping import Housekeeping
from penstock.node.membership.no_network import NoNetwork
from penstock.node.metadata.cluster_view import METADATA_GROUP, ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.local_replicas import LocalReplicas
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.metrics import NodeMetrics
from penstock.node.queues.dead_letters import DeadLetterWriter
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.overview import QueueOverview
from penstock.node.queues.router import QueueRouter
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.queues.state_log import QueueStateLog
from penstock.node.replication.flusher import Flusher
from penstock.node.replication.hard_states import HardStates
from penstock.node.replication.leader_announcer import LeaderAnnouncer
from penstock.node.replication.leaders import LeaderTable
from penstock.node.replication.multi_raft import MultiRaft
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import LogLost, PartitionTable
from penstock.node.replication.vote_files import begin_anew, open_votes
from penstock.node.resources import Resources
from penstock.node.status.collector import StatusCollector
from penstock.node.subscriptions.router import SubscriptionRouter
from penstock.node.subscriptions.store import SubscriptionStore
from penstock.node.threads import JobThread, SystemThread
from penstock.node.workers import Workers
from penstock.raft import GroupConfig, RaftSettings, Refused
from penstock.types import NO_EVENTS, EventSink, GroupId, NodeId, Replica, TopicPartition

if TYPE_CHECKING:  # a node that is alone, in a test perhaps, should not wait for what it will not use
    from penstock.node.membership.links import Links, MakeLinks
    from penstock.node.peers import Rpc

log = logging.getLogger("penstock.node")

METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)
METADATA_CONFIG = TopicConfig(cleanup_delete=False, retention_ms=-1, max_message_bytes=2**31 - 1)
RETIRE_SECONDS = 3.0
RETIRE_CHECK_SECONDS = 0.02


class Node:
    """Start it, ask it for partitions, stop it. Everything happens on the loop that started it."""

    folder: DataFolder
    me: Replica
    partitions: PartitionTable
    resources: Resources
    metadata: MetadataLog
    calls: Calls
    controller: Controller
    groups: GroupManager
    share_groups: ShareGroups
    record_forwarder: RecordForwarder
    queues: QueueManager
    queue_overview: QueueOverview
    queue_router: QueueRouter
    subscription_desk: SubscriptionRouter
    acked: AckedCleanup
    flusher: Flusher
    view: ClusterView
    status: StatusCollector

    def __init__(
        self,
        config: NodeConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        links: "MakeLinks | None" = None,
        threads: Callable[[str], JobThread] = SystemThread,
        random: Random | None = None,
        events: EventSink = NO_EVENTS,
    ) -> None:
        """`events` is told what happens here."""
        self.config = config
        self.events = events
        self.clock: Clock = clock or SystemClock()
        self.node_id = NodeId(config.node_id)
        self.metrics = NodeMetrics(started_seconds=time.time())
        self.ready = False
        """Whether this node serves clients: its cluster has taken it in."""
        self._changes = Changes()
        self.leaders = LeaderTable(self._changes.fire)
        self.dedup = Deduplication(self.clock, config.limits.max_dedup_ids_per_partition)
        self.exclusive = ExclusiveProducers()
        self.links: Links | None = None
        self._disk: Disk = disk or (MemoryDisk() if config.memory else OsDisk(config.data_dir))
        self._make_links = links
        self._threads = threads
        self._random = random or Random()
        self._workers = Workers()
        self._ready = asyncio.Event()
        self._entering: asyncio.Task[None] | None = None
        self._opened: list[Callable[[], object]] = []
        """What to undo, last first, when the node stops or its start fails half way."""

    # --- facts

    @property
    def cluster_id(self) -> str:
        return self.folder.cluster_id

    @property
    def is_alone(self) -> bool:
        """Whether it has no inter-node port."""
        return self.links is None

    @property
    def _rpc(self) -> "Rpc | None":
        return self.links.rpc if self.links is not None else None

    @property
    def is_cut_off(self) -> bool:
        """Whether this node is out of touch with the controller, or as the controller with most of the others: what it
        does not know, it will not learn now."""
        return self.links is not None and not self.metadata.partition.is_in_touch

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def log_dir(self) -> str:
        return "memory" if self.config.memory else self.config.data_dir

    def leader(self, topic: str, index: int) -> Partition:
        """The partition, which this node leads; KafkaError tells clients what else is the case."""
        known = self.metadata.state.topics.get(topic)
        if known is None or not 0 <= index < known.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
        partition = self.partitions.get(topic, index)
        partition.check_leads()
        return partition

    def group_config(self, group_id: str) -> QueueConfig:
        """How a queue is to be treated."""
        return self.metadata.state.group_config(group_id)

    def disk_space(self) -> tuple[int, int]:
        """Total and usable bytes of the disk; -1 where that means nothing."""
        return -1, -1 if self.config.memory else self._disk.free_bytes()

    # --- life

    async def start(self) -> None:
        """Recovers what the data folder holds. Partitions that cannot be opened stay offline; all else serves. A node
        of a cluster goes on to find the others in the background: `wait_ready` tells when it has."""
        try:
            await self._start()
        except BaseException:
            await self._give_up()
            raise

    async def wait_ready(self) -> None:
        """Returns when this node serves clients; raises if it never will."""
        waiting = asyncio.get_running_loop().create_task(self._ready.wait())
        tasks = {waiting} if self._entering is None else {waiting, self._entering}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._entering is not None and self._entering.done() and not self._ready.is_set():
                self._entering.result()
                await waiting
        finally:
            waiting.cancel()

    async def _start(self) -> None:
        self._open_storage()
        self._open_cluster()
        self._open_groups()
        self._open_queues()
        self._open_upkeep()
        if self.links is None:
            await self._start_alone()
        else:
            await self._start_clustered(self.links)

    def _open_storage(self) -> None:
        """The folder, and what replicates logs in it."""
        clustered = self._make_links is not None
        self.folder = DataFolder.open(self._disk, node_id=self.node_id, wait_for_cluster=clustered)
        self._opened.append(self.folder.release)
        self.me = Replica(self.node_id, self.folder.incarnation)
        self._hard_states = self._open_hard_states()
        if self._make_links is not None:
            self.links = self._make_links(self)
        self.flusher = Flusher(self._disk, self._threads("penstock-flush"))
        self._assembly = MultiRaft(
            me=self.me,
            transport=self.links.network if self.links is not None else NoNetwork(),
            hard_states=self._hard_states,
            settings=_raft_settings(self.config.replication),
            clock=self.clock,
            random=self._random,
        )
        self.partitions = PartitionTable(
            disk=self._disk,
            topics_dir=self.folder.topics_dir,
            clock=self.clock,
            assembly=self._assembly,
            mark_dirty=self.flusher.mark,
            on_role=self._role_changed,
        )
        self._opened.append(self.partitions.close)

    def _open_cluster(self) -> None:
        """What this node knows of the others, and how it takes part in their decisions."""
        config = self.config
        self._state = ClusterState(self.node_id, static_broker_configs(config))
        self.metadata = MetadataLog(self._state, follower=self, events=self.events)
        self.resources = Resources(self._state, self.partitions)
        self._following = LocalReplicas(
            me=self.me, state=self._state, partitions=self.partitions, workers=self._workers
        )
        self._announcer = LeaderAnnouncer(
            node_id=self.node_id, leaders=self.leaders, transport=self._assembly.transport
        )
        self.view = ClusterView(
            node_id=self.node_id,
            advertised=config.advertised,
            rack=config.rack,
            state=self._state,
            leaders=self.leaders,
            connected=self._assembly.transport.connected,
        )
        self.calls = self._open_calls()
        self.controller = Controller(
            node_id=self.node_id,
            metadata=self.metadata,
            leaders=self.leaders,
            rules=self._placement_rules(),
            is_factor_wanted=config.default_replication_factor > 0,
            calls=self.calls,
            seen=self.links.seen if self.links is not None else dict,
            transfer=self._hand_over,
        )

    def _open_calls(self) -> Calls:
        directory = Directory(
            node_id=self.node_id,
            state=self._state,
            view=self.view,
            leaders=self.leaders,
            is_alone=self.links is None,
        )
        calls = Calls(self.node_id, directory, self._changes)
        if self.links is not None:
            from penstock.node.calls.remote import RemoteCalls

            calls.connect(RemoteCalls(self.links.rpc, self.config.limits))
        return calls

    def _open_groups(self) -> None:
        self.groups = GroupManager(
            metadata=self.metadata,
            controller=self.controller,
            view=self.view,
            clock=self.clock,
            settings=self.config.groups,
            limits=self.config.limits,
            events=self.events,
        )
        self.subscription_desk = SubscriptionRouter(
            node_id=self.node_id,
            state=self._state,
            view=self.view,
            store=SubscriptionStore(self.groups, self.clock, self.config.limits),
            events=self.events,
            rpc=self._rpc,
        )

    def _open_queues(self) -> None:
        state = self._state
        self.record_forwarder = RecordForwarder(
            state=state, partitions=self.partitions, controller=self.controller, calls=self.calls
        )
        self._queue_states = QueueStateLog(
            metadata=self.metadata,
            controller=self.controller,
            view=self.view,
            clock=self.clock,
            partitions=self.config.groups.state_topic_partitions,
        )
        self._queue_store = QueueStateClient(state=state, local=self._queue_states, calls=self.calls)
        self.queues = QueueManager(
            store=self._queue_store,
            graveyard=DeadLetterWriter(self.record_forwarder, self.clock, self.events),
            clock=self.clock,
            limits=self.config.limits,
            config_of=self.group_config,
            note=self._note_queue,
            events=self.events,
        )
        self.queue_overview = QueueOverview(
            node_id=self.node_id,
            state=state,
            view=self.view,
            partitions=self.partitions,
            store=self._queue_store,
            queues=self.queues,
            calls=self.calls,
            events=self.events,
        )
        self.queue_router = QueueRouter(
            node_id=self.node_id,
            state=state,
            view=self.view,
            partitions=self.partitions,
            queues=self.queues,
            calls=self.calls,
        )
        self.share_groups = ShareGroups(self.groups.cores, erase=self.queue_overview.forget, calls=self.calls)

    def _open_upkeep(self) -> None:
        self.status = StatusCollector(self)
        self.acked = AckedCleanup(
            node_id=self.node_id,
            state=self._state,
            view=self.view,
            partitions=self.partitions,
            groups=self.groups,
            queues=self.queues,
            store=self._queue_states,
            clock=self.clock,
            workers=self._workers,
            calls=self.calls,
        )
        self._housekeeping = Housekeeping(
            self.partitions,
            self._workers,
            self.clock,
            self.metrics,
            chores=(self.queues.tidy,),
            brisk_chores=(self.acked.clean,),
        )

    async def _note_queue(self, group_id: str) -> None:
        await self.share_groups.begin(group_id)

    def _open_hard_states(self) -> HardStates:
        """Before anything else that a node of a cluster writes: that there is more, without votes, tells of a loss."""
        store, is_older = open_votes(self._disk, self.folder, self.log_dir)
        thread = self._threads("penstock-votes")
        return HardStates(store, thread, volatile=self._disk.volatile, adopts=is_older)

    async def _start_alone(self) -> None:
        self._open_metadata(GroupConfig(voters=(self.me,)))
        await self._hard_states.drain()
        self._following.orphans()
        self._housekeeping.start()
        self._set_ready()

    async def _start_clustered(self, links: "Links") -> None:
        from penstock.node.metadata.controller_loop import ControllerLoop
        from penstock.node.replication.reconciler import ReplicaReconciler

        links.events.take(frame_kinds.RAFT, self._assembly.on_messages)
        links.events.take(frame_kinds.BEAT, self._assembly.on_beat)
        links.events.take(frame_kinds.LEADERS, self._announcer.heard)
        links.events.watch(up=self._peer_up, down=self._assembly.peer_down)
        await links.start()
        self._caretaker = ReplicaReconciler(
            me=self.me,
            state=self.metadata.state,
            partitions=self.partitions,
            controller=self.controller,
            announcer=self._announcer,
            alive=links.seen,
            hands_over=self.config.replication.auto_rebalance,
        )
        self._overseer = ControllerLoop(
            me=self.me, metadata=self.metadata, settings=self.config.replication, seen=links.seen
        )
        self._entering = asyncio.get_running_loop().create_task(self._enter(links))

    async def _enter(self, links: "Links") -> None:
        """Finds the cluster, then takes part in it. Over when this node is registered, or must not be."""
        await links.membership.find()
        founders = tuple(self.folder.founders)
        self._open_metadata(GroupConfig(voters=founders) if self.me in founders else None)
        self._assembly.start()
        self._housekeeping.start()
        self._caretaker.start()
        self._overseer.start()
        links.membership.register(self.controller, self.metadata, self._set_ready)
        await links.membership.admitted()

    def _open_metadata(self, founding: GroupConfig | None) -> None:
        try:
            self.metadata.partition = self.partitions.open_own(
                METADATA_PARTITION, METADATA_GROUP, METADATA_CONFIG, founding, self.metadata.apply_committed
            )
        except (LogLost, CorruptLog) as lost:
            if self.links is None:
                raise
            raise PromisesLost(
                f"the metadata of this node is lost: {lost}", begin_anew(self.log_dir)
            ) from lost
        self.metadata.partition.start()

    def _set_ready(self) -> None:
        self.ready = True
        self._ready.set()
        self.events.tell("broker.ready")

    def _peer_up(self, node: NodeId) -> None:
        self._assembly.peer_up(node)
        self._announcer.peer_up(node)

    def _placement_rules(self) -> PlacementRules:
        return PlacementRules(
            nodes=(self.node_id,),
            limits=self.config.limits,
            default_partitions=self.config.num_partitions,
            default_replication_factor=self.config.usual_replication_factor,
        )

    async def retire(self) -> None:
        """Hands over what this node leads, so that clients find the next leaders before it is gone. Not waited for
        long: without it they are elected."""
        if self.links is None or not self.ready:
            return
        deadline = asyncio.get_running_loop().time() + RETIRE_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            led = [one for one in self.partitions.tended() if one.leads and one.is_replicated]
            handing_over = [one for one in led if one.hand_over()]
            if not handing_over:
                return
            await asyncio.sleep(RETIRE_CHECK_SECONDS)

    async def stop(self) -> None:
        """Flushes everything that was written, then closes cleanly: the next start has nothing to recover."""
        self.ready = False
        if self.links is not None:
            await self._leave(self.links)
        await self._housekeeping.stop()
        self.dedup.stop()
        self.groups.cores.stop()
        await self.queues.stop()
        await self.metadata.drain()
        await self.flusher.stop()
        await self._following.drain()
        await self._hard_states.stop()
        self._workers.stop()
        self._undo()

    async def _leave(self, links: "Links") -> None:
        if self._entering is not None:
            self._entering.cancel()
            await asyncio.wait([self._entering])
        await self._overseer.stop()
        await self._caretaker.stop()
        self._assembly.stop()
        await links.stop()

    async def _give_up(self) -> None:
        if self.links is not None:
            await self.links.stop()
        self._undo()

    def _undo(self) -> None:
        """Runs everything, whatever fails on the way, and then says what failed first."""
        problems: list[Exception] = []
        while self._opened:
            try:
                self._opened.pop()()
            except Exception as problem:  # noqa: BLE001 - raised below
                problems.append(problem)
        if problems:
            raise problems[0]

    # --- acting on what the groups decide

    def _role_changed(self, partition: Partition) -> None:
        self.metrics.elections_won += partition.serves
        if partition.serves and self.links is not None:
            self._tell_elected(partition)
        self._announcer.role_changed(partition)
        self.dedup.role_changed(partition)
        self.queues.partition_moved(partition)
        self.groups.cores.role_changed(partition)
        self._queue_states.cores.role_changed(partition)

    def _tell_elected(self, partition: Partition) -> None:
        """A node that is alone leads everything all the time; of a cluster, each new leader tells of itself."""
        topic, index = partition.name
        if topic == METADATA_TOPIC:
            self.events.tell("controller.elected", term=partition.term)
        else:
            self.events.tell("leader.elected", topic=topic, partition=index, term=partition.term)

    def _hand_over(self, group: GroupId, to: int) -> None:
        """Lets another replica lead, if it can."""
        member = self._assembly.find(group)
        config = member.core.config if member is not None else None
        if member is None or config is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {self.node_id} does not lead {group}")
        try:
            for replica in config.voters:
                if replica.node == to:
                    member.transfer(replica)
        except Refused as refused:
            raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, str(refused)) from refused

    def metadata_changed(self, changed: Collection[str], vanished: Collection[str]) -> None:
        """A change of metadata is committed: carries it out here."""
        self._changes.fire()
        self.groups.metadata_changed([*vanished, *changed])
        for name in vanished:
            self._following.set_aside(name)
        for name in changed:
            self._following.bring(name)
        self.queues.topics_changed()
        self.dedup.tidy()
        if not self.metadata.state.topics.keys() >= set(changed) | set(vanished):
            topics = self.metadata.state.topics.values()
            self.leaders.keep({METADATA_GROUP.topic_id, *(topic.topic_id for topic in topics)})
        if self.links is not None:
            self.links.membership.follow_nodes(self.metadata)

    async def settled(self) -> None:
        """Alone, a node leads a new partition as soon as that is saved: clients should not have to ask twice."""
        if self.links is None:
            await self._hard_states.drain()


def _raft_settings(settings: ClusterSettings) -> RaftSettings:
    return RaftSettings(
        election_timeout_s=settings.election_timeout_ms / 1000,
        beat_interval_s=settings.heartbeat_interval_ms / 1000,
        max_append_bytes=settings.max_append_bytes,
        max_inflight_messages=settings.max_in_flight_messages,
        max_inflight_bytes=settings.max_in_flight_bytes,
        max_uncommitted_bytes=settings.max_uncommitted_bytes,
    )
