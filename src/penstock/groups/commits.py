"""Commits of offsets: by members, by clients that are no members, and within transactions (TxnOffsetCommit).

A transactional commit is checked like any other, with two differences, which are Kafka's (KIP-447). A producer that
names neither member nor generation may always commit: older clients know no other way. And a member may commit between
JoinGroup and SyncGroup: if it is not a member of the generation any more, its generation is wrong.
"""

from collections.abc import Collection, Iterable, Mapping

from penstock.effects import WhenPersisted
from penstock.errors import ErrorCode, KafkaError
from penstock.groups.consumer_commits import stale_partitions
from penstock.groups.group import Group
from penstock.groups.joining import known_member
from penstock.groups.rebalancing import Rebalancing
from penstock.groups.shared_state import SharedState
from penstock.groups.states import GroupState
from penstock.groups.storage import encode_offset, encode_offset_key
from penstock.groups.values import (
    NO_GENERATION,
    NO_MEMBER,
    CommitRequest,
    CommitResult,
    CommittedOffset,
    OffsetToCommit,
)
from penstock.types import Producer, TopicPartition

LAST_TIMESTAMP_MS = 2**63 - 1
"""The most that an offset's record can hold; a client may ask for a longer retention."""


class Commits:
    """Decides on commits, and writes them."""

    def __init__(self, shared: SharedState, rebalancing: Rebalancing) -> None:
        self._shared = shared
        self._rebalancing = rebalancing

    def commit(self, now_ms: int, token: object, request: CommitRequest) -> None:
        try:
            group = self._group_for(now_ms, request)
            stale = self._check_committer(now_ms, group, request)
        except KafkaError as refusal:
            errors = {TopicPartition(each.topic, each.partition): refusal.code for each in request.offsets}
            self._shared.outbox.reply(token, CommitResult(errors=errors))
            return
        errors, accepted = self._sort(now_ms, group, request, stale)
        if accepted:
            self._store(now_ms, token, group, errors, accepted, request.producer)
        else:
            self._shared.outbox.reply(token, CommitResult(errors=errors))

    def _group_for(self, now_ms: int, request: CommitRequest) -> Group:
        if len(request.group_id.encode()) > self._shared.limits.max_group_id_bytes:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "group_id: longer than limits.max_group_id_bytes")
        if request.generation > NO_GENERATION and self._shared.find(request.group_id) is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {request.group_id!r}")
        return self._shared.open_group(now_ms, request.group_id, full=ErrorCode.POLICY_VIOLATION)

    def _check_committer(
        self, now_ms: int, group: Group, request: CommitRequest
    ) -> Collection[TopicPartition]:
        """Members commit in their generation; any client may commit while there are no members. Returns the partitions
        that the committer has lost since."""
        if group.consumer is not None:
            return stale_partitions(group.consumer, request, self._shared.topics)
        self._check_generation(now_ms, group, request)
        return ()

    def _check_generation(self, now_ms: int, group: Group, request: CommitRequest) -> None:
        if request.generation <= NO_GENERATION and group.state is GroupState.EMPTY:
            return
        is_transactional = request.producer is not None
        anonymous = request.member_id == NO_MEMBER and request.instance_id is None
        if request.generation <= NO_GENERATION and anonymous:
            if is_transactional:
                return
            message = f"{group.group_id} has members: only they may commit"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        member = known_member(group, request.member_id, request.instance_id)
        if request.generation != group.generation:
            message = f"{group.group_id} is in generation {group.generation}, not {request.generation}"
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)
        if is_transactional:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            # Its partitions may already belong to another member in the new generation.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.group_id} is rebalancing")
        self._rebalancing.touch(now_ms, group, member)

    # Which offsets are accepted

    def _sort(
        self, now_ms: int, group: Group, request: CommitRequest, stale: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, ErrorCode], dict[TopicPartition, CommittedOffset]]:
        errors: dict[TopicPartition, ErrorCode] = {}
        accepted: dict[TopicPartition, CommittedOffset] = {}
        remaining = self._shared.limits.max_group_offsets - _count(group)
        expire_ms = min(now_ms + request.retention_ms, LAST_TIMESTAMP_MS) if request.retention_ms >= 0 else -1
        for each in request.offsets:
            partition = TopicPartition(each.topic, each.partition)
            known = partition in accepted or _is_counted(group, partition, request.producer)
            errors[partition] = self._check_offset(each, known or remaining > 0)
            if partition in stale:
                errors[partition] = ErrorCode.STALE_MEMBER_EPOCH
            if errors[partition] is ErrorCode.NONE:
                remaining -= not known
                accepted[partition] = CommittedOffset(
                    offset=each.offset,
                    leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                    commit_timestamp_ms=now_ms,
                    expire_timestamp_ms=expire_ms,
                    topic_id=self._shared.topics.id_of(each.topic),
                    topics_version=self._shared.topics.version,
                )
        return errors, accepted

    def _check_offset(self, offset: OffsetToCommit, has_room: bool) -> ErrorCode:
        if len(offset.metadata.encode()) > self._shared.limits.max_offset_metadata_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        if len(offset.topic.encode()) > self._shared.limits.max_group_id_bytes:
            # Such a topic cannot exist, and its name would not fit into a key.
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic_id = self._shared.topics.id_of(offset.topic)
        if topic_id is None or offset.topic_id not in (None, topic_id):
            # The topic was deleted, or deleted and created again, since the request came (2).
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE if has_room else ErrorCode.INVALID_COMMIT_OFFSET_SIZE

    # Writes

    def _store(
        self,
        now_ms: int,
        token: object,
        group: Group,
        errors: dict[TopicPartition, ErrorCode],
        accepted: dict[TopicPartition, CommittedOffset],
        producer: Producer | None,
    ) -> None:
        self._shared.keep(now_ms, group)

        def stored(now_ms: int, ok: bool) -> None:
            if not ok:
                errors.update(dict.fromkeys(accepted, ErrorCode.COORDINATOR_NOT_AVAILABLE))
                self._shared.drop_if_never_used(now_ms, group)
            self._shared.outbox.reply(token, CommitResult(errors=errors))

        if producer is None:
            self.write(group, accepted, stored)
        else:
            self._write_pending(group, accepted, producer, stored)

    def write(
        self, group: Group, offsets: Mapping[TopicPartition, CommittedOffset], then: WhenPersisted
    ) -> None:
        _set_off(group.offsets_in_flight, offsets)

        def written(now_ms: int, ok: bool) -> None:
            _landed(group.offsets_in_flight, offsets)
            if ok:
                group.offsets.update(offsets)
                self._shared.transactions.supersede(group, offsets)
            then(now_ms, ok)

        self._shared.outbox.persist(_records(group, offsets), written)

    def _write_pending(
        self,
        group: Group,
        offsets: Mapping[TopicPartition, CommittedOffset],
        producer: Producer,
        then: WhenPersisted,
    ) -> None:
        _set_off(group.pending_in_flight, offsets)

        def written(now_ms: int, ok: bool) -> None:
            _landed(group.pending_in_flight, offsets)
            if ok:
                self._shared.transactions.add(group, producer.producer_id, offsets)
            then(now_ms, ok)

        self._shared.outbox.persist(_records(group, offsets), written, producer)

    # Ends of transactions

    def transaction_ended(self, now_ms: int, producer_id: int, *, commit: bool) -> None:
        """The marker is committed in the log."""
        for group in self._shared.transactions.end(producer_id, commit=commit):
            self._shared.drop_if_never_used(now_ms, group)


def _count(group: Group) -> int:
    """How many offsets the group has in memory, and will have when its writes are done. Each pending offset counts:
    many producers may have one of the same partition."""
    coming = sum(partition not in group.offsets for partition in group.offsets_in_flight)
    return len(group.offsets) + coming + group.pending_count + sum(group.pending_in_flight.values())


def _is_counted(group: Group, partition: TopicPartition, producer: Producer | None) -> bool:
    if producer is not None:
        return producer.producer_id in group.pending_offsets.get(partition, ())
    return partition in group.offsets or partition in group.offsets_in_flight


def _set_off(in_flight: dict[TopicPartition, int], partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        in_flight[partition] = in_flight.get(partition, 0) + 1


def _landed(in_flight: dict[TopicPartition, int], partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        in_flight[partition] -= 1
        if not in_flight[partition]:
            del in_flight[partition]


def _records(
    group: Group, offsets: Mapping[TopicPartition, CommittedOffset]
) -> list[tuple[bytes, bytes | None]]:
    return [(encode_offset_key(group.group_id, each), encode_offset(one)) for each, one in offsets.items()]
