"""A cluster as a client sees it: its topics and leaders, and the requests that are not about records.

Every public method retries temporary failures (retry.py): a leader that moves, a broker that restarts. The `..._once`
methods try once; retries are built from these, so that no retry loop runs inside another.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Self
from uuid import UUID

from penstock.client.errors import Refused, lacking
from penstock.client.wire.connection import Connection, expect
from penstock.client.wire.connection_pool import ConnectionPool
from penstock.client.wire.coordinators import KeyType, find_coordinator
from penstock.client.wire.group_offsets import BROKER_RETENTION, GroupOffsets
from penstock.client.wire.list_offsets import FoundOffset, OffsetSearch
from penstock.client.wire.retry import retrying
from penstock.client.wire.settings import ClientSettings, ServerAddress
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.kafka.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from penstock.types import TopicPartition

METADATA_VERSION_MIN = 4
"""Before it, a metadata request may create the topic."""
CREATE_TOPICS_VERSION_MIN = 4
"""Before it, the broker has no default for the number of partitions."""
NO_LEADER = -1
BROKER_DEFAULT = -1
ABSENT = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


class Topic(NamedTuple):
    """A topic that exists."""

    name: str
    topic_id: UUID
    partitions: tuple[int, ...]
    internal: bool = False
    """Used by the brokers, such as __consumer_offsets."""


class Cluster:
    """A client of one cluster, for one thread. Connects with the first request."""

    def __init__(self, settings: ClientSettings) -> None:
        settings.validate()
        self.settings = settings
        self._pool = ConnectionPool(settings)
        self._leaders: dict[TopicPartition, int] = {}
        self._controller = NO_LEADER
        self._search = OffsetSearch(self)
        self._groups = GroupOffsets(settings, self._pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called again."""
        self._pool.close()

    # --- topics and leaders

    def topics(self, names: Collection[str] | None = None) -> dict[str, Topic]:
        """These topics, or all. A topic that does not exist is absent from the result, and is not created."""
        return retrying(self.settings, lambda: self._topics_once(names))

    def topic_to_write(self, name: str) -> Topic:
        """A topic for a producer. A broker that creates topics on first use creates it now."""
        found = self.topics([name]).get(name)
        return found or retrying(self.settings, lambda: self._topic_to_write_once(name))

    def leader_of(self, tp: TopicPartition) -> int:
        """The node id of the broker that leads a partition."""
        return retrying(self.settings, lambda: self.leader_once(tp))

    def forget_leaders(self, topics: Collection[str]) -> None:
        """The metadata of these topics is fetched again when a leader is needed."""
        names = frozenset(topics)
        for tp in [tp for tp in self._leaders if tp.topic in names]:
            del self._leaders[tp]

    def find_leaders(self, partitions: Collection[TopicPartition]) -> None:
        """Fetches, in one request, the metadata of all topics of which a leader is unknown. Waits for no election."""
        unknown = {tp.topic for tp in partitions if tp not in self._leaders}
        if unknown:
            self._topics_once(unknown)

    def leader_once(self, tp: TopicPartition) -> int:
        """The same as `leader_of`, without waiting for an election."""
        leader = self._leaders.get(tp)
        if leader is not None:
            return leader
        topic = self._topics_once([tp.topic]).get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            exists = "no such topic" if topic is None else f"the topic has {len(topic.partitions)} partitions"
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the leader of {tp}", exists)
        leader = self._leaders.get(tp)
        if leader is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of {tp}", "it has none right now")
        return leader

    # --- connections

    def brokers_once(self) -> tuple[int, ...]:
        """The node ids of all brokers, from new metadata."""
        self._topics_once([])
        return self._pool.node_ids

    def transaction_coordinator_once(self, transactional_id: str) -> int:
        """The node id of the broker that coordinates the transactions of this id."""
        return find_coordinator(self._pool, KeyType.TRANSACTION, transactional_id)

    def group_coordinator_once(self, group: str) -> int:
        """The node id of the broker that coordinates this group."""
        return find_coordinator(self._pool, KeyType.GROUP, group)

    def connect_once(self, node_id: int) -> Connection:
        """The shared connection to a broker; a new one if it was lost. Does not retry: callers look up the leader again
        between tries."""
        if not self._pool.knows(node_id):
            self._topics_once([])
        return self._pool.connect(node_id)

    def lend(self, node_id: int) -> Connection:
        """A connection for the caller alone, tried once: for callers that leave answers outstanding. Give it back."""
        return self._pool.lend(node_id)

    def give_back(self, connection: Connection) -> None:
        """Takes a lent connection back; closes it if answers are outstanding."""
        self._pool.give_back(connection)

    # --- offsets

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: int = 0
    ) -> dict[TopicPartition, FoundOffset]:
        """The offset of EARLIEST, LATEST, MAX_TIMESTAMP or of a time (ms: the first record at or after it)."""
        return self._search.run(wanted, isolation)

    def offset_once(self, tp: TopicPartition, wanted: int) -> FoundOffset:
        """The same as `offsets` for one partition, without retries."""
        return self._search.once(tp, wanted)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str = "",
        *,
        retention_ms: int = BROKER_RETENTION,
    ) -> None:
        """Commits offsets of a group. The group must have no members. With `retention_ms` the offsets, and with the
        last of them the group, expire so long after this, if they are not committed again."""
        self._groups.commit(group, offsets, metadata, retention_ms)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a group, all partitions; empty for a group that does not exist."""
        return self._groups.committed(group)

    # --- administration

    def create_topic(
        self, name: str, partitions: int = BROKER_DEFAULT, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and waits until its partitions have leaders. Does not change a topic that exists."""
        request = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=BROKER_DEFAULT,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        retrying(self.settings, lambda: self._create_once(request))
        retrying(self.settings, lambda: self._led_once(name))

    def init_producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch, for an idempotent producer."""
        return retrying(self.settings, self._init_producer_id_once)

    # --- one try each

    def _topics_once(self, names: Collection[str] | None, *, create: bool = False) -> dict[str, Topic]:
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=create)
        answer = self._pool.ask_any(ApiKey.METADATA, message, MetadataResponse, at_least=METADATA_VERSION_MIN)
        if answer.error_code != ErrorCode.NONE:
            raise Refused(answer.error_code, "the cluster's metadata")
        self._pool.learn({row.node_id: ServerAddress(row.host, row.port) for row in answer.brokers})
        self._controller = answer.controller_id
        return {topic.name: topic for topic in self._existing(answer.topics)}

    def _topic_to_write_once(self, name: str) -> Topic:
        found = self._topics_once([name], create=True).get(name)
        if found is None or not found.partitions:
            raise Refused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {name!r}",
                "it does not exist and the broker does not create topics on first use: create it, or check its name",
            )
        return found

    def _existing(self, rows: Iterable[MetadataResponseTopic]) -> Iterable[Topic]:
        for row in rows:
            name = row.name or ""
            if row.error_code in ABSENT:
                self.forget_leaders([name])
                continue
            if row.error_code != ErrorCode.NONE:
                raise Refused(
                    row.error_code, f"metadata of topic {name!r}", lacking(row.error_code, "DESCRIBE")
                )
            self._note_leaders(name, row)
            indexes = sorted(partition.partition_index for partition in row.partitions)
            yield Topic(name, row.topic_id, tuple(indexes), row.is_internal)

    def _note_leaders(self, name: str, row: MetadataResponseTopic) -> None:
        for partition in row.partitions:
            tp = TopicPartition(name, partition.partition_index)
            if partition.leader_id >= 0 and self._pool.knows(partition.leader_id):
                self._leaders[tp] = partition.leader_id
            else:
                self._leaders.pop(tp, None)

    def _create_once(self, request: CreatableTopic) -> None:
        message = CreateTopicsRequest(topics=[request], timeout_ms=self.settings.request_timeout_ms)
        self._topics_once([])  # the controller may have moved since the last metadata
        if not self._pool.knows(self._controller):
            raise Refused(
                ErrorCode.NOT_CONTROLLER, f"creating topic {request.name!r}", "there is no controller"
            )
        connection = self._pool.connect(self._controller)
        version = connection.version_of(ApiKey.CREATE_TOPICS, at_least=CREATE_TOPICS_VERSION_MIN)
        answer = connection.call(ApiKey.CREATE_TOPICS, message, version=version)
        for row in expect(answer, CreateTopicsResponse).topics:
            if row.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise Refused(row.error_code, f"creating topic {row.name!r}", row.error_message)

    def _led_once(self, name: str) -> None:
        topic = self._topics_once([name]).get(name)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} after creating it")
        for index in topic.partitions:
            if TopicPartition(name, index) not in self._leaders:
                raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of new topic {name!r}")

    def _init_producer_id_once(self) -> tuple[int, int]:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = self._pool.ask_any(ApiKey.INIT_PRODUCER_ID, message, InitProducerIdResponse)
        if answer.error_code != ErrorCode.NONE:
            raise Refused(
                answer.error_code, "a producer id", lacking(answer.error_code, "WRITE (on any topic)")
            )
        return answer.producer_id, answer.producer_epoch
