"""The cluster: nodes, partitions and lags; rebalancing, and nodes that leave. Any node answers; it asks the controller
for what only the controller may decide."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node
from penstock.node.calls.messages.controller import RebalanceStep
from penstock.node.replication.recovery import RecoveryReport
from penstock.node.status.cluster_status import ClusterStatus, NodeStatus, PartitionStatus
from penstock.web.api.problems import Problem
from penstock.web.api.routing import OFFLOAD_FROM_BYTES, Answer, Call, NoBody, NoParams, offloaded
from penstock.web.api.topics import TopicName, unknown_topic

MAX_AT_ONCE = 100
"""Partitions that one request may have moved at the same time: more would starve every client."""

_ANOTHER_NODE = "start another node with --seeds of this cluster"
_REFUSALS = {
    ErrorCode.BROKER_ID_NOT_REGISTERED: (404, "unknown_node", "GET /v1/cluster/nodes lists the nodes"),
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        409,
        "too_few_nodes",
        f"{_ANOTHER_NODE}, or give the topic fewer replicas, and try again",
    ),
    ErrorCode.INVALID_REQUEST: (409, "too_few_nodes", f"{_ANOTHER_NODE}, and try again"),
}
"""Status, code and advice for the controller's refusals, by Kafka's error code."""


class NodeParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_id: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class PartitionsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for the partitions of one topic, or of all."""

    topic: TopicName | UnsetType = UNSET


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes, as far as the answering node knows without asking the others."""

    nodes: list[NodeStatus]


class PartitionList(msgspec.Struct, frozen=True, kw_only=True):
    partitions: list[PartitionStatus]


class Rebalance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`dry_run`: only tell which moves are needed. `at_once`: how many partitions may move at the same time; the node's
    `replication.max_moves` if left out."""

    dry_run: bool = False
    at_once: Annotated[int, Meta(ge=1, le=MAX_AT_ONCE)] | None = None

    @property
    def only_looks(self) -> bool:
        return self.dry_run


class Decommissioning(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    decommissioning: bool


class Recovery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Without `accept_data_loss` the answer only shows the partitions. `topic`: only its partitions. `discard`: nodes
    that are connected and whose copies are given up, although they may have more than those of this node."""

    accept_data_loss: bool = False
    topic: TopicName | None = None
    discard: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(max_length=MAX_AT_ONCE)
    ] = ()

    @property
    def only_looks(self) -> bool:
        return not self.accept_data_loss


class Cluster:
    """Operations on the cluster."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def describe_cluster(self, call: Call[NoParams, None]) -> Answer[ClusterStatus]:
        snapshot = await self._node.status.snapshot()
        # The snapshot of a large cluster is megabytes of JSON: the event loop must not wait for it.
        return Answer(200, await offloaded(OFFLOAD_FROM_BYTES, msgspec.json.encode, snapshot))

    async def list_nodes(self, call: Call[NoParams, None]) -> NodeList:
        return NodeList(nodes=await self._node.status.nodes())

    async def list_partitions(self, call: Call[PartitionsParams, None]) -> Answer[PartitionList]:
        topic = None if call.params.topic is UNSET else call.params.topic
        found = await self._node.status.partitions(topic)
        if topic is not None and not found:
            raise unknown_topic(topic)
        shown = PartitionList(partitions=found)
        return Answer(200, await offloaded(OFFLOAD_FROM_BYTES, msgspec.json.encode, shown))

    async def rebalance(self, call: Call[NoParams, Rebalance]) -> RebalanceStep:
        wanted = call.body
        at_once = self._node.config.replication.max_moves if wanted.at_once is None else wanted.at_once
        with self._asking_the_controller():
            return await self._node.controller.rebalance(
                dry_run=wanted.dry_run, at_once=at_once, caller=call.caller
            )

    async def decommission_node(self, call: Call[NodeParams, NoBody]) -> Decommissioning:
        return await self._decommission(call, on=True)

    async def keep_node(self, call: Call[NodeParams, None]) -> Decommissioning:
        return await self._decommission(call, on=False)

    async def _decommission(self, call: Call[NodeParams, Any], *, on: bool) -> Decommissioning:
        node_id = call.params.node_id
        with self._asking_the_controller():
            await self._node.controller.decommission(node_id, on=on, caller=call.caller)
        return Decommissioning(node_id=node_id, decommissioning=on)

    async def recover_partitions(self, call: Call[NoParams, Recovery]) -> RecoveryReport:
        wanted, recovery = call.body, self._node.recovery
        with self._asking_the_controller():
            if not wanted.accept_data_loss:
                return recovery.find(wanted.topic, discarded=wanted.discard)
            return await recovery.recover(wanted.topic, discarded=wanted.discard)

    @contextmanager
    def _asking_the_controller(self) -> Iterator[None]:
        if self._node.is_alone:
            message = (
                f"node {self._node.node_id} is alone: it has no inter-node port, so nothing can move; start nodes with "
                "--cluster and --seeds to have a cluster"
            )
            raise Problem(409, "no_cluster", message)
        try:
            yield
        except KafkaError as refusal:
            raise as_cluster_problem(refusal) from None


def as_cluster_problem(refusal: KafkaError) -> Exception:
    """The controller's refusal as HTTP says it."""
    if refusal.code not in _REFUSALS:
        return refusal
    status, code, advice = _REFUSALS[refusal.code]
    return Problem(status, code, f"{refusal.message}; {advice}", "node_id" if status == 404 else None)
