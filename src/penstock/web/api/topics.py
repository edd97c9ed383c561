"""Topics: list, create, describe, delete, configs, partitions."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.cluster import Topic
from penstock.config import TOPIC_CONFIGS
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.handlers.leader_offsets import EARLIEST, LATEST, find_offsets
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.kafka.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from penstock.kafka.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.nearest import nearest
from penstock.node import Node
from penstock.node.calls import CONTROLLER, AtNode, Target
from penstock.node.calls.messages.status import TopicFigures
from penstock.node.scheduling.shared_work import SharedWork
from penstock.types import Caller, Isolation, Operation, ResourceType, TopicPartition
from penstock.web.api.expected import EXPECTED
from penstock.web.api.problems import Problem, check, refused, wrong
from penstock.web.api.routing import ROWS_IN_LOOP, Call, NoParams, in_thread_if

DEFAULT = -1
TOPIC_RESOURCE = 2
SET, UNSET = 0, 1
SET_HERE = 1
"""The source of a config that the topic itself has."""
ANSWER_MS = 10_000
APPLIED_SECONDS = 5.0
"""How long a node waits until it has applied a change that the controller has committed."""

TopicName = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z0-9._-]+$",
        min_length=1,
        max_length=249,
        description="A topic's name.",
        extra={EXPECTED: "a topic's name: letters (a to z), digits, `.`, `_` and `-`"},
    ),
]
ConfigText = Annotated[str, Meta(max_length=32_000)]
Configs = Annotated[dict[Annotated[str, Meta(max_length=255)], ConfigText | int | bool], Meta(max_length=100)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class ListTopics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`internal`: also the broker's own topics, with the status log and the audit log. `figures`: with the size and the
    rate of each."""

    internal: bool = False
    figures: bool = False


class TopicParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: TopicName


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    internal: bool
    partitions: int
    replication_factor: int


class ListedTopic(TopicSummary, frozen=True, kw_only=True):
    """`size_bytes` is the sum over all replicas, `message_rate` the number of messages per second, both as of the last
    sample, some seconds ago; null while they are not known. They are there only if `figures` were asked for."""

    size_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    message_rate: float | msgspec.UnsetType | None = msgspec.UNSET


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[ListedTopic]


class NewTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out have the broker's defaults."""

    name: TopicName
    partitions: Count | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=32_767)] | None = None
    configs: Configs = {}


class ConfigFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`inherited`: not set on the topic itself."""

    value: str | None
    inherited: bool


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`leader` is null while there is none; the offsets are null while the leader does not answer."""

    partition: int
    leader: int | None
    leader_address: str | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    earliest_offset: int | None
    latest_offset: int | None


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    internal: bool
    configs: dict[str, ConfigFacts]
    partitions: list[PartitionFacts]


class ConfigChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`set` gives configs values, `unset` removes the topic's own values."""

    set: Configs = {}
    unset: Annotated[list[Annotated[str, Meta(max_length=255)]], Meta(max_length=100)] = []


class ConfigList(msgspec.Struct, frozen=True, kw_only=True):
    configs: dict[str, ConfigFacts]


class MorePartitions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` is the new number of partitions."""

    count: Count


class PartitionCount(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int


class Topics:
    """Operations on topics."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._figures = SharedWork(lambda: node.samples.latest_topics())

    # --- queries

    async def list_topics(self, call: Call[ListTopics, None]) -> TopicList:
        found = await self._metadata(call.client, None)
        figures = await self._figures.result() if call.params.figures else None
        own = None if call.params.internal else self._node.resources.own_logs
        return await in_thread_if(len(found.topics) > ROWS_IN_LOOP, _listed, found.topics, own, figures)

    async def describe_topic(self, call: Call[TopicParams, None]) -> TopicFacts:
        name = call.params.topic
        found = await self._metadata(call.client, name)
        topic = found.topics[0]
        _check_topic(topic, name)
        addresses = {one.node_id: f"{one.host}:{one.port}" for one in found.brokers}
        indexes = [row.partition_index for row in topic.partitions]
        earliest, latest = await asyncio.gather(
            _offsets(call.client, name, indexes, EARLIEST),
            _offsets(call.client, name, indexes, LATEST),
        )
        return TopicFacts(
            name=name,
            topic_id=str(topic.topic_id),
            internal=topic.is_internal,
            configs=await self._visible_configs(call.client, name),
            partitions=await in_thread_if(
                len(indexes) > ROWS_IN_LOOP, _partitions, topic.partitions, addresses, earliest, latest
            ),
        )

    async def _metadata(self, client: InnerClient, topic: str | None) -> MetadataResponse:
        topics = None if topic is None else [MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        return await client.ask(ApiKey.METADATA, request, MetadataResponse)

    async def _visible_configs(self, client: InnerClient, topic: str) -> dict[str, ConfigFacts]:
        """Without the configs if the caller may describe the topic, and not its configs."""
        operation, resources = Operation.DESCRIBE_CONFIGS, self._node.resources
        if not resources.visible(client.caller, ResourceType.TOPIC, (topic,), operation):
            return {}
        return await self._configs(client, topic, of=AtNode(self._node.node_id))

    async def _configs(self, client: InnerClient, topic: str, *, of: Target) -> dict[str, ConfigFacts]:
        """As the node that has the role `of` knows them."""
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource])
        answer = await client.ask_role(
            of,
            ApiKey.DESCRIBE_CONFIGS,
            request,
            DescribeConfigsResponse,
            lambda answer: answer.results[0].error_code,
        )
        [result] = answer.results
        check(result.error_code, result.error_message, "topic")
        return {row.name: _config(row) for row in sorted(result.configs, key=lambda row: row.name)}

    # --- changes

    async def create_topic(self, call: Call[NoParams, NewTopic]) -> TopicSummary:
        return await self.create(call.client, call.body)

    async def create(self, client: InnerClient, wanted: NewTopic) -> TopicSummary:
        made = await self.make(client, wanted)
        await self._applied(wanted.name, made.partitions)
        return made

    async def make(
        self, client: InnerClient, wanted: NewTopic, *, validate_only: bool = False
    ) -> TopicSummary:
        """Creates a topic; raises Problem if it is refused. `validate_only`: nothing is created."""
        check_known("configs", wanted.configs, TOPIC_CONFIGS)
        topic = CreatableTopic(
            name=wanted.name,
            num_partitions=DEFAULT if wanted.partitions is None else wanted.partitions,
            replication_factor=DEFAULT if wanted.replication_factor is None else wanted.replication_factor,
            configs=[
                CreatableTopicConfig(name=name, value=_config_text(value))
                for name, value in wanted.configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=ANSWER_MS, validate_only=validate_only)
        [made] = (await client.ask(ApiKey.CREATE_TOPICS, request, CreateTopicsResponse)).topics
        check(made.error_code, made.error_message, _CREATION_FIELDS.get(made.error_code))
        return TopicSummary(
            name=wanted.name,
            topic_id=str(made.topic_id),
            internal=False,
            partitions=made.num_partitions,
            replication_factor=made.replication_factor,
        )

    async def delete_topic(self, call: Call[TopicParams, None]) -> None:
        name = call.params.topic
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=ANSWER_MS)
        [gone] = (await call.client.ask(ApiKey.DELETE_TOPICS, request, DeleteTopicsResponse)).responses
        check(gone.error_code, gone.error_message, "topic")
        await self._applied(name, 0)

    async def alter_topic_configs(self, call: Call[TopicParams, ConfigChanges]) -> ConfigList:
        name, wanted = call.params.topic, call.body
        if not wanted.set and not wanted.unset:
            raise wrong("set", "nothing to change: expected `set` or `unset` with at least one config")
        check_known("set", wanted.set, TOPIC_CONFIGS)
        check_known("unset", wanted.unset, TOPIC_CONFIGS)
        changes = [
            AlterableConfig(name=config, config_operation=SET, value=_config_text(value))
            for config, value in wanted.set.items()
        ]
        changes += [
            AlterableConfig(name=config, config_operation=UNSET, value=None) for config in wanted.unset
        ]
        resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        answer = await call.client.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, request, IncrementalAlterConfigsResponse
        )
        check(answer.responses[0].error_code, answer.responses[0].error_message)
        return ConfigList(configs=await self._new_configs(call.client, name))

    async def _new_configs(self, client: InnerClient, topic: str) -> dict[str, ConfigFacts]:
        """After a change. The controller has the new configs for certain; this node may apply them a moment later, but
        is asked if there is no controller now: the change is made, and should not look as if it had failed."""
        try:
            return await self._configs(client, topic, of=CONTROLLER)
        except (PenstockError, Problem):
            return await self._configs(client, topic, of=AtNode(self._node.node_id))

    async def add_partitions(self, call: Call[TopicParams, MorePartitions]) -> PartitionCount:
        name, count = call.params.topic, call.body.count
        topic = CreatePartitionsTopic(name=name, count=count)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=ANSWER_MS)
        [grown] = (await call.client.ask(ApiKey.CREATE_PARTITIONS, request, CreatePartitionsResponse)).results
        field = "count" if grown.error_code == ErrorCode.INVALID_PARTITIONS else None
        check(grown.error_code, grown.error_message, field)
        await self._applied(name, count)
        return PartitionCount(name=name, partitions=count)

    async def _applied(self, name: str, partitions: int) -> None:
        """Returns when this node has applied the change, so that the caller's next request to it sees it. A timeout is
        no failure: the change is committed."""

        def is_applied() -> bool:
            count = self._node.resources.partition_count(name)
            return count >= partitions > 0 or count == partitions == 0

        await self._node.metadata.until(is_applied, APPLIED_SECONDS)


_CREATION_FIELDS: dict[int, str] = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: "name",
    ErrorCode.TOPIC_ALREADY_EXISTS: "name",
    ErrorCode.INVALID_PARTITIONS: "partitions",
    ErrorCode.INVALID_REPLICATION_FACTOR: "replication_factor",
    ErrorCode.INVALID_CONFIG: "configs",
}


def check_known(field: str, names: Iterable[str], known: Mapping[str, object]) -> None:
    """Refuses unknown names and suggests known ones. Kafka's handlers use Kafka's words, and accept it if tools that
    clean up unset unknown names."""
    for name in names:
        if name not in known:
            told = nearest(name, known) or f"; expected one of {', '.join(sorted(known))}"
            raise wrong(field, f"unknown config {name}{told}")


def find_topic(node: Node, caller: Caller, name: str, operation: Operation, field: str = "topic") -> Topic:
    """The topic, or the Problem that says where to look."""
    try:
        return node.resources.topic(caller, name, operation)
    except KafkaError as refusal:
        if refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise unknown_topic(name, field) from None
        raise


def unknown_topic(name: str, field: str = "topic") -> Problem:
    message = f"there is no topic {name!r}; GET /v1/topics lists them"
    return refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message, field)


def _check_topic(topic: MetadataResponseTopic, name: str) -> None:
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise unknown_topic(name)
    check(topic.error_code, None, "topic")


def _listed(
    topics: Iterable[MetadataResponseTopic],
    own_logs: Collection[str] | None,
    figures: Mapping[str, TopicFigures] | None,
) -> TopicList:
    """Without the internal topics and these logs of the broker, unless they are None. May run in a thread, as
    `_partitions`."""
    shown = (one for one in topics if own_logs is None or not (one.is_internal or one.name in own_logs))
    rows = [_summary(topic) for topic in shown]
    return TopicList(topics=rows if figures is None else [_with_figures(row, figures) for row in rows])


def _with_figures(row: ListedTopic, figures: Mapping[str, TopicFigures]) -> ListedTopic:
    known = figures.get(row.name)
    if known is None:
        return msgspec.structs.replace(row, size_bytes=None, message_rate=None)
    size, rate = known
    return msgspec.structs.replace(row, size_bytes=size, message_rate=round(rate, 1))


def _summary(topic: MetadataResponseTopic) -> ListedTopic:
    return ListedTopic(
        name=topic.name or "",
        topic_id=str(topic.topic_id),
        internal=topic.is_internal,
        partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replica_nodes) if topic.partitions else 0,
    )


async def _offsets(
    client: InnerClient, topic: str, partitions: Iterable[int], timestamp: int
) -> dict[int, int | PenstockError]:
    keys = [TopicPartition(topic, one) for one in partitions]
    found = await find_offsets(client, keys, timestamp, Isolation.READ_UNCOMMITTED)
    return {key.partition: offset for key, offset in found.items()}


def _partitions(
    rows: Iterable[MetadataResponsePartition],
    addresses: dict[int, str],
    earliest: dict[int, int | PenstockError],
    latest: dict[int, int | PenstockError],
) -> list[PartitionFacts]:
    return [_partition(row, addresses, earliest, latest) for row in rows]


def _partition(
    row: MetadataResponsePartition,
    addresses: dict[int, str],
    earliest: dict[int, int | PenstockError],
    latest: dict[int, int | PenstockError],
) -> PartitionFacts:
    return PartitionFacts(
        partition=row.partition_index,
        leader=row.leader_id if row.leader_id >= 0 else None,
        leader_address=addresses.get(row.leader_id),
        leader_epoch=row.leader_epoch,
        replicas=row.replica_nodes,
        in_sync=row.isr_nodes,
        earliest_offset=_known(earliest[row.partition_index]),
        latest_offset=_known(latest[row.partition_index]),
    )


def _known(offset: int | PenstockError) -> int | None:
    return offset if isinstance(offset, int) else None


def _config(row: DescribeConfigsResourceResult) -> ConfigFacts:
    return ConfigFacts(value=row.value, inherited=row.config_source != SET_HERE)


def _config_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
