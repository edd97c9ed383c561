"""Committed offsets of groups: found and stored at the group's coordinator.

Commits come without membership (generation -1), as from a consumer that assigns its partitions itself; the
coordinator refuses them while the group has members, so the two ways cannot overwrite each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.client.errors import ClientError, Refused
from penstock.client.wire.connection import Connection
from penstock.client.wire.connection_pool import Pool
from penstock.client.wire.retry import persist
from penstock.client.wire.settings import ClientSettings, ServerAddress
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
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

GROUP_KEY_TYPE = 0
VERSION_BY_NAME_MAX = 9
"""From version 10 on, OffsetCommit and OffsetFetch name topics by id."""
ALL_TOPICS_VERSION_MIN = 2
"""Before it, OffsetFetch cannot ask for all partitions."""


class GroupOffsets:
    """Knows the coordinators of the groups it was asked about."""

    def __init__(self, settings: ClientSettings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool
        self._coordinators: dict[str, int] = {}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        if not offsets:
            return
        message = OffsetCommitRequest(group_id=group, topics=_topics_to_commit(offsets, metadata))
        persist(self._settings, lambda: self._commit_once(group, message))

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return persist(self._settings, lambda: self._committed_once(group))

    def _commit_once(self, group: str, message: OffsetCommitRequest) -> None:
        with _Forgetting(self._coordinators, group):
            connection = self._connect(group)
            version = connection.version_of(ApiKey.OFFSET_COMMIT, at_most=VERSION_BY_NAME_MAX)
            answer = connection.call(ApiKey.OFFSET_COMMIT, message, version=version)
            assert isinstance(answer, OffsetCommitResponse)
            for topic in answer.topics:
                for row in topic.partitions:
                    place = TopicPartition(topic.name, row.partition_index)
                    _check(row.error_code, f"committing an offset of {place} for group {group!r}")

    def _committed_once(self, group: str) -> dict[TopicPartition, int]:
        message = OffsetFetchRequest(
            group_id=group, topics=None, groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]
        )
        with _Forgetting(self._coordinators, group):
            connection = self._connect(group)
            version = connection.version_of(
                ApiKey.OFFSET_FETCH, at_least=ALL_TOPICS_VERSION_MIN, at_most=VERSION_BY_NAME_MAX
            )
            answer = connection.call(ApiKey.OFFSET_FETCH, message, version=version)
            assert isinstance(answer, OffsetFetchResponse)
            return dict(_stored(answer, group))

    def _connect(self, group: str) -> Connection:
        node_id = self._coordinators.get(group)
        if node_id is None:
            node_id = self._coordinators[group] = self._find(group)
        return self._pool.connect(node_id)

    def _find(self, group: str) -> int:
        message = FindCoordinatorRequest(key=group, key_type=GROUP_KEY_TYPE, coordinator_keys=[group])
        answer = self._pool.ask_any(ApiKey.FIND_COORDINATOR, message)
        assert isinstance(answer, FindCoordinatorResponse)
        # Before version 4 there is one, whose fields are in the answer itself.
        found: Coordinator | FindCoordinatorResponse = answer
        if answer.coordinators:
            found = answer.coordinators[0]
        _check(found.error_code, f"the coordinator of group {group!r}", found.error_message)
        self._pool.learn_one(found.node_id, ServerAddress(found.host, found.port))
        return found.node_id


class _Forgetting:
    """Forgets a group's coordinator when asking it has failed: it may have moved."""

    def __init__(self, coordinators: dict[str, int], group: str) -> None:
        self._coordinators = coordinators
        self._group = group

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, ClientError):
            self._coordinators.pop(self._group, None)


class _Row(NamedTuple):
    place: TopicPartition
    offset: int
    error_code: int


def _topics_to_commit(offsets: Mapping[TopicPartition, int], metadata: str) -> list[OffsetCommitRequestTopic]:
    topics: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for place, offset in offsets.items():
        topics[place.topic].append(
            OffsetCommitRequestPartition(
                partition_index=place.partition, committed_offset=offset, committed_metadata=metadata
            )
        )
    return [OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()]


def _stored(answer: OffsetFetchResponse, group: str) -> Iterable[tuple[TopicPartition, int]]:
    _check_fetched(answer.error_code, group)
    for each in answer.groups:
        _check_fetched(each.error_code, group)
    for row in _rows(answer):
        _check(row.error_code, f"the committed offset of {row.place} in group {group!r}")
        if row.offset >= 0:
            yield row.place, row.offset


def _rows(answer: OffsetFetchResponse) -> Iterable[_Row]:
    """Both shapes: one group's topics (before version 8), or groups with topics."""
    for old in answer.topics:
        for part in old.partitions:
            yield _Row(TopicPartition(old.name, part.partition_index), part.committed_offset, part.error_code)
    for group in answer.groups:
        for topic in group.topics:
            for row in topic.partitions:
                place = TopicPartition(topic.name, row.partition_index)
                yield _Row(place, row.committed_offset, row.error_code)


def _check_fetched(code: int, group: str) -> None:
    if code != ErrorCode.GROUP_ID_NOT_FOUND:  # a group that does not exist has committed nothing
        _check(code, f"the committed offsets of group {group!r}")


def _check(code: int, asked: str, detail: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise Refused(code, asked, detail)
