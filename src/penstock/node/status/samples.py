"""The node's figures of the last minutes, for plots without a monitoring system.

Every SAMPLE_MS the node stores one Sample, RING_SAMPLES of them: a quarter of an hour in a few hundred kilobytes. A
sample copies counters and adds up offsets, a microsecond for each partition. All nodes sample at the same moments of
the wall clock, so that the samples of a cluster can be added up.

The node keeps only the newest figures of each topic: thousands of topics would make the ring large.

Only nodes with an HTTP port sample: there is no other way to ask for samples. Rates are computed from two neighbours:
`bytes_in`, `bytes_out`, `messages` and `requests` count since the node started, or began to lead.
"""

import asyncio
from collections import deque
from collections.abc import Container
from typing import TYPE_CHECKING, cast

import msgspec

from penstock.errors import KafkaError
from penstock.node.calls import BROKER, methods
from penstock.node.calls.messages.status import ALL_GROUPS, ListSamples, Sample, TopicFigures
from penstock.node.parts import Part
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.slices import in_slices
from penstock.types import Caller, TopicPartition

if TYPE_CHECKING:
    from penstock.node.node import Node

SAMPLE_MS = 5_000
RING_SAMPLES = 180
RECENT_SAMPLES = 3
"""A node whose last sample is older was too busy, or is gone."""
ROWS_PER_TURN = 200
"""Partitions and groups that are looked at before other work gets its turn."""
MAX_GROUPS = 200
"""Groups whose lag is kept, those that are farthest behind: a name and a number in each sample."""


Offsets = dict[TopicPartition, tuple[int, int]]
"""The first offset of a partition, and the one after the last that is committed."""


NO_FIGURES = TopicFigures(0, 0.0)


class Samples(Part):
    """The ring of one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._ring: deque[Sample] = deque(maxlen=RING_SAMPLES)
        self._topics: dict[str, TopicFigures] = {}
        self._offsets: Offsets = {}
        self._task: asyncio.Task[None] | None = None
        node.calls.serve(methods.LIST_SAMPLES, self._list)

    async def start(self) -> None:
        if self._node.config.http is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def of_cluster(
        self, since_ms: int, group: str | None = None, *, topics: bool = False
    ) -> tuple[dict[int, list[Sample]], list[int]]:
        """The samples of each node, and the nodes that did not answer."""
        nodes = [one.node_id for one in self._node.view.brokers()]
        request = ListSamples(since_ms, group, topics)
        answers = await self._node.calls.ask_nodes(nodes, methods.LIST_SAMPLES, request, caller=BROKER)
        silent = sorted(node for node, answer in answers.items() if isinstance(answer, KafkaError))
        told = {node: answer for node, answer in answers.items() if not isinstance(answer, KafkaError)}
        return told, silent

    def _recently_ms(self) -> int:
        return self._node.clock.wall_ms() - RECENT_SAMPLES * SAMPLE_MS

    async def latest_topics(self) -> dict[str, TopicFigures]:
        """The figures of topics by the last samples of all nodes that answer, added up."""
        told, _ = await self.of_cluster(self._recently_ms(), topics=True)
        found: dict[str, TopicFigures] = {}
        async for samples in in_slices(list(told.values()), 1):
            for name, (size, rate) in (samples[-1].topics if samples else {}).items():
                known = found.get(name, NO_FIGURES)
                found[name] = TopicFigures(known.size_bytes + size, known.message_rate + rate)
        return found

    async def latest_lags(self) -> dict[str, int]:
        """The lags of groups by their coordinators' last samples, as far as those have replicas."""
        told, _ = await self.of_cluster(self._recently_ms(), ALL_GROUPS)
        return {
            group: lag
            for samples in told.values()
            for group, lag in (samples[-1].lags if samples else {}).items()
        }

    def _list(self, caller: Caller, request: ListSamples) -> list[Sample]:
        wanted = [one.only(request.group) for one in self._ring if one.time_ms > request.since_ms]
        if request.topics and wanted:
            wanted[-1] = msgspec.structs.replace(wanted[-1], topics=self._topics)
        return wanted

    async def _run(self) -> None:
        while True:
            wall_ms = self._node.clock.wall_ms()
            await asyncio.sleep((SAMPLE_MS - wall_ms % SAMPLE_MS) / 1000)
            if self._node.ready:
                # The timer may fire a little early or late: the moment that was meant is what nodes share.
                time_ms = round(self._node.clock.wall_ms() / SAMPLE_MS) * SAMPLE_MS
                with logged_bugs("a sample of this node's figures"):
                    await self.take(time_ms)

    async def take(self, time_ms: int) -> None:
        """Stores the figures of this moment."""
        before, seconds = self._offsets, self._seconds_since(time_ms)
        topics: dict[str, TopicFigures] = {}
        self._offsets, messages = {}, 0
        async for partition in in_slices(list(self._node.partitions.online()), ROWS_PER_TURN):
            where, end = partition.name, partition.high_watermark
            self._offsets[where] = partition.start_offset, end
            grown = 0
            if partition.serves:
                messages += 0 if where.topic.startswith("__") else end
                # A replica that has just been made here has no messages of the last seconds.
                grown = max(0, end - before[where][1]) if where in before else 0
            known = topics.get(where.topic, NO_FIGURES)
            topics[where.topic] = TopicFigures(
                known.size_bytes + partition.log.size_bytes, known.message_rate + grown / seconds
            )
        self._topics = topics
        self._ring.append(await take_sample(self._node, time_ms, self._offsets, messages))

    def _seconds_since(self, time_ms: int) -> float:
        last_ms = self._ring[-1].time_ms if self._ring else time_ms - SAMPLE_MS
        return max(1, time_ms - last_ms) / 1000


async def take_sample(node: "Node", time_ms: int, ends: Offsets, messages: int) -> Sample:
    """Runs on the event loop, in slices."""
    lags = await _lags(node, ends)
    queues = await node.queues.manager.figures() if node.is_made("queues") else []
    backlogs = [one.backlog for one in queues if one.backlog is not None]
    metrics = node.metrics
    return Sample(
        time_ms=time_ms,
        bytes_in=metrics.bytes_in + metrics.http_bytes_in,
        bytes_out=metrics.bytes_out + metrics.http_bytes_out,
        messages=messages,
        requests=sum(api.requests for api in metrics.apis.values()),
        connections=metrics.connections,
        lag=sum(lags.values()),
        ready=sum(one.available for one in backlogs),
        leased=sum(one.leased for one in backlogs),
        delayed=sum(one.deferred + one.waiting for one in backlogs),
        lags=dict(sorted(lags.items(), key=lambda row: -row[1])[:MAX_GROUPS]),
    )


async def _lags(node: "Node", ends: Offsets) -> dict[str, int]:
    """The lag of each group that this node coordinates, on partitions of which it has a replica."""
    found: dict[str, int] = {}
    if not node.is_made("groups"):
        return found
    held = cast(Container[TopicPartition], ends)
    async for group in in_slices(node.groups.summaries(held), ROWS_PER_TURN):
        if group.offsets:
            found[group.group_id] = sum(
                max(0, ends[where][1] - max(offset, ends[where][0]))
                for where, offset in group.offsets.items()
            )
    return found
