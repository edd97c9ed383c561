"""One broker without its ports: a data folder, its replicas, and all parts that work on them.

A node without an inter-node port is a cluster of one: it leads everything and waits for no other node. With such a port
it first finds its cluster (`membership`), then follows the metadata like every other node.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from penstock.cluster import ClusterState, PlacementRules
from penstock.config import NodeConfig, static_broker_configs
from penstock.errors import ErrorCode, KafkaError
from penstock.late_loading import late
from penstock.log.disk import Disk
from penstock.log.memory_disk import MemoryDisk
from penstock.node import frame_kinds
from penstock.node.access import Access, Quotas
from penstock.node.calls import Calls, ClusterChanges, Directory
from penstock.node.coordination.record_forwarder import RecordForwarder
from penstock.node.dedup.deduplication import Deduplication
from penstock.node.exclusive_producers import ExclusiveProducers
from penstock.node.fetch_sessions import FetchSessions
from penstock.node.housekeeping import Housekeeping
from penstock.node.late_parts import LateParts
from penstock.node.limits import descriptors
from penstock.node.limits.memory import MemoryBudget
from penstock.node.membership.entry import ClusterEntry, NodeAdmission
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.local_replicas import LocalReplicas
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.metadata.new_partitions import NewPartitionWaits
from penstock.node.metrics import NodeMetrics
from penstock.node.parts import Part, Parts
from penstock.node.replication.leader_announcer import LeaderAnnouncer
from penstock.node.replication.leaders import LeaderTable
from penstock.node.replication.partition import Partition
from penstock.node.replication.recovery import PartitionRecovery
from penstock.node.replication.storage import Storage
from penstock.node.resources import Resources
from penstock.node.scheduling.clock import Clock, SystemClock
from penstock.node.scheduling.threads import JobThread, SystemThread
from penstock.node.status.audit import Audit
from penstock.node.status.elections import Elections
from penstock.node.status.samples import Samples
from penstock.node.transactions.led_partitions import LedPartitions
from penstock.types import NO_EVENTS, EventSink, NodeId

if TYPE_CHECKING:  # a node without a cluster should not wait for imports that it does not use
    from penstock.node.access.first_user import FirstUser
    from penstock.node.membership.links import Links, MakeLinks
    from penstock.node.status.collector import StatusCollector


class Node(LateParts):
    """Constructed, started and stopped on one event loop, where everything happens."""

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
        on_growth: Callable[[int], None] | None = None,
        users: Mapping[str, str] | None = None,
        on_first_user: Callable[[str, str], None] | None = None,
    ) -> None:
        """Opens the data folder. `users` (with passwords) are made if a cluster that requires login has none;
        `on_first_user` is called with the name and the password of the first one. `links` connects the node with its
        cluster; `events` receives the node's events; `on_growth` is called with the number of replicas when there are
        many new ones."""
        self.config = config
        self.events = events
        self.clock: Clock = clock or SystemClock()
        self.node_id = NodeId(config.node_id)
        self.metrics = NodeMetrics(started_seconds=time.time())
        limits = config.limits
        self.client_memory = MemoryBudget("limits.max_client_memory_bytes", limits.max_client_memory_bytes)
        self.http_memory = MemoryBudget("limits.max_http_memory_bytes", limits.max_http_memory_bytes)
        self.parts = Parts()
        self.ready = False
        """Whether this node serves clients: its cluster has admitted it."""
        self._ready = asyncio.Event()

        self.storage = Storage(
            config,
            disk=disk or (MemoryDisk() if config.memory else _data_disk(config)),
            clock=self.clock,
            threads=threads,
            random=random or Random(),
            make_links=links,
            on_role=self.parts.role_changed,
        )
        self.me = self.storage.me
        self.links = self.storage.links
        self.partitions = self.storage.partitions

        # The cluster: what this node knows of it, and how it takes part in its decisions.
        changes = ClusterChanges()
        self.leaders = LeaderTable(changes.fire)
        state = ClusterState(self.node_id, static_broker_configs(config))
        self.metadata = MetadataLog(
            state, changed=self.parts.metadata_changed, settled=self.settled, events=events
        )
        self.replicas = LocalReplicas(
            me=self.me,
            state=state,
            partitions=self.partitions,
            workers=self.storage.workers,
            on_growth=on_growth,
        )
        self.access = Access(state, is_required=config.require_login, super_users=config.super_users)
        self.quotas = Quotas(state, self.metrics)
        self.audit = Audit(events, asyncio.get_running_loop().time, config.audit_data_sample_ms)
        own_logs = {name for name in (config.status_topic, config.audit_topic) if name}
        self.resources = Resources(state, self.partitions, self.access, self.audit, own_logs)
        self.view = self._make_view()
        self.calls = self._make_calls(changes)
        self.controller = self._make_controller()
        self.new_partitions = NewPartitionWaits(
            state=state, view=self.view, calls=self.calls, is_alone=self.is_alone
        )
        self.record_forwarder = RecordForwarder(
            state=state, partitions=self.partitions, controller=self.controller, calls=self.calls
        )

        # The parts that clients use.
        self.dedup = Deduplication(self.clock, config.limits.max_dedup_ids_per_partition)
        self.exclusive = ExclusiveProducers()
        self.fetch_sessions = FetchSessions(limits, now=asyncio.get_running_loop().time, random=random)
        self.led_transactions = LedPartitions(state=state, partitions=self.partitions, calls=self.calls)
        self.write_markers_through_cores()

        # Upkeep.
        self.recovery = self._make_recovery()
        self.samples = Samples(self)
        self.housekeeping = self._make_housekeeping()
        self._first_user = self._make_first_user(users or {}, on_first_user)
        if config.require_login or config.oidc.is_set:
            self.make("logins")  # it refuses settings that it cannot use
        self.parts.set(self._list_parts())

    def _list_parts(self) -> Iterator[Part]:
        """All parts, in the order in which they start and receive events; they stop in the reverse order."""
        state, links = self.metadata.state, self.links
        announcer = LeaderAnnouncer(
            node_id=self.node_id,
            state=state,
            leaders=self.leaders,
            transport=self.storage.raft.transport,
        )
        yield self.storage
        yield self.metadata
        yield self.access
        yield self.quotas
        yield self.calls
        yield Elections(self.metrics, self.events if links is not None else None)
        yield announcer
        yield from self.list_late_parts()
        yield self.led_transactions
        yield self.replicas
        yield self.dedup
        if links is not None:
            _connect(links, self.storage, announcer)
            yield links
        yield ClusterEntry(self.config, self.storage, self.metadata, self.replicas)
        yield self.housekeeping
        yield self.samples
        if links is not None:
            yield self.storage.raft
            yield from self._cluster_parts(links, announcer)
        if self._first_user is not None:
            yield self._first_user
        membership = links.membership if links is not None else None
        yield NodeAdmission(membership, self.controller, self.metadata, self._set_ready)

    def _cluster_parts(self, links: "Links", announcer: LeaderAnnouncer) -> Iterator[Part]:
        from penstock.node.metadata.controller_loop import ControllerLoop
        from penstock.node.replication.reconciler import ReplicaReconciler

        settings = self.config.replication
        yield ReplicaReconciler(
            me=self.me,
            state=self.metadata.state,
            partitions=self.partitions,
            controller=self.controller,
            announcer=announcer,
            alive=links.seen,
            hands_over=settings.auto_rebalance,
        )
        yield ControllerLoop(me=self.me, metadata=self.metadata, settings=settings, seen=links.seen)

    # --- making parts

    def _make_first_user(
        self, users: Mapping[str, str], show: Callable[[str, str], None] | None
    ) -> "FirstUser | None":
        if not self.config.require_login:
            return None
        from penstock.node.access.first_user import FirstUser

        return FirstUser(self.metadata, users, show or (lambda user, password: None))

    def _make_view(self) -> ClusterView:
        return ClusterView(
            node_id=self.node_id,
            listeners={one.name: one.advertised for one in self.config.kafka_listeners},
            rack=self.config.rack_name,
            state=self.metadata.state,
            leaders=self.leaders,
            connected=self.storage.raft.transport.connected,
        )

    def _make_recovery(self) -> PartitionRecovery:
        return PartitionRecovery(
            me=self.me,
            metadata=self.metadata,
            partitions=self.partitions,
            seen=self.links.seen if self.links is not None else dict,
            opened=self.replicas.finished,
        )

    def _make_controller(self) -> Controller:
        config = self.config
        return Controller(
            node_id=self.node_id,
            metadata=self.metadata,
            leaders=self.leaders,
            rules=PlacementRules(
                nodes=(self.node_id,),
                limits=config.limits,
                default_partitions=config.num_partitions,
                default_replication_factor=config.usual_replication_factor,
            ),
            is_factor_wanted=config.default_replication_factor > 0,
            calls=self.calls,
            seen=self.links.seen if self.links is not None else dict,
            transfer=self.storage.transfer,
        )

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            self.partitions,
            self.storage.workers,
            self.clock,
            self.metrics,
            chores=(self.tidy_queues,),
            brisk_chores=(self.clean_acked, self.replicas.open_again),
            retain_undone=self.retain_undone,
            shortened=self.log_shortened,
        )

    def _make_calls(self, changes: ClusterChanges) -> Calls:
        directory = Directory(
            node_id=self.node_id,
            state=self.metadata.state,
            view=self.view,
            leaders=self.leaders,
            is_alone=self.links is None,
        )
        calls = Calls(self.node_id, directory, changes, self.resources.check_call, make_parts=self.make_all)
        if self.links is not None:
            from penstock.node.calls.remote import RemoteCalls

            calls.connect(RemoteCalls(self.links.rpc, self.config.limits))
        return calls

    # --- start and stop

    async def start(self) -> None:
        """Recovers what the data folder holds. Partitions that cannot be opened stay offline; all else serves. A node
        of a cluster goes on to find the others in the background: `wait_ready` tells when it has."""
        try:
            await self.parts.start()
        except BaseException:
            with suppress(Exception):  # the first problem is the one to report
                await self.parts.stop()
            raise

    async def wait_ready(self) -> None:
        """Returns when this node serves clients; raises if it never will."""
        loop = asyncio.get_running_loop()
        ready, failed = loop.create_task(self._ready.wait()), loop.create_task(self.parts.failed())
        try:
            done, _ = await asyncio.wait({ready, failed}, return_when=asyncio.FIRST_COMPLETED)
            if ready not in done:
                failed.result()
        finally:
            ready.cancel()
            failed.cancel()

    def _set_ready(self) -> None:
        self.ready = True
        self._ready.set()
        self.events.tell("broker.ready")

    async def retire(self) -> None:
        """Hands over what this node leads, so that clients find the next leaders before it is gone."""
        if self.links is not None and self.ready:
            await self.storage.hand_over_all()

    async def stop(self) -> None:
        """Flushes everything that was written, then closes cleanly: the next start has nothing to recover."""
        self.ready = False
        await self.parts.stop()

    async def settled(self) -> None:
        """Returns when this node leads the partitions that it has opened, if it has no cluster: clients should not have
        to ask twice. It leads a new partition as soon as its vote is saved."""
        if self.links is None:
            await self.replicas.finished()
            await self.storage.hard_states.drain()

    # --- facts

    @late
    def status(self) -> "StatusCollector":
        from penstock.node.status.collector import StatusCollector

        return StatusCollector(self)

    @property
    def cluster_id(self) -> str:
        return self.storage.folder.cluster_id

    @property
    def is_alone(self) -> bool:
        """Whether it has no inter-node port."""
        return self.links is None

    @property
    def is_cut_off(self) -> bool:
        """Whether this node does not hear the controller, or as the controller does not hear a majority: it learns of
        no changes now."""
        return self.links is not None and not self.metadata.partition.is_in_touch

    def leader(self, topic: str, index: int) -> Partition:
        """The partition, which this node leads; KafkaError tells clients what else is the case."""
        known = self.metadata.state.topics.get(topic)
        if known is None or not 0 <= index < known.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{index}")
        partition = self.partitions.get(topic, index)
        partition.check_leads()
        return partition

    def disk_space(self) -> tuple[int, int]:
        """Total and usable bytes of the disk; -1 where that means nothing."""
        return -1, -1 if self.config.memory else self.storage.disk.free_bytes()


def _data_disk(config: NodeConfig) -> Disk:
    from penstock.log.os_disk import OsDisk  # a broker in memory does not need it

    return OsDisk(config.data_dir, most_open=descriptors.for_logs())


def _connect(links: "Links", storage: Storage, announcer: LeaderAnnouncer) -> None:
    """Frames from other nodes that are neither calls nor gossip."""
    raft = storage.raft
    links.events.take(frame_kinds.RAFT, raft.on_messages)
    links.events.take(frame_kinds.HEARTBEAT, raft.on_heartbeat)
    links.events.take(frame_kinds.LEADERS, announcer.heard)
    links.events.watch(up=raft.peer_up, down=raft.peer_down)
    links.events.watch(up=announcer.peer_up)
