"""Committed offsets of groups, fetched from and stored at the group's coordinator.

Commits have no member (generation -1), like those of a consumer that assigns its partitions itself. The coordinator
refuses them while the group has members, so the two cannot overwrite each other's offsets.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from penstock.client.errors import ClientError, Refused
from penstock.client.wire.connection import Connection, expect
from penstock.client.wire.connection_pool import ConnectionPool
from penstock.client.wire.coordinators import KeyType, find_coordinator
from penstock.client.wire.retry import retrying
from penstock.client.wire.settings import ClientSettings
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.kafka.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.types import TopicPartition

VERSION_BY_NAME_MAX = 9
"""From version 10 on, OffsetCommit and OffsetFetch name topics by id."""
ALL_TOPICS_VERSION_MIN = 2
"""Before it, OffsetFetch cannot ask for all partitions."""
RETENTION_VERSION_MAX = 4
"""After it, OffsetCommit cannot say when the offsets expire: the broker decides."""
BROKER_RETENTION = -1


class GroupOffsets:
    """Caches the coordinators of groups."""

    def __init__(self, settings: ClientSettings, pool: ConnectionPool) -> None:
        self._settings = settings
        self._pool = pool
        self._coordinators: dict[str, int] = {}

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, int], metadata: str, retention_ms: int
    ) -> None:
        if not offsets:
            return
        message = OffsetCommitRequest(
            group_id=group, retention_time_ms=retention_ms, topics=_topics_to_commit(offsets, metadata)
        )
        retrying(self._settings, lambda: self._commit_once(group, message))

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return retrying(self._settings, lambda: self._committed_once(group))

    def _commit_once(self, group: str, message: OffsetCommitRequest) -> None:
        with self._coordinator(group) as connection:
            version = _commit_version(connection, message.retention_time_ms)
            answer = connection.call(ApiKey.OFFSET_COMMIT, message, version=version)
            for topic in expect(answer, OffsetCommitResponse).topics:
                for row in topic.partitions:
                    tp = TopicPartition(topic.name, row.partition_index)
                    _check(row.error_code, f"committing an offset of {tp} for group {group!r}")

    def _committed_once(self, group: str) -> dict[TopicPartition, int]:
        message = OffsetFetchRequest(
            group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
        )
        with self._coordinator(group) as connection:
            version = connection.version_of(
                ApiKey.OFFSET_FETCH, at_least=ALL_TOPICS_VERSION_MIN, at_most=VERSION_BY_NAME_MAX
            )
            answer = connection.call(ApiKey.OFFSET_FETCH, message, version=version)
            return dict(_committed_in(expect(answer, OffsetFetchResponse), group))

    @contextmanager
    def _coordinator(self, group: str) -> Iterator[Connection]:
        """A connection to the group's coordinator. Forgets the coordinator after an error: it may have moved."""
        try:
            node_id = self._coordinators.get(group)
            if node_id is None:
                node_id = self._coordinators[group] = find_coordinator(self._pool, KeyType.GROUP, group)
            yield self._pool.connect(node_id)
        except ClientError:
            self._coordinators.pop(group, None)
            raise


def _commit_version(connection: Connection, retention_ms: int) -> int:
    """A broker without the old versions keeps the offsets for as long as it likes."""
    if retention_ms != BROKER_RETENTION:
        try:
            return connection.version_of(ApiKey.OFFSET_COMMIT, at_most=RETENTION_VERSION_MAX)
        except Refused:
            pass
    return connection.version_of(ApiKey.OFFSET_COMMIT, at_most=VERSION_BY_NAME_MAX)


class _Row(NamedTuple):
    tp: TopicPartition
    offset: int
    error_code: int


def _topics_to_commit(offsets: Mapping[TopicPartition, int], metadata: str) -> list[OffsetCommitRequestTopic]:
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for tp, offset in offsets.items():
        topics[tp.topic].append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=metadata
            )
        )
    return [OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()]


def _committed_in(answer: OffsetFetchResponse, group: str) -> Iterable[tuple[TopicPartition, int]]:
    _check_fetched(answer.error_code, group)
    for each in answer.groups:
        _check_fetched(each.error_code, group)
    for row in _rows(answer):
        _check(row.error_code, f"the committed offset of {row.tp} in group {group!r}")
        if row.offset >= 0:
            yield row.tp, row.offset


def _rows(answer: OffsetFetchResponse) -> Iterable[_Row]:
    """The rows of both formats: one group's topics (before version 8), or groups with topics."""
    for old in answer.topics:
        for part in old.partitions:
            yield _Row(TopicPartition(old.name, part.partition_index), part.committed_offset, part.error_code)
    for group in answer.groups:
        for topic in group.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                yield _Row(tp, row.committed_offset, row.error_code)


def _check_fetched(code: int, group: str) -> None:
    if code != ErrorCode.GROUP_ID_NOT_FOUND:  # a group that does not exist has committed nothing
        _check(code, f"the committed offsets of group {group!r}")


def _check(code: int, asked: str, detail: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise Refused(code, asked, detail)
