"""Requests to the controller, and to a leader about its leadership."""

from uuid import UUID

import msgspec

from penstock.cluster.decisions import DEFAULT
from penstock.types import GroupId, Replica


class CreateTopic(msgspec.Struct, frozen=True, array_like=True):
    """Creates a topic because it is used; that it exists is no error."""

    name: str
    partitions: int = DEFAULT
    configs: dict[str, str] = {}


class NewPartitions(msgspec.Struct, frozen=True, array_like=True):
    """A topic that has this many partitions now."""

    topic_id: UUID
    partitions: int


class AwaitLeaders(msgspec.Struct, frozen=True, array_like=True):
    """Answered when the node knows a leader of each partition of these topics, or after this time."""

    topics: list[NewPartitions]
    within_ms: int


class CreateInternalTopic(msgspec.Struct, frozen=True, array_like=True):
    name: str
    partitions: int


class ReserveProducerIds(msgspec.Struct, frozen=True, array_like=True):
    """`node_id`: of the node that will hand the ids out."""

    node_id: int


class ProducerIdBlock(msgspec.Struct, frozen=True, array_like=True):
    first: int
    end: int


class ReportVoters(msgspec.Struct, frozen=True, array_like=True):
    """A leader's report: its group has these voters now, by the entry that ends at `index` of the group's log."""

    group: GroupId
    voters: list[Replica]
    index: int


class ReportDamage(msgspec.Struct, frozen=True, array_like=True):
    """A node's report: its replica no longer holds all that it acknowledged. `renewal` is the incarnation that the
    replica would have if it were made again."""

    group: GroupId
    replica: Replica
    renewal: int


class TransferLeadership(msgspec.Struct, frozen=True, array_like=True):
    group: GroupId
    to: int


class DecommissionNode(msgspec.Struct, frozen=True, array_like=True):
    node_id: int
    on: bool


class Rebalance(msgspec.Struct, frozen=True, array_like=True):
    """`at_once`: how many partitions may be moving at the same time."""

    dry_run: bool
    at_once: int


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's replicas as they are and as they shall be, and why, in words. `copies` are the nodes that have to
    be sent its data; none when only the preferred leader changes."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: tuple[int, ...]
    copies: tuple[int, ...]
    reason: str


class PlannedLead(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that another replica should lead."""

    topic: str
    partition: int
    leader: int
    to: int


class RebalanceStep(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one rebalance request, and the rest: moves that wait for their turn, partitions whose leader is not
    the preferred one (also those whose leadership is being transferred), and how many moves are under way."""

    begun: tuple[PlannedMove, ...]
    handed_over: tuple[PlannedLead, ...]
    moves_left: tuple[PlannedMove, ...]
    leads_left: tuple[PlannedLead, ...]
    under_way: int

    @property
    def done(self) -> bool:
        return not (self.moves_left or self.leads_left or self.under_way)
