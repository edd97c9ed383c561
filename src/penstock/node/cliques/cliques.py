"""The cliques of a node: their coordinators, and the tables by which its queues deliver."""

from collections import Counter

import msgspec

from penstock.cluster import CLIQUES_TOPIC
from penstock.config import Limits, NodeConfig
from penstock.node.calls import Calls
from penstock.node.cliques.coordinators import CliqueCoordinators
from penstock.node.cliques.tables import CliqueTables
from penstock.node.coordination.durable_cores import DurableCores
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part
from penstock.node.queues.manager import QueueManager
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.ring import CliqueLimits
from penstock.ring.clique_changes import CliqueCounters
from penstock.ring.coordinator import CliqueCoordinator
from penstock.types import EventSink

PARTITIONS = 8
"""Partitions of the state topic, over which coordinators are spread in a cluster: as many as the queues' state topic
has by default."""

NAMED_MAX = 1_000
"""Cliques with figures of their own: Prometheus accepts that many series from one target without difficulty."""


class CliqueFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The cliques that a node coordinates, for monitoring, and what happened there since it was started."""

    cliques: int = 0
    members: dict[str, int] = {}
    """By clique; those beyond NAMED_MAX are counted together, under no name."""
    revoked: dict[str, int] = {}
    """Slots that are being handed over, by clique."""
    joined: int = 0
    left: int = 0
    expired: int = 0
    handovers: int = 0
    fenced: int = 0


class Cliques(Part):
    """All of a node's cliques."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        metadata: MetadataLog,
        controller: Controller,
        view: ClusterView,
        queues: QueueManager,
        calls: Calls,
        clock: Clock,
        events: EventSink,
    ) -> None:
        self._counters = CliqueCounters()
        self.fenced = 0
        """Settlements and connections of members that were refused because of an old epoch."""
        limits = clique_limits(config.limits)
        self._cores = DurableCores(
            CLIQUES_TOPIC,
            lambda: CliqueCoordinator(limits, events, self._counters),
            partitions=PARTITIONS,
            metadata=metadata,
            controller=controller,
            view=view,
            clock=clock,
        )
        self.coordinators = CliqueCoordinators(
            state=metadata.state,
            cores=self._cores,
            calls=calls,
        )
        self.tables = CliqueTables(self.coordinators, queues)

    def role_changed(self, partition: Partition) -> None:
        self._cores.role_changed(partition)

    async def stop(self) -> None:
        await self.tables.stop()
        self._cores.stop()

    def figures(self) -> CliqueFigures:
        found = [one for host in self._cores.loaded().values() for one in host.core.outlines()]
        members: Counter[str] = Counter()
        revoked: Counter[str] = Counter()
        for number, one in enumerate(found):
            name = one.clique if number < NAMED_MAX else ""
            members[name] += one.members
            revoked[name] += one.handovers
        return CliqueFigures(
            cliques=len(found),
            members=dict(members),
            revoked=dict(revoked),
            fenced=self.fenced,
            **msgspec.structs.asdict(self._counters),
        )


def clique_limits(limits: Limits) -> CliqueLimits:
    return CliqueLimits(
        max_cliques=limits.max_cliques,
        max_members=limits.max_clique_members,
        max_streams=limits.max_clique_streams,
    )
