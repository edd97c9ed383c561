"""Creates, alters, describes and deletes topics, queues and groups. Usable from several threads.

Topics, configs and groups use Kafka's protocol and work with any Kafka; queues use the HTTP API.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar, Unpack
from urllib.parse import quote

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock.client.arguments import Seconds, as_ms
from penstock.client.dead_letters import DeadLetter, dead_letters, send_back
from penstock.client.errors import ClientError, Denied, Garbled, Refused, Unreachable
from penstock.client.http_api import REQUEST_SECONDS, HttpApi
from penstock.client.http_nodes import HttpNodes
from penstock.client.kafka_errors import UNREACHABLE_CODES, client_error, no_broker_answers
from penstock.client.queue_settings import QueueSettings, group_configs
from penstock.client.topic_cache import FIRST_SECONDS, Explain

ASK_AGAIN_SECONDS: Final = 15.0
ASK_AGAIN_PAUSE_SECONDS: Final = 0.3
"""How long the client retries while a cluster has no controller: librdkafka does not retry these requests."""
NO_OFFSET: Final = -1001
"""librdkafka's mark for "this group has committed nothing here"."""

RETRIABLE: Final = frozenset({KafkaError.NOT_CONTROLLER, KafkaError.COORDINATOR_NOT_AVAILABLE})

HINTS: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "there is no such topic: client.admin.topics() lists all topics"
}

T = TypeVar("T")


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int
    replication_factor: int
    leaders: dict[int, int | None]
    """The node that leads each partition; None during an election."""


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group, or the offsets of a subscription, which are stored in the same way."""

    name: str
    state: str
    members: list[str]
    offsets: dict[tuple[str, int], int]
    lag: dict[tuple[str, int], int]

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())


class QueuePartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of jobs; None while the partition's leader does not answer."""

    topic: str
    partition: int
    leader: int | None = None
    start_offset: int = 0
    """Everything before it is done."""
    undone: int | None = None
    available: int | None = None
    leased: int | None = None
    deferred: int | None = None
    """Jobs that wait for their delivery time, or for their next attempt."""
    waiting: int | None = None
    """Jobs that wait for an earlier job of their key."""
    dying: int | None = None
    """Jobs on their way to the dead-letter topic."""
    rate: float | None = None
    """Jobs that were settled per second, over the last minute."""
    holder: str | None = None
    """The consumer of an exclusive queue."""


class QueueConsumerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer that is connected, or one over HTTP that holds leases or sent a request within the last minute."""

    id: str
    name: str
    address: str
    interface: str
    """kafka, websocket or http."""
    since_ms: int
    leases: int
    rate: float
    """Jobs that it settled per second, over the last minute."""
    partitions: list[str]


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: list[QueuePartitionInfo]
    configs: dict[str, str]
    consumers: list[QueueConsumerInfo] = []
    more_consumers: bool = False
    """Whether there are more consumers than are listed: at most 1,000 are, those that have worked on it longest."""

    @property
    def undone(self) -> int:
        """Jobs that are not done, in the partitions whose leaders answered."""
        return sum(one.undone or 0 for one in self.partitions)


class Admin:
    """A blocking client's `client.admin`."""

    def __init__(
        self, kafka: Callable[[], AdminClient], nodes: HttpNodes, servers: str, explain: Explain
    ) -> None:
        self._kafka_client = kafka
        self._http = HttpApi(nodes)
        self._servers = servers
        self._explain = explain
        self._is_reached = False
        """Whether a broker has ever answered. If not, requests fail early, with the address that does not answer."""

    # --- topics

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """Returns whether it was created; False if it exists and `exist_ok` is set. -1: the broker's default."""
        topic = NewTopic(name, partitions, replication_factor, config=dict(configs or {}))
        tolerated = KafkaError.TOPIC_ALREADY_EXISTS if exist_ok else None
        return self._do(lambda kafka: kafka.create_topics([topic])[name], f"creating topic {name}", tolerated)

    def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """Returns whether it was deleted; False if it does not exist and `missing_ok` is set."""
        tolerated = KafkaError.UNKNOWN_TOPIC_OR_PART if missing_ok else None
        return self._do(lambda kafka: kafka.delete_topics([name])[name], f"deleting topic {name}", tolerated)

    def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """All topics; without the broker's internal ones, unless asked for."""
        try:
            found = self._kafka("listing topics").list_topics(timeout=REQUEST_SECONDS).topics
        except KafkaException as problem:
            raise client_error(problem.args[0], "listing topics") from None
        return [
            _topic_info(topic)
            for name, topic in sorted(found.items())
            if internal or not name.startswith("__")
        ]

    def topic_ends(self, name: str) -> dict[int, int]:
        """The end offset of each partition: the offset of the next message."""
        found = [topic for topic in self.topics(internal=True) if topic.name == name]
        if not found:
            raise Refused(
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                f"reading the ends of {name}",
                HINTS[KafkaError.UNKNOWN_TOPIC_OR_PART],
            )
        ends = self._ends([(name, partition) for partition in range(found[0].partitions)])
        return {partition: end for (_, partition), end in ends.items()}

    def topic_configs(self, name: str) -> dict[str, str]:
        """All configs of a topic, defaults included, as text."""
        return self._configs(ResourceType.TOPIC, name)

    def alter_topic(self, name: str, configs: Mapping[str, str | None]) -> None:
        """Sets configs; None resets one to its default."""
        self._alter(ResourceType.TOPIC, name, configs)

    # --- queues

    def create_queue(
        self,
        name: str,
        *,
        topic: str | None = None,
        read_old: bool = True,
        point_to_point: bool = False,
        partitions: int | None = None,
        replication_factor: int | None = None,
        dedup: Seconds | None = None,
        producers: Sequence[str] = (),
        consumers: Sequence[str] = (),
        configs: Mapping[str, str] | None = None,
        **settings: Unpack[QueueSettings],
    ) -> bool:
        """Creates a queue on a topic, which is created if it does not exist. Returns whether the queue was created: one
        that exists keeps its position and gets the given settings; those that are None stay as they are.

        Without `topic`, the queue is on the topic of its own name. A topic that this creates keeps each message until
        the queue has settled it. For settings alone, of a queue that begins with its first consumer, use `alter_queue`.

        `read_old`: the queue begins with the oldest message of the topic, and not with the next one. `point_to_point`:
        one partition, one producer and one consumer at a time, in strict order. `partitions`, `replication_factor`: of
        a topic that is created. `dedup`: for how long the topic remembers message ids, also if it exists; 0: not at
        all. `producers`, `consumers`: users that get the access rules to publish to the topic, and to work on the
        queue, if it is created; others may do neither unless a rule allows it. `configs`: more group configs by name.
        The settings are those of QueueSettings."""
        given = {"share.auto.offset.reset": "earliest" if read_old else "latest", **group_configs(settings)}
        if point_to_point:
            given["penstock.queue.exclusive"] = "true"
        given |= dict(configs or {})
        of_topic: dict[str, object] = {
            "point_to_point": point_to_point,
            "partitions": partitions,
            "replication_factor": replication_factor,
            "dedup_window_ms": None if dedup is None else as_ms("dedup", dedup),
        }
        named = {"producers": list(producers), "consumers": list(consumers)}
        of_topic |= {field: names for field, names in named.items() if names}
        topic = name if topic is None else topic
        if self._begin_queue(name, topic, given, of_topic):
            return True
        self._alter(ResourceType.GROUP, name, given)
        self._alter_topic_of_queue(topic, of_topic)
        return False

    def delete_queue(self, name: str, *, missing_ok: bool = False) -> bool:
        """Returns whether it was deleted; False if it does not exist and `missing_ok` is set. The queue must have no
        consumers. Its messages stay in their topics."""
        try:
            self._http.ask("DELETE", _queue_path(name), repeatable=missing_ok)
        except Denied as refused:
            if missing_ok and refused.code == "unknown_queue":
                return False
            raise
        return True

    def purge_queue(self, name: str, *, topics: Sequence[str] | None = None) -> int:
        """Marks all jobs that are in the queue now as done: those of these topics, or of all. Returns how many, in the
        partitions whose leaders answered. Other queues and groups still get the messages."""
        body = {"topics": topics and list(topics)}
        purged = self._http.ask("POST", f"{_queue_path(name)}/purge", body, repeatable=True)
        return sum(one["purged"] or 0 for one in purged["partitions"])

    def dead_letters(self, name: str, *, limit: int = 1_000) -> list[DeadLetter]:
        """Up to `limit` dead letters of the queue that were not sent back."""
        return list(dead_letters(self._http, name, limit))

    def send_back(self, name: str, letters: Sequence[DeadLetter] | None = None) -> int:
        """Publishes dead letters (these, or all) to the topic that they came from. Returns how many."""
        return send_back(self._http, name, letters)

    def queue_configs(self, name: str) -> dict[str, str]:
        """All configs of a queue, defaults included, as text."""
        return self._configs(ResourceType.GROUP, name)

    def alter_queue(
        self,
        name: str,
        configs: Mapping[str, str | None] | None = None,
        **settings: Unpack[QueueSettings],
    ) -> None:
        """Changes settings (those of QueueSettings), before the queue's first consumer comes or later; those that are
        None stay. `configs`: more group configs by name; None resets one to its default."""
        self._alter(ResourceType.GROUP, name, {**group_configs(settings), **(configs or {})})

    def queues(self) -> list[str]:
        """The names of all queues that have begun on some topic."""
        return sorted(str(one["queue"]) for one in self._http.ask("GET", "/v1/queues")["queues"])

    def queue(self, name: str) -> QueueInfo:
        """The queue's state, partition by partition, and its configs. Raises Denied (`code` unknown_queue) if it has
        not begun: queues begin with `create_queue`, or with their first consumer."""
        found = self._http.ask("GET", _queue_path(name))
        try:
            partitions = msgspec.convert(found["partitions"], list[QueuePartitionInfo])
            consumers = msgspec.convert(found.get("consumers", []), list[QueueConsumerInfo])
        except (msgspec.ValidationError, KeyError, TypeError) as problem:
            raise Garbled(
                f"the description of queue {name}: {problem}: does the broker have another version?"
            ) from None
        configs = self.queue_configs(name)
        return QueueInfo(
            name=name,
            partitions=partitions,
            configs=configs,
            consumers=consumers,
            more_consumers=bool(found.get("more_consumers")),
        )

    # --- groups

    def groups(self) -> list[str]:
        """The names of consumer groups, subscriptions, and share groups with members."""
        answer = self._ask(lambda kafka: kafka.list_consumer_groups(), "listing groups")
        if answer.errors:
            raise client_error(answer.errors[0].args[0], "listing groups")
        return sorted(group.group_id for group in answer.valid)

    def group(self, name: str) -> GroupInfo:
        """Members, committed offsets and lag. Raises Denied (`code` unknown_group) if there is no such group."""
        asked = f"describing group {name}"
        found = self._ask(lambda kafka: kafka.describe_consumer_groups([name])[name], asked)
        wanted = ConsumerGroupTopicPartitions(name)
        committed = self._ask(lambda kafka: kafka.list_consumer_group_offsets([wanted])[name], asked)
        offsets = {
            (tp.topic, tp.partition): tp.offset
            for tp in committed.topic_partitions or []
            if tp.offset != NO_OFFSET
        }
        members = [f"{member.client_id}@{member.host}" for member in found.members]
        if found.state.name == "DEAD" and not offsets and not members:
            raise Denied("unknown_group", f"there is no group {name!r}: client.admin.groups() lists them")
        lag = {key: end - offsets[key] for key, end in self._ends(list(offsets)).items()}
        return GroupInfo(name=name, state=found.state.name.lower(), members=members, offsets=offsets, lag=lag)

    def delete_group(self, name: str, *, missing_ok: bool = False) -> bool:
        """Returns whether it was deleted; False if it does not exist and `missing_ok` is set. The group must have no
        members."""
        tolerated = KafkaError.GROUP_ID_NOT_FOUND if missing_ok else None
        asked = f"deleting group {name}"
        return self._do(lambda kafka: kafka.delete_consumer_groups([name])[name], asked, tolerated)

    # --- inside

    def _begin_queue(
        self,
        name: str,
        topic: str,
        configs: Mapping[str, str],
        of_topic: Mapping[str, object],
        is_second_try: bool = False,
    ) -> bool:
        """False if the queue exists."""
        start = configs["share.auto.offset.reset"]
        request = {"queue": name, "topic": topic, "start": start, "configs": dict(configs), **of_topic}
        try:
            self._http.ask("POST", "/v1/queues", request, repeatable=True)
        except Denied as refused:
            if refused.code == "queue_exists":
                return False
            if refused.code != "topic_already_exists" or is_second_try:
                raise
            # Another program has created the topic in this moment: now the queue can begin on it, or exists.
            return self._begin_queue(name, topic, configs, of_topic, is_second_try=True)
        return True

    def _alter_topic_of_queue(self, topic: str, of_topic: Mapping[str, object]) -> None:
        """Sets what `create_queue` was given for the topic of a queue that exists."""
        configs: dict[str, str | None] = {}
        if of_topic["point_to_point"]:
            configs["penstock.producer.exclusive"] = "true"
        if of_topic["dedup_window_ms"] is not None:
            configs["dedup.window.ms"] = str(of_topic["dedup_window_ms"])
        if configs:
            self.alter_topic(topic, configs)

    def _ends(self, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if not partitions:
            return {}
        wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for topic, partition in partitions}
        asked = "reading the ends of partitions"
        found = self._kafka(asked).list_offsets(wanted, request_timeout=REQUEST_SECONDS)
        return {(tp.topic, tp.partition): self._result(one, asked).offset for tp, one in found.items()}

    def _configs(self, kind: ResourceType, name: str) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        found = self._ask(
            lambda kafka: kafka.describe_configs([resource])[resource], f"reading the configs of {name}"
        )
        return {config: entry.value for config, entry in found.items()}

    def _alter(self, kind: ResourceType, name: str, configs: Mapping[str, str | None]) -> None:
        changes = [
            ConfigEntry(config, _config_text(config, value), incremental_operation=_operation(value))
            for config, value in configs.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=changes)
        asked = f"setting configs of {name}"
        self._ask(lambda kafka: kafka.incremental_alter_configs([resource])[resource], asked)

    def _do(self, ask: "Callable[[AdminClient], Future[Any]]", asked: str, tolerated: int | None) -> bool:
        """False if it failed with the tolerated code."""
        try:
            self._ask(ask, asked)
        except ClientError as refused:
            if tolerated is None or not _is(refused, tolerated):
                raise
            return False
        return True

    def _ask(self, ask: "Callable[[AdminClient], Future[Any]]", asked: str) -> Any:
        deadline = time.monotonic() + ASK_AGAIN_SECONDS
        while True:
            try:
                return self._result(ask(self._kafka(asked)), asked)
            except ClientError as refused:
                if not any(_is(refused, code) for code in RETRIABLE) or time.monotonic() > deadline:
                    raise
                time.sleep(ASK_AGAIN_PAUSE_SECONDS)

    def _kafka(self, asked: str) -> AdminClient:
        """A client that has reached a broker at least once."""
        kafka = self._kafka_client()
        if not self._is_reached:
            try:
                kafka.list_topics(timeout=FIRST_SECONDS)
            except KafkaException as problem:
                if problem.args[0].code() in UNREACHABLE_CODES:
                    raise self._explain(no_broker_answers(asked, self._servers)) from None
            self._is_reached = True
        return kafka

    def _result(self, future: "Future[T]", asked: str) -> T:
        try:
            return future.result(REQUEST_SECONDS)
        except KafkaException as problem:
            raise self._explain(_refusal(problem.args[0], asked)) from None
        except TimeoutError:
            raise self._unanswered(asked) from None

    def _unanswered(self, asked: str) -> ClientError:
        seconds = f"{REQUEST_SECONDS:.0f} s"
        return self._explain(
            Unreachable(
                f"{asked}: no answer from {self._servers} within {seconds}: check that the brokers run"
            )
        )


def _queue_path(name: str) -> str:
    return f"/v1/queues/{quote(name, safe='')}"


def read_configs(kafka: AdminClient, kind: ResourceType, name: str, timeout_s: float) -> dict[str, str]:
    """All configs of a topic or group, asked for once. Raises ClientError."""
    resource = ConfigResource(kind, name)
    try:
        found = kafka.describe_configs([resource], request_timeout=timeout_s)[resource].result()
    except KafkaException as problem:
        raise client_error(problem.args[0], f"reading the configs of {name}") from None
    return {config: entry.value for config, entry in found.items()}


def _topic_info(topic: Any) -> TopicInfo:
    partitions = topic.partitions
    return TopicInfo(
        name=topic.topic,
        partitions=len(partitions),
        replication_factor=max((len(one.replicas) for one in partitions.values()), default=0),
        leaders={
            number: one.leader if one.leader >= 0 else None for number, one in sorted(partitions.items())
        },
    )


def _refusal(error: KafkaError, asked: str) -> ClientError:
    """An unknown topic is final here: the controller knows all topics."""
    refused = client_error(error, asked, HINTS)
    if isinstance(refused, Refused):
        refused.is_final = error.code() in HINTS
    return refused


def _config_text(name: str, value: str | None) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(
            f"configs[{name!r}]={value!r}: expected text, such as {str(value)!r}, or None for the default"
        )
    return value or ""


def _operation(value: str | None) -> AlterConfigOpType:
    return AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET


def _is(problem: ClientError, code: int) -> bool:
    return getattr(problem, "code", None) == code
