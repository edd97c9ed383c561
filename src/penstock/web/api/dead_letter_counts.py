"""How many dead letters queues have: those between the first and the last offset of their dead-letter topics that were
not sent back. No letter is read for this, so queues that share a dead-letter topic have the same number."""

from collections.abc import Iterable, Sequence

import msgspec

from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.calls.messages.queues import QueueDescription
from penstock.types import Caller, ResourceType
from penstock.web.api.dead_letters import HANDLED_QUEUE
from penstock.web.api.offset_ranges import find_ranges
from penstock.web.api.queue_shapes import QueueSummary

LetterCounts = dict[str, int]
"""By dead-letter topic. One is missing while the leader of a partition does not answer in time."""


def letter_topics(node: Node, queue: str, topics: Iterable[str]) -> set[str]:
    """The topics that get the dead letters of a queue on these topics, whether or not they exist yet."""
    config = node.resources.queue_config(queue)
    return {config.dead_letter_topic_of(topic) for topic in topics}


async def count_letters(
    node: Node, names: Iterable[str], handled: Iterable[QueueDescription]
) -> LetterCounts:
    """`handled`: the queue in which letters are done that were sent back."""
    partitions = {name: range(node.resources.partition_count(name)) for name in names}
    known = {(one.topic, one.partition): one.undone for one in handled if one.undone is not None}
    others = {name: [one for one in rows if (name, one) not in known] for name, rows in partitions.items()}
    ranges = await find_ranges(InnerClient(node, BROKER), others)
    known |= {(topic, partition): last - first for (topic, partition), (first, last) in ranges.items()}
    return {
        name: sum(known[name, one] for one in rows)
        for name, rows in partitions.items()
        if all((name, one) in known for one in rows)
    }


async def count_letters_of(node: Node, caller: Caller, queue: str, topics: Iterable[str]) -> int | None:
    """The dead letters of a queue on these topics. None if one of their dead-letter topics does not answer, or the
    caller may not describe it."""
    names = letter_topics(node, queue, topics)
    handled = await node.queues.overview.report(HANDLED_QUEUE, caller=BROKER, topics=names, counted=True)
    return _sum(node, caller, [names], await count_letters(node, names, handled.descriptions))[0]


def with_letters(
    node: Node, caller: Caller, rows: Sequence[QueueSummary], counts: LetterCounts
) -> list[QueueSummary]:
    """The rows with their dead letters, as far as the caller may describe the dead-letter topics."""
    sums = _sum(node, caller, [letter_topics(node, row.queue, row.topics) for row in rows], counts)
    return [
        msgspec.structs.replace(row, dead_letters=letters) for row, letters in zip(rows, sums, strict=True)
    ]


def _sum(node: Node, caller: Caller, rows: Sequence[set[str]], counts: LetterCounts) -> list[int | None]:
    names = {name for row in rows for name in row if name in counts}
    seen = node.resources.visible(caller, ResourceType.TOPIC, names)
    return [sum(counts[name] for name in row) if row <= seen else None for row in rows]
