"""The state of the cluster at a glance: a summary that stays small with thousands of topics, the figures of the last
minutes for plots, and who the caller is."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.node import Node
from penstock.node.calls.messages.status import Sample
from penstock.node.status.cluster_status import NodeStatus
from penstock.node.status.samples import SAMPLE_MS
from penstock.version import VERSION
from penstock.web.api.groups import GroupName
from penstock.web.api.routing import Call, NoParams
from penstock.web.callers import PASSWORD_USER, TOKEN


class SamplesParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`since_ms`: only samples after this time, in milliseconds since 1970."""

    since_ms: Annotated[int, Meta(ge=0, le=2**62)] = 0


class GroupSamplesParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: GroupName
    since_ms: Annotated[int, Meta(ge=0, le=2**62)] = 0


class NodeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`leads` and `hosts` count partitions."""

    node_id: int
    state: str
    controller: bool
    fenced: bool
    decommissioning: bool
    rack: str | None
    version: str
    kafka: str
    http: str | None
    leads: int
    hosts: int
    machine: str | None = None


class ClusterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`troubles` are all problems, in words; `notes` are facts that may be a problem of an application. `status_topic`
    has the status log; it is null where there is none."""

    cluster_id: str
    node_id: int
    alone: bool
    healthy: bool
    controller: int | None
    nodes: list[NodeSummary]
    topics: int
    partitions: int
    moves: int
    troubles: list[str]
    notes: list[str]
    status_topic: str | None


class SampleOut(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment. Rates are per second, over the interval before it. `lag` counts messages that consumer
    groups have not committed, on partitions of which the group's coordinator has a replica. `ready`, `leased` and
    `delayed` are messages of queues. `nodes` says how many nodes are in the sums."""

    time_ms: int
    nodes: int
    bytes_in_rate: float
    bytes_out_rate: float
    message_rate: float
    request_rate: float
    connections: int
    lag: int
    ready: int
    leased: int
    delayed: int


class SampleList(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest first. `unanswered` are nodes that are missing in it."""

    interval_ms: int
    samples: list[SampleOut]
    unanswered: list[int]


class LagSample(msgspec.Struct, frozen=True, kw_only=True):
    time_ms: int
    lag: int


class LagSamples(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    interval_ms: int
    samples: list[LagSample]


class CallerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`user` has logged in with its password, `token_id` is the API token that was used instead; both are null where
    no login is required, or the caller has shown a certificate."""

    principal: str
    login_required: bool
    user: str | None
    token_id: str | None
    node_id: int
    cluster_id: str
    version: str


class Overview:
    """Operations on all of the cluster, which only look."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def show_caller(self, call: Call[NoParams, None]) -> CallerFacts:
        scope, node = call.request.scope, self._node
        return CallerFacts(
            principal=call.caller.principal,
            login_required=node.config.require_login,
            user=scope.get(PASSWORD_USER),
            token_id=scope.get(TOKEN),
            node_id=node.node_id,
            cluster_id=node.cluster_id,
            version=VERSION,
        )

    async def summarize_cluster(self, call: Call[NoParams, None]) -> ClusterSummary:
        status = await self._node.status.snapshot()
        topics = {one.topic for one in status.partitions}
        return ClusterSummary(
            cluster_id=status.cluster_id,
            node_id=status.node_id,
            alone=status.alone,
            healthy=status.healthy,
            controller=status.controller,
            nodes=[_node(one) for one in status.nodes],
            topics=sum(
                not name.startswith("__") and name not in self._node.resources.own_logs for name in topics
            ),
            partitions=len(status.partitions),
            moves=len(status.moves),
            troubles=list(status.troubles),
            notes=_notes(len(status.held_back), len(status.hanging_transactions)),
            status_topic=self._node.config.status_topic or None,
        )

    async def list_samples(self, call: Call[SamplesParams, None]) -> SampleList:
        told, silent = await self._node.samples.of_cluster(_one_before(call.params.since_ms))
        return SampleList(interval_ms=SAMPLE_MS, samples=add_up(told.values()), unanswered=silent)

    async def list_group_samples(self, call: Call[GroupSamplesParams, None]) -> LagSamples:
        params = call.params
        told, _ = await self._node.samples.of_cluster(params.since_ms, params.group)
        lags: Counter[int] = Counter()
        for samples in told.values():
            lags.update({one.time_ms: one.lags[params.group] for one in samples if params.group in one.lags})
        rows = [LagSample(time_ms=time_ms, lag=lags[time_ms]) for time_ms in sorted(lags)]
        return LagSamples(group=params.group, interval_ms=SAMPLE_MS, samples=rows)


def _one_before(since_ms: int) -> int:
    """Rates need the sample before the first one that is shown."""
    return max(0, since_ms - SAMPLE_MS)


def add_up(nodes: Iterable[Sequence[Sample]]) -> list[SampleOut]:
    """The samples of all nodes as those of the cluster. A node's first sample has no rate, so it is left out."""
    found: dict[int, SampleOut] = {}
    for samples in nodes:
        for before, one in pairwise(samples):
            row = _rated(before, one)
            found[one.time_ms] = _sum(found[one.time_ms], row) if one.time_ms in found else row
    return [found[time_ms] for time_ms in sorted(found)]


def _rated(before: Sample, one: Sample) -> SampleOut:
    seconds = max(1, one.time_ms - before.time_ms) / 1000

    def rate(name: str) -> float:
        # A node that ceased to lead a partition counts fewer messages than before.
        grown: int = getattr(one, name) - getattr(before, name)
        return round(max(0, grown) / seconds, 1)

    return SampleOut(
        time_ms=one.time_ms,
        nodes=1,
        bytes_in_rate=rate("bytes_in"),
        bytes_out_rate=rate("bytes_out"),
        message_rate=rate("messages"),
        request_rate=rate("requests"),
        connections=one.connections,
        lag=one.lag,
        ready=one.ready,
        leased=one.leased,
        delayed=one.delayed,
    )


def _sum(one: SampleOut, other: SampleOut) -> SampleOut:
    names = [name for name in SampleOut.__struct_fields__ if name != "time_ms"]
    sums = {name: getattr(one, name) + getattr(other, name) for name in names}
    return SampleOut(time_ms=one.time_ms, **sums)


def _node(one: NodeStatus) -> NodeSummary:
    return NodeSummary(
        node_id=one.node_id,
        state=one.state,
        controller=one.controller,
        fenced=one.fenced,
        decommissioning=one.decommissioning,
        rack=one.rack,
        version=one.version,
        kafka=one.kafka,
        http=one.http,
        leads=sum(map(len, one.leads.values())),
        hosts=sum(map(len, one.hosts.values())),
        machine=one.machine,
    )


def _notes(held_back: int, hanging: int) -> list[str]:
    notes = []
    if held_back:
        notes.append(f"partitions that a queue keeps longer than retention allows: {held_back}")
    if hanging:
        notes.append(f"transactions that are open longer than their timeout: {hanging}")
    return notes
