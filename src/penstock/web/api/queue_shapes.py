"""The structs of requests and responses about queues."""

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.security.principals import MAX_PRINCIPAL_CHARACTERS
from penstock.web.api.dead_letters import PartitionNumber, QueueName
from penstock.web.api.payloads import Encoding, RecordOut
from penstock.web.api.problems import wrong
from penstock.web.api.topics import Configs, Count, TopicName

MAX_DURATION_MS = 7 * 24 * 3600 * 1000
"""The longest delay before a message is delivered again, as in the group configs."""
EXCLUSIVE_PRODUCER = "penstock.producer.exclusive"
PEEKED_MAX = 1_000
SCHEDULED_MAX = 1_000

LeaseMs = Annotated[int, Meta(ge=1_000, le=3_600_000)]
DeliveryLimit = Annotated[int, Meta(ge=0, le=255)]
Principals = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=MAX_PRINCIPAL_CHARACTERS)]], Meta(max_length=100)
]
DurationMs = Annotated[int, Meta(ge=0, le=MAX_DURATION_MS)]


class NewQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic` is the queue's name if it is left out, and is created if it does not exist. `start`: with the messages
    that it has already, or only with new ones. `point_to_point`: one partition, one producer and one consumer at a
    time. `dedup_window_ms`: for how long the topic remembers message ids. Other fields that are left out have the
    defaults of group configs; `configs` are more of these by name. `producers` and `consumers` (users by their
    names, or principals) get the access rules that they need."""

    queue: QueueName
    topic: TopicName | None = None
    partitions: Count | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] | None = None
    start: Literal["earliest", "latest"] = "earliest"
    point_to_point: bool = False
    dedup_window_ms: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    order: Literal["none", "key"] | None = None
    lease_ms: LeaseMs | None = None
    delivery_limit: DeliveryLimit | None = None
    dead_letters: bool | None = None
    dead_letter_topic: TopicName | None = None
    retry_backoff_ms: DurationMs | None = None
    retry_backoff_max_ms: DurationMs | None = None
    configs: Configs = {}
    producers: Principals = []
    consumers: Principals = []

    def topic_configs(self) -> dict[str, str]:
        """Configs of the topic, whether or not it exists already."""
        wanted = {
            EXCLUSIVE_PRODUCER: True if self.point_to_point else None,
            "dedup.window.ms": self.dedup_window_ms,
        }
        return {name: config_text(value) for name, value in wanted.items() if value is not None}

    def group_configs(self) -> dict[str, str]:
        wanted = {
            "share.auto.offset.reset": self.start,
            "penstock.queue.exclusive": True if self.point_to_point else None,
            "penstock.queue.order": self.order,
            "share.record.lock.duration.ms": self.lease_ms,
            "share.delivery.count.limit": self.delivery_limit,
            "penstock.dead.letter.enable": self.dead_letters,
            "penstock.dead.letter.topic": self.dead_letter_topic,
            "penstock.retry.backoff.ms": self.retry_backoff_ms,
            "penstock.retry.backoff.max.ms": self.retry_backoff_max_ms,
            **self.configs,
        }
        return {name: config_text(value) for name, value in wanted.items() if value is not None}


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`undone`, `available`, `leased` and `deferred` are sums of the known numbers: null while no leader answers.
    `dead_letters` counts those in the queue's dead-letter topics that were not sent back, also those of other queues
    there; null if one of these topics does not answer, or the caller may not describe it. `consumers` is how many
    there are; `rate` is the number of messages that were settled per second, over the last minute. `end_offset` is the
    sum over all partitions: it grows by one with each message."""

    queue: str
    topics: list[str]
    partitions: int
    undone: int | None
    leased: int | None
    consumers: int
    rate: float | None
    end_offset: int | None
    available: int | None = None
    deferred: int | None = None
    dead_letters: int | None = None


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueSummary]


class QueueSettingsOut(msgspec.Struct, frozen=True, kw_only=True):
    order: Literal["none", "key", "owner"]
    exclusive: bool
    lease_ms: int
    delivery_limit: int
    dead_letters: bool
    dead_letter_topic: str | None
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    retry_backoff_factor: float


class QueuePartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All messages before `start_offset` are done. Messages are `deferred` if they are not due yet, `waiting` for an
    earlier one of their key, or `dying` while they are copied to the dead letters. A description reads the log until
    100,000 messages are available; those behind it count as available. Numbers are null while the partition's leader
    does not answer. `holder` is the consumer of an exclusive queue. `deleted_undone` counts messages that retention or
    an operator deleted before they were done, since the partition's leader started or took over."""

    topic: str
    partition: int
    leader: int | None
    start_offset: int
    end_offset: int | None
    undone: int | None
    available: int | None
    leased: int | None
    deferred: int | None
    waiting: int | None
    dying: int | None
    rate: float | None
    holder: str | None
    deleted_undone: int = 0


class QueueConsumerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that is connected (interface kafka or websocket), or one over HTTP that holds leases or has sent a
    request within the last minute. `rate` is the number of messages that it settled per second, over the last minute.
    `partitions` are those that it works on, as "topic-partition"; `nodes` lead them. `seen_ms` is the time of its last
    request over HTTP; null if it is connected."""

    id: str
    name: str
    address: str
    interface: str
    since_ms: int
    leases: int
    rate: float
    partitions: list[str]
    nodes: list[int]
    seen_ms: int | None = None


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """At most 1,000 consumers are listed: those that have worked on it longest. `more_consumers`: there are others.
    `warnings` tell people about messages that were deleted, or may be, before they are done. `dead_letters` counts
    those in the queue's dead-letter topics that were not sent back, also those of other queues there; null if one of
    these topics does not answer, or the caller may not describe it."""

    queue: str
    settings: QueueSettingsOut
    partitions: list[QueuePartitionFacts]
    consumers: list[QueueConsumerFacts]
    more_consumers: bool
    warnings: list[str] = []
    dead_letters: int | None = None


class PeekParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic`, `partition` and `offset` narrow the search; each needs the one before it."""

    queue: QueueName
    topic: TopicName | msgspec.UnsetType = msgspec.UNSET
    partition: PartitionNumber | msgspec.UnsetType = msgspec.UNSET
    offset: Annotated[int, Meta(ge=0, le=2**62)] | msgspec.UnsetType = msgspec.UNSET
    max_records: Annotated[int, Meta(ge=1, le=PEEKED_MAX)] = 10
    encoding: Encoding = "json"


class Peeked(RecordOut, frozen=True, kw_only=True):
    """A message that is not done. If it is leased, `consumer` has it until `until_ms`."""

    topic: str
    partition: int
    state: str
    deliveries: int
    consumer: str | None
    until_ms: int | None


class PeekedList(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    messages: list[Peeked]


class ScheduledParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic` and `partition` narrow the list. It has at most `max_records` messages, of all partitions together."""

    queue: QueueName
    topic: TopicName | msgspec.UnsetType = msgspec.UNSET
    partition: PartitionNumber | msgspec.UnsetType = msgspec.UNSET
    max_records: Annotated[int, Meta(ge=1, le=SCHEDULED_MAX)] = 100


class ScheduledPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The queue has not read `unread` messages yet: some of these may be deferred, too. Numbers are null while the
    partition's leader does not answer; `next_due_ms` also if nothing is deferred."""

    topic: str
    partition: int
    deferred: int | None
    next_due_ms: int | None
    unread: int | None


class ScheduledMessage(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    offset: int
    due_ms: int


class ScheduledList(msgspec.Struct, frozen=True, kw_only=True):
    """`messages` are the next, soonest first."""

    queue: str
    partitions: list[ScheduledPartition]
    messages: list[ScheduledMessage]


class Purge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Removes the messages of these topics; those of all topics of the queue if `topics` is left out."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=1_000)] | None = None


class PurgedPartition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    start_offset: int
    """All messages before it are done."""
    purged: int | None
    """How many messages were not done; null if that is not known."""


class PurgeDone(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    partitions: list[PurgedPartition]


def config_text(value: object) -> str:
    """The value as configs are written."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_dead_letter_topic(configs: Mapping[str, str | None], topics: Collection[str]) -> None:
    """Refuses a topic of the queue itself: a failing message would come back to the queue again and again."""
    name = (configs.get("penstock.dead.letter.topic") or "").strip()
    if name in topics:
        raise wrong("dead_letter_topic", f"the queue is on {name} itself: name another topic")
