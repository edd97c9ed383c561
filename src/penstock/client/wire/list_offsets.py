"""ListOffsets: where in its partitions a time, the beginning or the end lies. One request for each leader."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.client.errors import ClientError, Garbled, Refused
from penstock.client.wire.connection import Connection
from penstock.client.wire.retry import RetryBackoff
from penstock.client.wire.settings import ClientSettings
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.types import TopicPartition

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
CONSUMER = -1
"""The replica id of those who are none."""


class FoundOffset(NamedTuple):
    """An offset of -1 says that there is no record at or after that time."""

    offset: int
    timestamp: int


class Leaders(Protocol):
    """What this needs of a cluster."""

    settings: ClientSettings

    def find_leaders(self, places: Collection[TopicPartition]) -> None: ...
    def leader_once(self, place: TopicPartition) -> int: ...
    def forget_leaders(self, topics: Collection[str]) -> None: ...
    def connect_once(self, node_id: int) -> Connection: ...


class OffsetSearch:
    """Asks each leader for its partitions; only those that failed are asked for again."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders

    def run(self, wanted: Mapping[TopicPartition, int], isolation: int) -> dict[TopicPartition, FoundOffset]:
        found: dict[TopicPartition, FoundOffset] = {}
        patience = RetryBackoff(self._leaders.settings)
        while missing := {place: time for place, time in wanted.items() if place not in found}:
            before = len(found)
            problem = self._round(missing, isolation, found)
            if len(found) > before:
                patience.restart()
            if problem is not None:
                self._leaders.forget_leaders({place.topic for place in missing if place not in found})
                patience.pause(problem)
        return found

    def once(self, place: TopicPartition, wanted: int) -> FoundOffset:
        found: dict[TopicPartition, FoundOffset] = {}
        problem = self._round({place: wanted}, 0, found)
        if problem is not None:
            raise problem
        return found[place]

    def _round(
        self,
        missing: Mapping[TopicPartition, int],
        isolation: int,
        found: dict[TopicPartition, FoundOffset],
    ) -> ClientError | None:
        """Fills `found`; the last problem, if there was one. A final one is raised at once."""
        by_leader, last = self._group(missing)
        for leader, places in by_leader.items():
            try:
                last = (
                    self._ask(leader, {place: missing[place] for place in places}, isolation, found) or last
                )
            except ClientError as problem:
                last = _passing(problem)
        return last

    def _group(
        self, places: Collection[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], ClientError | None]:
        """Partitions by their leader, as far as these are known, and why not all are."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        try:
            self._leaders.find_leaders(places)
            for place in places:
                by_leader[self._leaders.leader_once(place)].append(place)
        except ClientError as problem:
            return by_leader, _passing(problem)
        return by_leader, None

    def _ask(
        self,
        leader: int,
        wanted: Mapping[TopicPartition, int],
        isolation: int,
        found: dict[TopicPartition, FoundOffset],
    ) -> ClientError | None:
        message = _request(wanted, isolation, self._leaders.settings.request_timeout_ms)
        answer = self._leaders.connect_once(leader).call(ApiKey.LIST_OFFSETS, message)
        assert isinstance(answer, ListOffsetsResponse)
        last: ClientError | None = None
        answered = set()
        for topic in answer.topics:
            for row in topic.partitions:
                place = TopicPartition(topic.name, row.partition_index)
                answered.add(place)
                if row.error_code == ErrorCode.NONE:
                    found[place] = FoundOffset(row.offset, row.timestamp)
                else:
                    last = _passing(Refused(row.error_code, f"an offset of {place}"))
        if answered != wanted.keys():
            raise Garbled(f"ListOffsets of broker {leader}: it answered for other partitions than were asked")
        return last


def _passing(problem: ClientError) -> ClientError:
    if not problem.retriable:
        raise problem
    return problem


def _request(wanted: Mapping[TopicPartition, int], isolation: int, timeout_ms: int) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for place, time in wanted.items():
        topics[place.topic].append(ListOffsetsPartition(partition_index=place.partition, timestamp=time))
    rows: Iterable[ListOffsetsTopic] = (
        ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()
    )
    return ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=isolation, topics=list(rows), timeout_ms=timeout_ms
    )
