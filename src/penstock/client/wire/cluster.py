"""A cluster as a client sees it: its topics, who leads what, and the requests that are not about records.

Every public method waits out what passes by itself (retry.py): a leader that moves, a broker that
restarts. The private `..._once` methods try once; they are what retries are made of, so that one wait never hides
inside another.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Self, TypeVar
from uuid import UUID

from penstock.client.errors import Garbled, Refused
from penstock.client.wire.connection import Connection
from penstock.client.wire.connection_pool import Pool
from penstock.client.wire.group_offsets import GroupOffsets
from penstock.client.wire.list_offsets import FoundOffset, OffsetSearch
from penstock.client.wire.retry import persist
from penstock.client.wire.settings import ClientSettings, ServerAddress
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
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

M = TypeVar("M", bound=Message)

METADATA_VERSION_MIN = 4
"""Before it, asking for a topic may create it."""
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
    """The brokers' own, such as __consumer_offsets."""


class Cluster:
    """For one thread. Connects when first asked for something."""

    def __init__(self, settings: ClientSettings) -> None:
        settings.validate()
        self.settings = settings
        self._pool = Pool(settings)
        self._leaders: dict[TopicPartition, int] = {}
        self._controller = NO_LEADER
        self._search = OffsetSearch(self)
        self._groups = GroupOffsets(settings, self._pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Calling it twice is fine."""
        self._pool.close()

    # --- topics and leaders

    def topics(self, names: Collection[str] | None = None) -> dict[str, Topic]:
        """These topics, or all of them. One that does not exist is absent, and is not created."""
        return persist(self.settings, lambda: self._topics_once(names))

    def leader_of(self, place: TopicPartition) -> int:
        """The node id of the broker that leads a partition."""
        return persist(self.settings, lambda: self.leader_once(place))

    def refresh(self, topics: Collection[str]) -> None:
        """Forgets who leads these topics' partitions and asks anew."""
        self.forget_leaders(topics)
        persist(self.settings, lambda: self._topics_once(topics))

    def forget_leaders(self, topics: Collection[str]) -> None:
        """As `refresh`, but asks only when somebody wants to know."""
        names = frozenset(topics)
        for place in [place for place in self._leaders if place.topic in names]:
            del self._leaders[place]

    def find_leaders(self, places: Collection[TopicPartition]) -> None:
        """Asks, in one request, for all topics of which some of these leaders are unknown; waits for none."""
        unknown = {place.topic for place in places if place not in self._leaders}
        if unknown:
            self._topics_once(unknown)

    def leader_once(self, place: TopicPartition) -> int:
        """As `leader_of`, without waiting for a leader to be elected."""
        leader = self._leaders.get(place)
        if leader is not None:
            return leader
        topic = self._topics_once([place.topic]).get(place.topic)
        if topic is None or place.partition not in topic.partitions:
            exists = "no such topic" if topic is None else f"the topic has {len(topic.partitions)} partitions"
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the leader of {place}", exists)
        leader = self._leaders.get(place)
        if leader is None:
            raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"the leader of {place}", "it has none right now")
        return leader

    # --- connections

    def connection_to(self, node_id: int) -> Connection:
        """The connection that everybody who uses this cluster shares; a new one if it was lost."""
        return persist(self.settings, lambda: self.connect_once(node_id))

    def connect_once(self, node_id: int) -> Connection:
        """As `connection_to`, without a second try: better where the leader may have moved elsewhere meanwhile."""
        if not self._pool.knows(node_id):
            self._topics_once([])
        return self._pool.connect(node_id)

    def lend(self, node_id: int) -> Connection:
        """A connection for the caller alone, tried once: for reads that run ahead. To be given back."""
        return self._pool.lend(node_id)

    def give_back(self, connection: Connection) -> None:
        """Takes a lent connection back; closes it if answers are outstanding."""
        self._pool.give_back(connection)

    # --- offsets

    def offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: int = 0
    ) -> dict[TopicPartition, FoundOffset]:
        """Where EARLIEST, LATEST, MAX_TIMESTAMP or a time (ms: the first record at or after it) lies."""
        return self._search.run(wanted, isolation)

    def offset_once(self, place: TopicPartition, wanted: int) -> FoundOffset:
        """As `offsets` for one partition, without a second try."""
        return self._search.once(place, wanted)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Stores where a group is to go on reading. The group must have no members that do this themselves."""
        self._groups.commit(group, offsets, metadata)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """What is stored for a group, all partitions; nothing for a group that does not exist."""
        return self._groups.committed(group)

    # --- administration

    def create_topic(
        self, name: str, partitions: int = BROKER_DEFAULT, configs: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and waits until its partitions have leaders. One that exists is left as it is."""
        wish = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=BROKER_DEFAULT,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        )
        persist(self.settings, lambda: self._create_once(wish))
        persist(self.settings, lambda: self._led_once(name))

    def init_producer_id(self) -> tuple[int, int]:
        """A fresh producer id and its epoch, for an idempotent producer."""
        return persist(self.settings, self._init_producer_id_once)

    # --- one try each

    def _topics_once(self, names: Collection[str] | None) -> dict[str, Topic]:
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self._pool.ask_any(ApiKey.METADATA, message, at_least=METADATA_VERSION_MIN)
        answer = expect(answer, MetadataResponse)
        if answer.error_code != ErrorCode.NONE:
            raise Refused(answer.error_code, "the cluster's metadata")
        self._pool.learn({row.node_id: ServerAddress(row.host, row.port) for row in answer.brokers})
        self._controller = answer.controller_id
        return {topic.name: topic for topic in self._existing(answer.topics)}

    def _existing(self, rows: Iterable[MetadataResponseTopic]) -> Iterable[Topic]:
        for row in rows:
            name = row.name or ""
            if row.error_code in ABSENT:
                self.forget_leaders([name])
                continue
            if row.error_code != ErrorCode.NONE:
                raise Refused(row.error_code, f"metadata of topic {name!r}")
            self._note_leaders(name, row)
            indexes = sorted(partition.partition_index for partition in row.partitions)
            yield Topic(name, row.topic_id, tuple(indexes), row.is_internal)

    def _note_leaders(self, name: str, row: MetadataResponseTopic) -> None:
        for partition in row.partitions:
            place = TopicPartition(name, partition.partition_index)
            if partition.leader_id >= 0 and self._pool.knows(partition.leader_id):
                self._leaders[place] = partition.leader_id
            else:
                self._leaders.pop(place, None)

    def _create_once(self, wish: CreatableTopic) -> None:
        message = CreateTopicsRequest(topics=[wish], timeout_ms=self.settings.request_timeout_ms)
        self._topics_once([])  # tells the controller, which may have moved since it was heard of last
        if not self._pool.knows(self._controller):
            raise Refused(ErrorCode.NOT_CONTROLLER, f"creating topic {wish.name!r}", "there is no controller")
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
        answer = expect(self._pool.ask_any(ApiKey.INIT_PRODUCER_ID, message), InitProducerIdResponse)
        if answer.error_code != ErrorCode.NONE:
            raise Refused(answer.error_code, "a producer id")
        return answer.producer_id, answer.producer_epoch


def expect(answer: Message, kind: type[M]) -> M:
    """The answer as what it must be; the codec has made it of the request's API, so this only tells the types."""
    if not isinstance(answer, kind):
        raise Garbled(f"{type(answer).__name__} where {kind.__name__} was expected")
    return answer
