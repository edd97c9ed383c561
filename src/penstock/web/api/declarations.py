"""Creates the topics and queues that the config file declares, and says where others differ from it.

Rules:
 1. Nothing that exists is changed. A difference is a warning in the log and an event of the status log, with the
    command that would remove it: a restart must not alter settings that an operator has changed since, and a number
    of partitions cannot be taken back.
 2. The controller creates missing ones; the other nodes wait for it. If several nodes created a queue at once, the
    later one could move it back to its start.
 3. A node does this once, when it has started. A declared topic that is deleted later is created again by the next
    start of the controller.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress

from penstock.cluster import Topic
from penstock.config import ConfigEntry, DeclaredQueue, DeclaredTopic
from penstock.errors import PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.types import Operation
from penstock.web.api.problems import Problem
from penstock.web.api.queue_shapes import NewQueue
from penstock.web.api.queues import Queues, needs_one_partition
from penstock.web.api.topics import NewTopic, Topics

log = logging.getLogger("penstock.declarations")

RETRY_SECONDS = 2.0
"""How soon a declaration that could not be met is tried again, if no metadata changes before."""
START = "share.auto.offset.reset"
"""Where a new queue begins: of no meaning for one that exists."""


class Declarations:
    """The declarations of one node."""

    def __init__(self, node: Node, topics: Sequence[DeclaredTopic], queues: Sequence[DeclaredQueue]) -> None:
        self._node = node
        self._missing_topics = list(topics)
        self._missing_queues = list(queues)
        self._client = InnerClient(node, BROKER)
        self._topics = Topics(node)
        self._queues = Queues(node)
        self._told: set[str] = set()

    async def run(self) -> None:
        """Returns when all of them exist."""
        await self._node.wait_ready()
        while not await self._try_all():
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._node.metadata.next_change()

    async def _try_all(self) -> bool:
        topics, queues = self._missing_topics, self._missing_queues
        self._missing_topics = [
            one for one in topics if not await self._is_done(self._topic(one), topic=one.name)
        ]
        if not self._missing_topics:  # queues may be on them
            self._missing_queues = [
                one for one in queues if not await self._is_done(self._queue(one), group=one.name)
            ]
        return not (self._missing_topics or self._missing_queues)

    async def _is_done(self, work: Awaitable[bool], **about: str) -> bool:
        try:
            return await work
        except (Problem, PenstockError) as trouble:
            kind, name = next(iter(about.items()))
            self._tell(f"{_KINDS[kind]} {name} of the config file is not created yet: {trouble}", **about)
            return False

    def _tell(self, message: str, **about: str) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning("%s", message)
            self._node.events.tell("declaration.unmet", **about, reason=message)

    # --- topics

    async def _topic(self, wanted: DeclaredTopic) -> bool:
        topic = self._node.resources.visible_topic(BROKER, wanted.name)
        if topic is not None:
            for difference in self._topic_differences(topic, wanted):
                self._tell(difference, topic=wanted.name)
            return True
        if not self._node.metadata.is_controller:
            return False
        new = NewTopic(
            name=wanted.name,
            partitions=wanted.partitions,
            replication_factor=wanted.replication_factor,
            configs=dict(wanted.config_texts),
        )
        await self._topics.create(self._client, new)
        return True

    def _topic_differences(self, topic: Topic, wanted: DeclaredTopic) -> Iterator[str]:
        name, says = topic.name, "the config file says"
        if wanted.partitions not in (None, topic.partitions):
            advice = f"; `penstock topics alter {name} --partitions {wanted.partitions}` adds them"
            more = advice if (wanted.partitions or 0) > topic.partitions else ""
            yield f"topic {name} has {topic.partitions} partitions, {says} {wanted.partitions}{more}"
        if wanted.replication_factor not in (None, topic.replication_factor):
            yield f"topic {name} has {topic.replication_factor} replicas, {says} {wanted.replication_factor}"
        entries = self._node.resources.topic_configs(topic.configs, list(wanted.configs))
        for config, value, other in _differing(entries, wanted.config_texts):
            advice = f"`penstock topics alter {name} --set {config}={other}` changes it"
            yield f"topic {name} has {config}={value}, {says} {other}; {advice}"

    # --- queues

    async def _queue(self, wanted: DeclaredQueue) -> bool:
        new = _new_queue(wanted)
        topic = wanted.topic or wanted.name
        existing = await self._node.queues.overview.descriptions(wanted.name, caller=BROKER)
        differences = [*self._queue_differences(wanted, new, topic)]
        topics = sorted({one.topic for one in existing})
        if topics and topic not in topics:
            differences.append(
                f"queue {wanted.name} is on {', '.join(topics)}, the config file says {topic}; "
                f"`penstock queues create {wanted.name} --topic {topic}` puts it there, too"
            )
        for difference in differences:
            self._tell(difference, group=wanted.name, topic=topic)
        if topic in topics or differences:
            return True
        if not self._node.metadata.is_controller:
            return False
        await self._queues.create(self._client, new)
        return True

    def _queue_differences(self, wanted: DeclaredQueue, new: NewQueue, topic: str) -> Iterator[str]:
        """Those of a queue that exists; or of settings and a topic that were there before it."""
        set_before = self._node.resources.group_configs(BROKER, wanted.name, Operation.DESCRIBE)
        configs = {name: value for name, value in new.group_configs().items() if name != START}
        names = list(configs) if set_before else []
        entries = self._node.resources.described_group(BROKER, wanted.name, Operation.DESCRIBE, names)
        for config, value, other in _differing(entries if names else [], configs):
            advice = f"`penstock queues alter {wanted.name} --config {config}={other}` changes it"
            yield f"queue {wanted.name} has {config}={value}, the config file says {other}; {advice}"
        known = self._node.resources.visible_topic(BROKER, topic)
        if known is not None and wanted.point_to_point and known.partitions != 1:
            yield needs_one_partition(wanted.name, known)
        elif known is not None:
            needed = new.topic_configs()
            entries = self._node.resources.topic_configs(known.configs, list(needed))
            for config, value, other in _differing(entries if needed else [], needed):
                advice = f"`penstock topics alter {topic} --set {config}={other}` changes it"
                yield f"queue {wanted.name} needs {config}={other} on topic {topic}, which has {value}; {advice}"


_KINDS = {"topic": "topic", "group": "queue"}


def _new_queue(wanted: DeclaredQueue) -> NewQueue:
    return NewQueue(
        queue=wanted.name,
        topic=wanted.topic,
        partitions=wanted.partitions,
        replication_factor=wanted.replication_factor,
        start=wanted.start,
        point_to_point=wanted.point_to_point,
        dedup_window_ms=wanted.dedup_window_ms,
        order=wanted.order,
        lease_ms=wanted.lease_ms,
        delivery_limit=wanted.delivery_limit,
        dead_letters=wanted.dead_letters,
        dead_letter_topic=wanted.dead_letter_topic,
        retry_backoff_ms=wanted.retry_backoff_ms,
        retry_backoff_max_ms=wanted.retry_backoff_max_ms,
        configs=dict(wanted.config_texts),
    )


def _differing(
    entries: list[ConfigEntry], wanted: Mapping[str, str]
) -> Iterator[tuple[str, str | None, str]]:
    """Name, value in force and declared value."""
    for entry in entries:
        declared = wanted.get(entry.name)
        if declared is not None and (entry.value or "").strip().lower() != declared.strip().lower():
            yield entry.name, entry.value, declared
