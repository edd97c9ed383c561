"""ListOffsets: the offsets of times, of the beginning and of the end of partitions. One request to each leader."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.client.errors import ClientError, Garbled, Refused, lacking
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
"""The replica id of a client that is not a replica."""


class FoundOffset(NamedTuple):
    """Offset -1: there is no record at or after that time."""

    offset: int
    timestamp: int


class Leaders(Protocol):
    """The methods of Cluster that are used here."""

    settings: ClientSettings

    def find_leaders(self, partitions: Collection[TopicPartition]) -> None: ...
    def leader_once(self, tp: TopicPartition) -> int: ...
    def forget_leaders(self, topics: Collection[str]) -> None: ...
    def connect_once(self, node_id: int) -> Connection: ...


class OffsetSearch:
    """Asks each leader for its partitions, and retries only the partitions that failed."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders

    def run(self, wanted: Mapping[TopicPartition, int], isolation: int) -> dict[TopicPartition, FoundOffset]:
        found: dict[TopicPartition, FoundOffset] = {}
        backoff = RetryBackoff(self._leaders.settings)
        while missing := {tp: time for tp, time in wanted.items() if tp not in found}:
            before = len(found)
            problem = self._round(missing, isolation, found)
            if len(found) > before:
                backoff.restart()
            if problem is not None:
                self._leaders.forget_leaders({tp.topic for tp in missing if tp not in found})
                backoff.pause(problem)
        return found

    def once(self, tp: TopicPartition, wanted: int) -> FoundOffset:
        found: dict[TopicPartition, FoundOffset] = {}
        problem = self._round({tp: wanted}, 0, found)
        if problem is not None:
            raise problem
        return found[tp]

    def _round(
        self, missing: Mapping[TopicPartition, int], isolation: int, found: dict[TopicPartition, FoundOffset]
    ) -> ClientError | None:
        """Fills `found`. Returns the last retriable problem; raises any other at once."""
        by_leader, last = self._group(missing)
        for leader, partitions in by_leader.items():
            try:
                last = self._ask(leader, {tp: missing[tp] for tp in partitions}, isolation, found) or last
            except ClientError as problem:
                last = _retriable(problem)
        return last

    def _group(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], ClientError | None]:
        """Partitions by their leader, as far as leaders are known, and the problem if some are not."""
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        try:
            self._leaders.find_leaders(partitions)
            for tp in partitions:
                by_leader[self._leaders.leader_once(tp)].append(tp)
        except ClientError as problem:
            return by_leader, _retriable(problem)
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
                tp = TopicPartition(topic.name, row.partition_index)
                answered.add(tp)
                if row.error_code == ErrorCode.NONE:
                    found[tp] = FoundOffset(row.offset, row.timestamp)
                else:
                    last = _retriable(
                        Refused(row.error_code, f"an offset of {tp}", lacking(row.error_code, "DESCRIBE"))
                    )
        if answered != wanted.keys():
            raise Garbled(f"ListOffsets of broker {leader}: it answered for other partitions than were asked")
        return last


def _retriable(problem: ClientError) -> ClientError:
    if not problem.retriable:
        raise problem
    return problem


def _request(wanted: Mapping[TopicPartition, int], isolation: int, timeout_ms: int) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for tp, time in wanted.items():
        topics[tp.topic].append(ListOffsetsPartition(partition_index=tp.partition, timestamp=time))
    rows: Iterable[ListOffsetsTopic] = (
        ListOffsetsTopic(name=name, partitions=partitions) for name, partitions in topics.items()
    )
    return ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=isolation, topics=list(rows), timeout_ms=timeout_ms
    )
