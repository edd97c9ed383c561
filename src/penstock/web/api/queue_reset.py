"""Moves a queue to another place of its topics: messages after it are to be done (again), messages before it are done.

Refused while consumers are connected: they would lose their leases in the middle of the work, and messages would be
done twice.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.errors import ErrorCode
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, NOT_FOUND, get_offsets
from penstock.node import Node
from penstock.node.calls.messages.queues import QueueDescription
from penstock.node.queues.consumers import LISTED_MAX, Interface
from penstock.node.queues.overview import has_consumers
from penstock.types import Isolation, Operation
from penstock.web.api.dead_letters import PartitionNumber, QueueParams
from penstock.web.api.problems import Problem, refused, wrong
from penstock.web.api.queues import check_may_read_topics, unknown_queue
from penstock.web.api.routing import Call
from penstock.web.api.topics import TopicName

Moment = Annotated[int, Meta(ge=0, le=2**62)]


class QueueResetBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `to`, `offset` and `timestamp_ms` (the first message at or after it) says where. `topics`: only these;
    `partition`: only this one of a single topic. An offset that a partition does not have is replaced by its nearest.
    `dry_run`: nothing is changed."""

    to: Literal["earliest", "latest"] | None = None
    offset: Moment | None = None
    timestamp_ms: Moment | None = None
    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=1_000)] | None = None
    partition: PartitionNumber | None = None
    dry_run: bool = False

    @property
    def only_looks(self) -> bool:
        return self.dry_run


class Move(msgspec.Struct, frozen=True, kw_only=True, rename={"start": "from", "target": "to"}):
    """Where the queue begins on a partition, before and after."""

    topic: str
    partition: int
    start: int
    target: int


class QueueResetDone(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    executed: bool
    partitions: list[Move]


class QueueReset:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def reset_queue(self, call: Call[QueueParams, QueueResetBody]) -> QueueResetDone:
        queue, wanted = call.params.queue, call.body
        if sum(one is not None for one in (wanted.to, wanted.offset, wanted.timestamp_ms)) != 1:
            raise wrong("to", "expected one of `to`, `offset` and `timestamp_ms`")
        overview = self._node.queues.overview
        report = await overview.report(queue, caller=call.caller, max_consumers=LISTED_MAX)
        check_may_read_topics(self._node, call.caller, queue, wanted.topics, report.descriptions)
        connected = [one for one in report.consumers_of(queue).listed if one.interface != Interface.HTTP]
        if connected and not wanted.dry_run:
            message = has_consumers(queue, connected)
            raise refused(ErrorCode.NON_EMPTY_GROUP, message, "queue")
        isolation = self._node.resources.queue_config(queue).isolation
        moves: list[Move] = []
        for topic, rows in _chosen(queue, report.descriptions, wanted).items():
            targets = await _targets(call.client, topic, rows, wanted, isolation)
            moves += [
                Move(
                    topic=topic,
                    partition=row.partition,
                    start=row.start_offset,
                    target=targets[row.partition],
                )
                for row in rows
            ]
        if not wanted.dry_run:
            await self._execute(call, moves)
        return QueueResetDone(queue=queue, executed=not wanted.dry_run, partitions=moves)

    async def _execute(self, call: Call[QueueParams, QueueResetBody], moves: Iterable[Move]) -> None:
        queue, overview = call.params.queue, self._node.queues.overview
        counts: dict[str, int] = {}
        for move in moves:
            topic = self._node.resources.topic(call.caller, move.topic, Operation.READ)
            await overview.reset(queue, topic, move.partition, move.target, caller=call.caller)
            counts[move.topic] = counts.get(move.topic, 0) + 1
        for name, count in counts.items():
            facts = {"group": queue, "topic": name, "partitions": count}
            self._node.events.tell("queue.reset", **facts, reason="it was moved")


def _chosen(
    queue: str, descriptions: Iterable[QueueDescription], wanted: QueueResetBody
) -> dict[str, list[QueueDescription]]:
    found: dict[str, list[QueueDescription]] = {}
    for one in descriptions:
        found.setdefault(one.topic, []).append(one)
    if not found:
        raise unknown_queue(queue)
    for missing in sorted(set(wanted.topics or ()) - found.keys()):
        raise unknown_queue(queue, f"queue {queue!r} is not on topic {missing}", "topics")
    if wanted.topics is not None:
        found = {topic: rows for topic, rows in found.items() if topic in wanted.topics}
    if wanted.partition is None:
        return found
    if len(found) != 1:
        raise wrong("partition", "expected one topic in `topics` as well")
    [(topic, rows)] = found.items()
    rows = [row for row in rows if row.partition == wanted.partition]
    if not rows:
        message = f"queue {queue!r} is not on partition {wanted.partition} of {topic}"
        raise Problem(404, "unknown_topic_or_partition", message, "partition")
    return {topic: rows}


async def _targets(
    client: InnerClient,
    topic: str,
    rows: Iterable[QueueDescription],
    wanted: QueueResetBody,
    isolation: Isolation,
) -> dict[int, int]:
    """The new start of each partition, within its first and last offsets. `isolation` is the queue's: an end before
    open transactions keeps their records for the queue."""
    partitions = [row.partition for row in rows]
    if wanted.to == "latest":
        return await get_offsets(client, topic, partitions, LATEST, isolation)
    earliest = await get_offsets(client, topic, partitions, EARLIEST, isolation)
    if wanted.to == "earliest":
        return earliest
    latest = await get_offsets(client, topic, partitions, LATEST, isolation)
    if wanted.offset is not None:
        return {one: min(max(wanted.offset, earliest[one]), latest[one]) for one in partitions}
    assert wanted.timestamp_ms is not None
    found = await get_offsets(client, topic, partitions, wanted.timestamp_ms, isolation)
    return {one: latest[one] if found[one] == NOT_FOUND else found[one] for one in partitions}
