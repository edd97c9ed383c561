"""The parts of a node that only some clients need: each is made, and its modules are loaded, when it is first needed.

Groups, transactions, queues, cliques, subscriptions and logins are a third of a node's modules: a broker in a test
should not wait for those that the test does not use. One of them is needed

 - when code asks the node for it (`node.queues`);
 - when the node begins to lead a partition of the internal topic with its state (`LatePart`), as after a restart;
 - when another node sends a request that no part serves yet (`make_all`).

So a part that is not made has no state: it leads nothing, and no client has asked it for anything.

To add one, write a method of `LateParts` that loads and makes it: with `@late_part()` if it is a `Part`, which the node
stops and tells of events, with `@late_part(TOPIC)` if its state is in an internal topic, and with `@late` if it is
neither. No other place lists it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.cluster import CLIQUES_TOPIC, OFFSETS_TOPIC, STATE_TOPIC, TRANSACTIONS_TOPIC
from penstock.config import NodeConfig
from penstock.late_loading import late
from penstock.node.access import Access
from penstock.node.calls import Calls
from penstock.node.coordination.record_forwarder import RecordForwarder
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.node.replication.storage import Storage
from penstock.node.resources import Resources
from penstock.node.scheduling.clock import Clock
from penstock.node.transactions.led_partitions import LedPartitions
from penstock.types import EventSink, NodeId

if TYPE_CHECKING:
    from penstock.node.access.administration import AccessAdmin
    from penstock.node.access.logins import Logins
    from penstock.node.cliques.cliques import Cliques
    from penstock.node.coordination.acked_cleanup import AckedCleanup
    from penstock.node.coordination.consumer_progress import ConsumerProgress
    from penstock.node.coordination.group_manager import GroupManager
    from penstock.node.coordination.undone_retention import UndoneRetention
    from penstock.node.queues.queues import Queues
    from penstock.node.subscriptions import SubscriptionManager
    from penstock.node.subscriptions.router import SubscriptionRouter
    from penstock.node.transactions.attempts import AttemptRouter
    from penstock.node.transactions.manager import TransactionManager


P = TypeVar("P", bound=Part)


class _PartAttribute(late[P], Generic[P]):
    """An attribute of `LateParts` that is in the node's list of parts."""

    def __init__(self, make: Callable[[Any], P], topic: str | None) -> None:
        super().__init__(make)
        self.topic = topic

    def __get__(self, owner: object, kind: type) -> P:
        part = super().__get__(owner, kind)
        assert type(part).start is Part.start, f"{part!r} is made late, and so its start is not called"
        return part


def late_part(topic: str | None = None) -> Callable[[Callable[[Any], P]], _PartAttribute[P]]:
    """`topic`: the internal topic with the part's state, if it has any. The part may not override `start`: the code
    that needs it first does not wait, so the part begins its work when it is made, or with its first event."""
    return lambda make: _PartAttribute(make, topic)


class LateParts:
    """The base of `Node` with these parts."""

    # What they are made of: the rest of the node.
    node_id: NodeId
    config: NodeConfig
    clock: Clock
    events: EventSink
    storage: Storage
    partitions: PartitionTable
    metadata: MetadataLog
    view: ClusterView
    controller: Controller
    access: Access
    resources: Resources
    calls: Calls
    record_forwarder: RecordForwarder
    led_transactions: LedPartitions

    open_subscribers: "Callable[[], SubscriptionManager] | None" = None
    """Makes what holds the attached subscribers. None while the node has no ports, and so no subscribers."""

    def is_made(self, name: str) -> bool:
        return name in vars(self)

    def make(self, name: str) -> None:
        getattr(self, name)

    def make_all(self) -> None:
        for kind in type(self).__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, late):
                    self.make(name)

    def list_late_parts(self) -> "Iterator[LatePart]":
        """For the node's list of parts, in the order of the methods below."""
        for name, value in vars(LateParts).items():
            if isinstance(value, _PartAttribute):
                yield LatePart(self, name, value.topic)

    @late_part()
    def logins(self) -> "Logins":
        from penstock.node.access.logins import Logins

        return Logins(
            self.metadata.state,
            oidc=self.config.oidc,
            max_session_ms=self.config.max_session_ms,
            clock=self.clock,
        )

    @late
    def access_admin(self) -> "AccessAdmin":
        from penstock.node.access.administration import AccessAdmin

        return AccessAdmin(
            metadata=self.metadata,
            calls=self.calls,
            resources=self.resources,
            access=self.access,
            logins=self.logins,
            clock=self.clock,
            limits=self.config.limits,
        )

    @late_part(OFFSETS_TOPIC)
    def groups(self) -> "GroupManager":
        from penstock.node.coordination.group_manager import GroupManager

        return GroupManager(
            metadata=self.metadata,
            controller=self.controller,
            view=self.view,
            clock=self.clock,
            settings=self.config.groups,
            limits=self.config.limits,
            visible=self.resources.visible,
            events=self.events,
        )

    @late_part(TRANSACTIONS_TOPIC)
    def transactions(self) -> "TransactionManager":
        from penstock.node.transactions.manager import TransactionManager

        return TransactionManager(
            metadata=self.metadata,
            controller=self.controller,
            view=self.view,
            clock=self.clock,
            settings=self.config.transactions,
            limits=self.config.limits,
            calls=self.calls,
        )

    @late
    def attempts(self) -> "AttemptRouter":
        from penstock.node.transactions.attempts import AttemptRouter

        return AttemptRouter(self.transactions, self.calls)

    @late_part(STATE_TOPIC)
    def queues(self) -> "Queues":
        from penstock.node.queues.queues import Queues

        return Queues(
            self.config,
            metadata=self.metadata,
            controller=self.controller,
            view=self.view,
            partitions=self.partitions,
            groups=self.groups,
            transactions=self.led_transactions,
            forwarder=self.record_forwarder,
            calls=self.calls,
            clock=self.clock,
            events=self.events,
        )

    @late_part(CLIQUES_TOPIC)
    def cliques(self) -> "Cliques":
        from penstock.node.cliques.cliques import Cliques

        return Cliques(
            self.config,
            metadata=self.metadata,
            controller=self.controller,
            view=self.view,
            queues=self.queues.manager,
            calls=self.calls,
            clock=self.clock,
            events=self.events,
        )

    @late
    def subscriptions(self) -> "SubscriptionRouter":
        from penstock.node.subscriptions.router import SubscriptionRouter
        from penstock.node.subscriptions.store import SubscriptionStore

        return SubscriptionRouter(
            node_id=self.node_id,
            state=self.metadata.state,
            store=SubscriptionStore(self.groups, self.clock, self.config.limits),
            open_live=lambda: None if self.open_subscribers is None else self.open_subscribers(),
            events=self.events,
            calls=self.calls,
        )

    @late
    def progress(self) -> "ConsumerProgress":
        from penstock.node.coordination.consumer_progress import ConsumerProgress

        return ConsumerProgress(
            node_id=self.node_id,
            state=self.metadata.state,
            view=self.view,
            groups=self.groups,
            queues=self.queues.manager,
            store=self.queues.state,
            calls=self.calls,
        )

    @late
    def acked(self) -> "AckedCleanup":
        from penstock.node.coordination.acked_cleanup import AckedCleanup

        return AckedCleanup(
            partitions=self.partitions,
            progress=self.progress,
            clock=self.clock,
            workers=self.storage.workers,
        )

    @late
    def undone_retention(self) -> "UndoneRetention":
        from penstock.node.coordination.undone_retention import UndoneRetention

        return UndoneRetention(
            progress=self.progress, store=self.queues.state, clock=self.clock, events=self.events
        )

    # --- what the rest of the node asks of them

    async def tidy_queues(self) -> None:
        if self.is_made("queues"):
            await self.queues.tidy()

    async def clean_acked(self) -> None:
        if any(topic.config.cleanup_acked for topic in self.metadata.state.topics.values()):
            await self.acked.clean()

    async def retain_undone(self, partitions: Sequence[Partition]) -> list[Partition]:
        if partitions or self.is_made("undone_retention"):
            return await self.undone_retention.retain(partitions)
        return []

    def log_shortened(self, partitions: Sequence[Partition]) -> None:
        """Queues whose state other nodes have may be here as well."""
        if STATE_TOPIC in self.metadata.state.topics:
            self.queues.log_shortened(partitions)

    def write_markers_through_cores(self) -> None:
        self.led_transactions.write_through(
            OFFSETS_TOPIC, lambda *which: self.groups.cores.write_marker(*which)
        )
        self.led_transactions.write_through(
            STATE_TOPIC, lambda *which: self.queues.state.cores.write_marker(*which)
        )


class LatePart(Part):
    """In the list of parts: passes events to the part once it is made, and makes it with the first leader here."""

    def __init__(self, parts: LateParts, name: str, topic: str | None) -> None:
        """`name`: of the attribute. `topic`: see `late_part`."""
        self._parts = parts
        self._name = name
        self._topic = topic

    def __repr__(self) -> str:
        return f"<the part {self._name!r}>"

    @property
    def _made(self) -> Any:
        return vars(self._parts).get(self._name)

    def role_changed(self, partition: Partition) -> None:
        if partition.name.topic == self._topic and partition.serves:
            getattr(self._parts, self._name).role_changed(partition)
        elif (made := self._made) is not None:
            made.role_changed(partition)

    def metadata_changed(self, topics: TopicChanges) -> None:
        if (made := self._made) is not None:
            made.metadata_changed(topics)

    async def stop(self) -> None:
        if (made := self._made) is not None:
            await made.stop()
