"""Queues: create, list, describe, peek, purge, delete. `queue_jobs` receives and settles their messages, `dead_letters`
has those that failed.

A queue is a share group, so Kafka's share consumers work on the same one. It exists as soon as its state is stored:
when it is created here, or by its first consumer."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from penstock.batch import unpacked_total
from penstock.cluster import Topic
from penstock.config import ShareGroupConfig, TopicConfig
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, get_offsets
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.node import Node
from penstock.node.calls import BROKER
from penstock.node.calls.messages.queues import (
    PeekRequest,
    PeekResult,
    QueueDescription,
    ScheduledRequest,
    ScheduledResult,
)
from penstock.node.coordination.share_groups import name_taken
from penstock.node.queues.consumers import LISTED_MAX, Interface, MergedConsumer, shortened
from penstock.node.queues.overview import has_consumers
from penstock.node.scheduling.shared_work import SharedWork
from penstock.types import Caller, GroupId, Operation, ResourceType
from penstock.web.api.bodies import reserve
from penstock.web.api.dead_letter_counts import (
    LetterCounts,
    count_letters,
    count_letters_of,
    letter_topics,
    with_letters,
)
from penstock.web.api.dead_letters import HANDLED_QUEUE, QueueParams
from penstock.web.api.groups import Groups
from penstock.web.api.jobs import open_jobs
from penstock.web.api.payloads import Encoding, record_out
from penstock.web.api.problems import Problem, check, refused, wrong
from penstock.web.api.queue_listing import ListedQueue, listed_queues
from penstock.web.api.queue_rules import QueueRules
from penstock.web.api.queue_shapes import (
    NewQueue,
    Peeked,
    PeekedList,
    PeekParams,
    Purge,
    PurgeDone,
    PurgedPartition,
    QueueConsumerFacts,
    QueueFacts,
    QueueList,
    QueuePartitionFacts,
    QueueSettingsOut,
    ScheduledList,
    ScheduledMessage,
    ScheduledParams,
    ScheduledPartition,
    check_dead_letter_topic,
)
from penstock.web.api.routing import (
    OFFLOAD_FROM_BYTES,
    ROWS_IN_LOOP,
    Call,
    NoParams,
    in_thread_if,
    offloaded,
)
from penstock.web.api.topics import (
    APPLIED_SECONDS,
    SET,
    TOPIC_RESOURCE,
    UNSET,
    NewTopic,
    TopicName,
    Topics,
)

GROUP_RESOURCE = 32
AT_ONCE = 32
"""Partitions that are asked at the same time."""
COUNTED_CONSUMERS = 100
"""Consumers of each partition that are told apart when all queues are listed."""
PARTITIONS_MAX = 100
"""Partitions that the list of consumers names for each."""
KEEP_UNDONE = "penstock.retention.keep.undone"


class Queues:
    """Operations on queues."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lists = SharedWork(self._list)
        self._topics = Topics(node)
        self._groups = Groups(node)

    # --- queries

    async def list_queues(self, call: Call[NoParams, None]) -> QueueList:
        found, letters = await self._lists.result()
        visible = self._node.resources.visible
        groups = visible(call.caller, ResourceType.GROUP, (one.summary.queue for one in found))
        shown = [one for one in found if one.summary.queue in groups]
        names = {topic for one in shown for topic in one.summary.topics}
        topics = visible(call.caller, ResourceType.TOPIC, names)
        rows = [one.row(topics) for one in shown]
        return QueueList(queues=with_letters(self._node, call.caller, rows, letters))

    async def _list(self) -> tuple[list[ListedQueue], LetterCounts]:
        """All queues and dead letters, for all callers that ask at the same time."""
        report = await self._node.queues.overview.report(
            caller=BROKER, counted=True, max_consumers=COUNTED_CONSUMERS
        )
        found, handled = await in_thread_if(len(report.descriptions) > ROWS_IN_LOOP, listed_queues, report)
        named = [letter_topics(self._node, one.summary.queue, one.summary.topics) for one in found]
        return found, await count_letters(self._node, set().union(*named), handled)

    async def describe_queue(self, call: Call[QueueParams, None]) -> QueueFacts:
        return await self.facts(call.caller, call.params.queue)

    async def facts(self, caller: Caller, queue: str, *, letters: bool = True) -> QueueFacts:
        """The queue, on those of its topics that the caller may describe; without its dead letters if they do not
        matter: all leaders of their topics are asked for them."""
        overview = self._node.queues.overview
        topics = await overview.topics(queue, caller=caller)
        if not topics:
            raise unknown_queue(queue)
        shown = self._node.resources.visible(caller, ResourceType.TOPIC, topics)
        report = await overview.report(
            queue, caller=caller, topics=shown, opened=True, max_consumers=LISTED_MAX
        )
        consumers = report.consumers_of(queue)
        return QueueFacts(
            queue=queue,
            settings=_settings(self._node.resources.queue_config(queue)),
            partitions=[_partition(description) for description in report.descriptions],
            consumers=[_consumer(one) for one in consumers.listed],
            more_consumers=consumers.has_more,
            warnings=list(self._warnings(caller, report.descriptions)),
            dead_letters=await count_letters_of(self._node, caller, queue, shown) if letters else None,
        )

    def _warnings(self, caller: Caller, descriptions: Sequence[QueueDescription]) -> Iterator[str]:
        """What retention has done to the queue's messages, and what it may do."""
        deleted = Counter[str]()
        for one in descriptions:
            deleted[one.topic] += one.deleted_undone
        for name in sorted(deleted):
            topic = self._node.resources.visible_topic(caller, name)
            config = topic.config if topic is not None else TopicConfig()
            if deleted[name]:
                yield f"{deleted[name]} messages of {name} were deleted before they were done"
            if config.may_delete_undone:
                yield (
                    f"retention of {name} may delete messages that are not done: "
                    f"set {KEEP_UNDONE}=true on the topic to keep them"
                )

    async def _descriptions(
        self, caller: Caller, queue: str, *, opened: bool = False
    ) -> list[QueueDescription]:
        found = await self._node.queues.overview.descriptions(queue, caller=caller, opened=opened)
        if not found:
            raise unknown_queue(queue)
        return found

    # --- messages

    async def peek_queue(self, call: Call[PeekParams, None]) -> PeekedList:
        params = call.params
        _check_place(params)
        messages: list[Peeked] = []
        descriptions = await self._descriptions(call.caller, params.queue)
        named = None if params.topic is msgspec.UNSET else [params.topic]
        check_may_read_topics(self._node, call.caller, params.queue, named, descriptions)
        for description in descriptions:
            if not _is_selected(params, description):
                continue
            first = params.offset if isinstance(params.offset, int) else 0
            remaining = params.max_records - len(messages)
            if remaining > 0:
                messages += await self._peek_one(call, description, first, remaining)
        return PeekedList(queue=params.queue, messages=messages)

    async def _peek_one(
        self, call: Call[PeekParams, None], description: QueueDescription, first: int, remaining: int
    ) -> list[Peeked]:
        """Page by page: a page may hold fewer messages than were asked for."""
        topic = self._node.resources.topic(call.caller, description.topic, Operation.READ)
        place = GroupId(topic.topic_id, description.partition)
        found: list[Peeked] = []
        while first >= 0 and len(found) < remaining:
            request = PeekRequest(call.params.queue, place, first, remaining - len(found), False)
            seen = await self._node.queues.router.peek(request, caller=call.caller)
            reserve(call.reserved, unpacked_total(seen.records))
            found += await offloaded(
                OFFLOAD_FROM_BYTES if seen.records else 0, _peeked, description, seen, call.params.encoding
            )
            first = seen.next_offset
        return found

    async def list_scheduled(self, call: Call[ScheduledParams, None]) -> ScheduledList:
        return await self.scheduled(call.caller, call.params)

    async def scheduled(self, caller: Caller, params: ScheduledParams) -> ScheduledList:
        """The messages that are not due yet, of the topics that the caller may describe."""
        _check_place(params)
        found = await self._descriptions(caller, params.queue)
        names = {one.topic for one in found}
        topics = self._node.resources.visible(caller, ResourceType.TOPIC, names)
        descriptions = [one for one in found if one.topic in topics and _is_selected(params, one)]
        limit = asyncio.Semaphore(AT_ONCE)
        messages: list[ScheduledMessage] = []

        async def look(description: QueueDescription) -> ScheduledPartition:
            async with limit:
                schedule = await self._schedule(params, description, caller)
            if schedule is not None:
                messages.extend(_coming(description, schedule))
                messages.sort(key=_when)
                del messages[params.max_records :]
            return _scheduled(description, schedule)

        partitions = await asyncio.gather(*map(look, descriptions))
        return ScheduledList(queue=params.queue, partitions=partitions, messages=messages)

    async def _schedule(
        self, params: ScheduledParams, description: QueueDescription, caller: Caller
    ) -> ScheduledResult | None:
        """None: the partition's leader does not answer."""
        try:
            topic = self._node.resources.topic(caller, description.topic, Operation.DESCRIBE)
            place = GroupId(topic.topic_id, description.partition)
            request = ScheduledRequest(params.queue, place, params.max_records)
            return await self._node.queues.router.scheduled(request, caller=caller)
        except PenstockError:
            return None

    # --- changes

    async def create_queue(self, call: Call[NoParams, NewQueue]) -> QueueFacts:
        return await self.create(call.client, call.body)

    async def create(self, client: InnerClient, wanted: NewQueue) -> QueueFacts:
        """Creates a queue; Problem or KafkaError if it is refused."""
        caller = client.caller
        name = wanted.topic or wanted.queue
        if wanted.queue == HANDLED_QUEUE:
            raise wrong("queue", f"{HANDLED_QUEUE} is reserved for the broker: choose another name")
        if (known := self._existing(caller, name)) is not None and known.internal:
            raise wrong("topic" if wanted.topic else "queue", f"{name} is internal: a queue cannot be on it")
        if wanted.point_to_point:
            _check_one_partition(wanted, name, known)
        existing = await self._node.queues.overview.descriptions(wanted.queue, caller=caller)
        if any(description.topic == name for description in existing):
            raise Problem(
                409, "queue_exists", f"there is a queue {wanted.queue!r} on {name} already", "queue"
            )
        check_dead_letter_topic(wanted.group_configs(), [name])
        rules = QueueRules(self._node, wanted, name)
        rules.check(caller)
        if not existing:
            await self._check_name(client, wanted.queue)
        await self._alter(client, GROUP_RESOURCE, wanted.queue, wanted.group_configs(), validate_only=True)
        topic = await self._topic(client, wanted, name)
        await self._alter(client, GROUP_RESOURCE, wanted.queue, wanted.group_configs())
        await self.applied(caller, wanted.queue, wanted.group_configs())  # the isolation is one of them
        first = LATEST if wanted.start == "latest" else EARLIEST
        isolation = self._node.resources.queue_config(wanted.queue).isolation
        starts = await get_offsets(client, name, range(topic.partitions), first, isolation)
        await self._begin(caller, wanted.queue, topic, starts)
        await rules.create(client)
        self._node.events.tell("queue.created", group=wanted.queue, topic=name, partitions=len(starts))
        return await self.facts(caller, wanted.queue)

    async def _check_name(self, client: InnerClient, queue: str) -> None:
        """Refuses the name of a group of another kind before anything is created. If the coordinator does not answer
        now, it decides when the queue begins."""
        try:
            group = await self._groups.described(client, queue)
        except (PenstockError, Problem):
            return
        if group is not None:
            taken = name_taken(queue)
            raise refused(taken.code, taken.message, "queue")

    async def _topic(self, client: InnerClient, wanted: NewQueue, name: str) -> Topic:
        """The topic, created if there is none; but only when it is certain that the queue may begin on it."""
        topic = self._existing(client.caller, name)
        if topic is None:
            new = NewTopic(
                name=_as_topic(name),
                partitions=1 if wanted.point_to_point else wanted.partitions,
                replication_factor=wanted.replication_factor,
                configs={KEEP_UNDONE: "true", **wanted.topic_configs()},
            )
            await self._topics.make(client, new, validate_only=True)
            await self._admit(wanted.queue)
            await self._topics.create(client, new)
            return self._node.resources.topic(client.caller, name, Operation.READ)
        await self._admit(wanted.queue)
        if configs := wanted.topic_configs():
            await self._alter(client, TOPIC_RESOURCE, name, configs)
        return topic

    def _existing(self, caller: Caller, name: str) -> Topic | None:
        try:
            return self._node.resources.topic(caller, name, Operation.READ)
        except KafkaError as refusal:
            if refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise

    async def _admit(self, queue: str) -> None:
        try:
            await self._node.queues.manager.begin(queue)
        except KafkaError as refusal:
            raise refused(refusal.code, refusal.message, "queue") from None

    async def _alter(
        self,
        client: InnerClient,
        kind: int,
        name: str,
        configs: Mapping[str, str | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Sets configs; those without a value are unset. `validate_only`: nothing is changed."""
        changes = [
            AlterableConfig(name=config, config_operation=UNSET if value is None else SET, value=value)
            for config, value in configs.items()
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
        answer = await client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only),
            IncrementalAlterConfigsResponse,
        )
        check(answer.responses[0].error_code, answer.responses[0].error_message, "configs")

    async def applied(self, caller: Caller, queue: str, changes: Mapping[str, str | None]) -> None:
        """Returns when this node has applied the change, so that responses show it. A timeout is no failure."""
        wanted = {name: None if value is None else value.strip() for name, value in changes.items()}

        def is_applied() -> bool:
            known = self._node.resources.group_configs(caller, queue, Operation.ALTER_CONFIGS)
            return all(known.get(name) == value for name, value in wanted.items())

        await self._node.metadata.until(is_applied, APPLIED_SECONDS)

    async def _begin(self, caller: Caller, queue: str, topic: Topic, starts: Mapping[int, int]) -> None:
        """All messages before these offsets are done in the queue, and none after them."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def begin(partition: int, start: int) -> None:
            async with limit:
                await self._node.queues.overview.reset(queue, topic, partition, start, caller=caller)

        await asyncio.gather(*(begin(partition, start) for partition, start in starts.items()))

    async def purge_queue(self, call: Call[QueueParams, Purge]) -> PurgeDone:
        queue, wanted = call.params.queue, call.body.topics
        descriptions = await self._descriptions(call.caller, queue, opened=True)
        check_may_read_topics(self._node, call.caller, queue, wanted, descriptions)
        known = {description.topic for description in descriptions}
        for missing in sorted(set(wanted or ()) - known):
            raise unknown_queue(queue, f"queue {queue!r} is not on topic {missing}", "topics")
        isolation = self._node.resources.queue_config(queue).isolation  # an open transaction is not purged
        done: list[PurgedPartition] = []
        for name in sorted(known if wanted is None else known.intersection(wanted)):
            rows = [description for description in descriptions if description.topic == name]
            partitions = [row.partition for row in rows]
            ends = await get_offsets(call.client, name, partitions, LATEST, isolation)
            topic = self._node.resources.topic(call.caller, name, Operation.READ)
            await self._begin(call.caller, queue, topic, ends)
            self._node.events.tell(
                "queue.reset", group=queue, topic=name, partitions=len(ends), reason="it was purged"
            )
            done += [
                PurgedPartition(
                    topic=name, partition=row.partition, start_offset=ends[row.partition], purged=row.undone
                )
                for row in rows
            ]
        await self._descriptions(call.caller, queue, opened=True)  # the counts are known again at once
        return PurgeDone(queue=queue, partitions=done)

    async def delete_queue(self, call: Call[QueueParams, None]) -> None:
        queue = call.params.queue
        await self._descriptions(call.caller, queue)
        code = await self._groups.delete(call.client, queue)
        if code == ErrorCode.NON_EMPTY_GROUP:
            raise refused(code, await self._in_use(call.caller, queue), "queue")
        try:
            await self._node.queues.overview.forget(queue, caller=call.caller)
        except KafkaError as busy:
            if busy.code == ErrorCode.NON_EMPTY_GROUP:
                raise refused(busy.code, busy.message, "queue") from None
            raise
        configs = self._node.resources.group_configs(call.caller, queue, Operation.DELETE)
        if configs:  # a later queue of this name starts with the defaults; DELETE alone allows this
            broker = InnerClient(self._node, BROKER)
            await self._alter(broker, GROUP_RESOURCE, queue, dict.fromkeys(configs))

    async def _in_use(self, caller: Caller, queue: str) -> str:
        report = await self._node.queues.overview.report(queue, caller=caller, max_consumers=LISTED_MAX)
        connected = [one for one in report.consumers_of(queue).listed if one.interface != Interface.HTTP]
        if connected:
            return has_consumers(queue, connected)
        return f"queue {queue!r} has members that have not left or timed out yet: stop its consumers first"


def unknown_queue(queue: str, message: str = "", field: str = "queue") -> Problem:
    return Problem(404, "unknown_queue", message or f"there is no queue {queue!r}", field)


def check_may_read_topics(
    node: Node,
    caller: Caller,
    queue: str,
    named: Iterable[str] | None,
    descriptions: Iterable[QueueDescription],
) -> None:
    """Refuses a request for these topics, or for all of a queue, unless the caller may read them."""
    if named is None:
        check_may_read_all(node, caller, queue, {one.topic for one in descriptions})
    else:
        for name in named:
            node.resources.check(caller, Operation.READ, ResourceType.TOPIC, name)


def check_may_read_all(node: Node, caller: Caller, queue: str, topics: Iterable[str]) -> None:
    """For topics that the caller did not name itself: so the refusal does not name them, either."""
    try:
        for name in sorted(topics):
            node.resources.check(caller, Operation.READ, ResourceType.TOPIC, name)
    except KafkaError as refusal:
        message = f"{caller.principal} has no READ permission on a topic of queue {queue!r}"
        raise refused(refusal.code, f"{message}: name the topics that you may read") from None


def _check_one_partition(wanted: NewQueue, name: str, topic: Topic | None) -> None:
    """A point-to-point queue has one partition."""
    if wanted.partitions not in (None, 1):
        raise wrong("partitions", "expected 1, or nothing: a point-to-point queue has one partition")
    if topic is not None and topic.partitions != 1:
        raise Problem(409, "topic_unfit", needs_one_partition(wanted.queue, topic), "topic")


def needs_one_partition(queue: str, topic: Topic) -> str:
    return (
        f"queue {queue} is point-to-point and needs a topic with one partition, but {topic.name} has "
        f"{topic.partitions}, and partitions cannot be removed: name another topic for the queue, or do without "
        "point-to-point"
    )


def _as_topic(name: str) -> str:
    """A queue's name may be anything, a topic's may not."""
    try:
        return msgspec.convert(name, TopicName)
    except msgspec.ValidationError:
        raise wrong("queue", f"no topic can be named {name!r}: name one with `topic`") from None


def _settings(config: ShareGroupConfig) -> QueueSettingsOut:
    return QueueSettingsOut(
        order="owner" if config.owner_ordered else "key" if config.key_ordered else "none",
        exclusive=config.exclusive,
        lease_ms=config.record_lock_duration_ms,
        delivery_limit=config.delivery_count_limit,
        dead_letters=config.dead_letters,
        dead_letter_topic=config.dead_letter_topic or None,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
        retry_backoff_factor=config.retry_backoff_factor,
    )


def _partition(description: QueueDescription) -> QueuePartitionFacts:
    return QueuePartitionFacts(
        topic=description.topic,
        partition=description.partition,
        leader=description.leader if description.leader >= 0 else None,
        start_offset=description.start_offset,
        end_offset=description.end_offset,
        undone=description.undone,
        available=description.available,
        leased=description.leased,
        deferred=description.deferred,
        waiting=description.waiting,
        dying=description.dying,
        rate=description.rate,
        holder=description.holder,
        deleted_undone=description.deleted_undone,
    )


def _consumer(one: MergedConsumer) -> QueueConsumerFacts:
    return QueueConsumerFacts(
        id=shortened(one.consumer_id),
        name=one.name,
        address=one.address,
        interface=one.interface,
        since_ms=one.since_ms,
        leases=one.leases,
        rate=one.rate,
        partitions=[f"{topic}-{partition}" for topic, partition in one.partitions[:PARTITIONS_MAX]],
        nodes=one.nodes,
        seen_ms=one.seen_ms,
    )


def _check_place(params: PeekParams | ScheduledParams) -> None:
    if params.partition is not msgspec.UNSET and params.topic is msgspec.UNSET:
        raise wrong("partition", "expected `topic` as well")
    offset = params.offset if isinstance(params, PeekParams) else msgspec.UNSET
    if offset is not msgspec.UNSET and params.partition is msgspec.UNSET:
        raise wrong("offset", "expected `topic` and `partition` as well")


def _is_selected(params: PeekParams | ScheduledParams, description: QueueDescription) -> bool:
    return params.topic in (msgspec.UNSET, description.topic) and params.partition in (
        msgspec.UNSET,
        description.partition,
    )


def _scheduled(description: QueueDescription, schedule: ScheduledResult | None) -> ScheduledPartition:
    coming = schedule.coming if schedule is not None else []
    return ScheduledPartition(
        topic=description.topic,
        partition=description.partition,
        deferred=schedule.deferred if schedule is not None else None,
        next_due_ms=coming[0][0] if coming else None,
        unread=schedule.unread if schedule is not None else None,
    )


def _coming(description: QueueDescription, schedule: ScheduledResult) -> Iterable[ScheduledMessage]:
    for due_ms, offset in schedule.coming:
        yield ScheduledMessage(
            topic=description.topic, partition=description.partition, offset=offset, due_ms=due_ms
        )


def _when(message: ScheduledMessage) -> tuple[int, str, int, int]:
    return message.due_ms, message.topic, message.partition, message.offset


def _peeked(description: QueueDescription, seen: PeekResult, encoding: Encoding) -> list[Peeked]:
    found: list[Peeked] = []
    runs = iter(seen.ranges)
    run = next(runs, None)
    handed = [(one.first, one.last, one.deliveries) for one in seen.ranges]
    for job in open_jobs(seen.records, handed).jobs:
        while run is not None and run.last < job.record.offset:
            run = next(runs, None)
        assert run is not None
        found.append(
            Peeked(
                topic=description.topic,
                partition=description.partition,
                state=run.state,
                deliveries=job.deliveries,
                consumer=run.consumer,
                until_ms=run.until_ms,
                **msgspec.structs.asdict(record_out(job.record, encoding)),
            )
        )
    return found
