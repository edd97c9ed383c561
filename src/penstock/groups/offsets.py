"""Committed offsets: commit, fetch, delete, expire.

An offset counts from the moment it is durable, in the order of the writes: concurrent commits of one partition take
effect in the order of the log, and a deletion removes only offsets that were written before it.

Retention runs from the later of these times:

- a group without members that had members: the commit, and the moment when the last member left;
- a group that never had members (consumers that assign partitions themselves): the commit;
- a stable group of consumers: the commit, and only in topics that no member reads;
- any other group, for example in a rebalance: nothing expires.

Offsets of a topic that was deleted do not count, whatever their age: `topics.py`.

An offset whose client set an expiry of its own expires at that time, under the same conditions. A group that is empty
and has no offsets left is deleted.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from penstock.effects import KeyValue, WhenPersisted
from penstock.errors import ErrorCode, KafkaError
from penstock.groups.group import Group
from penstock.groups.joining import known_member
from penstock.groups.rebalancing import Rebalancing
from penstock.groups.shared_state import EXPIRY_TIMER, SharedState, pending_timer
from penstock.groups.states import GroupState
from penstock.groups.storage import encode_group_key, encode_offset, encode_offset_key
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.topics import Verdict, judge
from penstock.groups.values import (
    NO_GENERATION,
    NO_MEMBER,
    CommitRequest,
    CommitResult,
    CommittedOffset,
    DeleteGroupsResult,
    DeleteOffsetsResult,
    OffsetToCommit,
)
from penstock.types import TopicPartition

LAST_TIMESTAMP_MS = 2**63 - 1
"""The most that an offset's record can hold; a client may ask for a longer retention."""


class Offsets:
    """Decides on offsets and on the end of groups."""

    def __init__(self, shared: SharedState, rebalancing: Rebalancing) -> None:
        self._shared = shared
        self._rebalancing = rebalancing

    # Commit

    def commit(self, now_ms: int, token: object, request: CommitRequest) -> None:
        try:
            group = self._group_for(now_ms, request)
            self._check_committer(now_ms, group, request)
        except KafkaError as refusal:
            errors = {TopicPartition(each.topic, each.partition): refusal.code for each in request.offsets}
            self._shared.outbox.reply(token, CommitResult(errors=errors))
            return
        errors, accepted = self._sort(now_ms, group, request)
        if accepted:
            self._store(now_ms, token, group, errors, accepted)
        else:
            self._shared.outbox.reply(token, CommitResult(errors=errors))

    def _group_for(self, now_ms: int, request: CommitRequest) -> Group:
        if len(request.group_id.encode()) > self._shared.limits.max_group_id_bytes:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, "group_id: longer than limits.max_group_id_bytes")
        if request.generation > NO_GENERATION and self._shared.find(request.group_id) is None:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {request.group_id!r}")
        return self._shared.open_group(now_ms, request.group_id, full=ErrorCode.POLICY_VIOLATION)

    def _check_committer(self, now_ms: int, group: Group, request: CommitRequest) -> None:
        """Members commit in their generation; any client may commit while there are no members."""
        if request.generation <= NO_GENERATION and group.state is GroupState.EMPTY:
            return
        anonymous = request.member_id == NO_MEMBER and request.instance_id is None
        if request.generation <= NO_GENERATION and anonymous:
            message = f"{group.group_id} has members: only they may commit"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        member = known_member(group, request.member_id, request.instance_id)
        if request.generation != group.generation:
            message = f"{group.group_id} is in generation {group.generation}, not {request.generation}"
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # Its partitions may already belong to another member in the new generation.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.group_id} is rebalancing")
        self._rebalancing.touch(now_ms, group, member)

    def _sort(
        self, now_ms: int, group: Group, request: CommitRequest
    ) -> tuple[dict[TopicPartition, ErrorCode], dict[TopicPartition, CommittedOffset]]:
        errors: dict[TopicPartition, ErrorCode] = {}
        accepted: dict[TopicPartition, CommittedOffset] = {}
        coming = sum(partition not in group.offsets for partition in group.offsets_in_flight)
        remaining = self._shared.limits.max_group_offsets - len(group.offsets) - coming
        expire_ms = min(now_ms + request.retention_ms, LAST_TIMESTAMP_MS) if request.retention_ms >= 0 else -1
        for each in request.offsets:
            partition = TopicPartition(each.topic, each.partition)
            known = (
                partition in group.offsets or partition in group.offsets_in_flight or partition in accepted
            )
            errors[partition] = self._check_offset(each, known or remaining > 0)
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

    def _store(
        self,
        now_ms: int,
        token: object,
        group: Group,
        errors: dict[TopicPartition, ErrorCode],
        accepted: dict[TopicPartition, CommittedOffset],
    ) -> None:
        self._shared.keep(now_ms, group)

        def stored(now_ms: int, ok: bool) -> None:
            if not ok:
                errors.update(dict.fromkeys(accepted, ErrorCode.COORDINATOR_NOT_AVAILABLE))
                self._shared.drop_if_never_used(now_ms, group)
            self._shared.outbox.reply(token, CommitResult(errors=errors))

        self._write(group, accepted, stored)

    def _write(
        self, group: Group, offsets: dict[TopicPartition, CommittedOffset], then: WhenPersisted
    ) -> None:
        for partition in offsets:
            group.offsets_in_flight[partition] = group.offsets_in_flight.get(partition, 0) + 1

        def written(now_ms: int, ok: bool) -> None:
            _landed(group, offsets)
            if ok:
                group.offsets.update(offsets)
            then(now_ms, ok)

        group_id = group.group_id
        records = [(encode_offset_key(group_id, tp), encode_offset(offset)) for tp, offset in offsets.items()]
        self._shared.outbox.persist(records, written)

    # Fetch

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        group = self._shared.find(group_id)
        if group is None:
            return {}
        wanted = (
            group.offsets if partitions is None else [each for each in partitions if each in group.offsets]
        )
        return {
            partition: group.offsets[partition]
            for partition in wanted
            if self._judge(group, partition) is not Verdict.GONE
        }

    def _judge(self, group: Group, partition: TopicPartition) -> Verdict:
        return judge(self._shared.topics, partition, group.offsets[partition])

    # Delete

    def delete(self, token: object, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        group = self._shared.find(group_id)
        if group is None:
            self._shared.outbox.reply(token, DeleteOffsetsResult(error=ErrorCode.GROUP_ID_NOT_FOUND))
            return
        if group.members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            self._shared.outbox.reply(token, DeleteOffsetsResult(error=ErrorCode.NON_EMPTY_GROUP))
            return
        errors = {partition: _deletable(group, partition) for partition in partitions}
        doomed = [each for each in partitions if errors[each] is ErrorCode.NONE and each in group.offsets]
        if not doomed:
            self._shared.outbox.reply(token, DeleteOffsetsResult(errors=errors))
            return

        def deleted(_now_ms: int, ok: bool) -> None:
            if ok:
                _take_out(group, doomed)
            else:
                errors.update(dict.fromkeys(doomed, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            self._shared.outbox.reply(token, DeleteOffsetsResult(errors=errors))

        self._shared.outbox.persist(_tombstones(group, doomed), deleted)

    def delete_groups(self, token: object, group_ids: Sequence[str]) -> None:
        errors = {group_id: self._group_deletable(group_id) for group_id in group_ids}
        doomed = [
            self._shared.groups[group_id] for group_id, error in errors.items() if error is ErrorCode.NONE
        ]
        if not doomed:
            self._shared.outbox.reply(token, DeleteGroupsResult(errors=errors))
            return
        for group in doomed:
            self._forget(group)

        def deleted(now_ms: int, ok: bool) -> None:
            for group in doomed:
                if ok:
                    group.move_to(GroupState.DEAD, now_ms)
                    self._shared.events.tell("group.deleted", group=group.group_id)
                else:
                    errors[group.group_id] = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    self._put_back(now_ms, group)
            self._shared.outbox.reply(token, DeleteGroupsResult(errors=errors))

        records = [record for group in doomed for record in _all_tombstones(group)]
        self._shared.outbox.persist(records, deleted)

    def _group_deletable(self, group_id: str) -> ErrorCode:
        group = self._shared.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def _forget(self, group: Group) -> None:
        for member_id in group.pending:
            self._shared.timers.cancel(pending_timer(group, member_id))
        group.pending.clear()
        del self._shared.groups[group.group_id]

    def _put_back(self, now_ms: int, group: Group) -> None:
        """The deletion was not written, so the log still has the group. A group that was created in its place meanwhile
        is newer."""
        current = self._shared.find(group.group_id)
        if current is None:
            self._shared.keep(now_ms, group)
            return
        for partition, stored in group.offsets.items():
            current.offsets.setdefault(partition, stored)

    # Topics that are gone

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Offsets of deleted topics must not count for later topics of the same name. Offsets without a topic id are
        removed as well: they are older than the deletion."""
        names = frozenset(topics)
        for group in list(self._shared.groups.values()):
            partitions = group.offsets.keys() | group.offsets_in_flight.keys()
            doomed = sorted(
                each for each in partitions if each.topic in names and self._goes_with_topic(group, each)
            )
            _take_out(group, doomed)
            self._remove(group, doomed)

    def _goes_with_topic(self, group: Group, partition: TopicPartition) -> bool:
        if self._shared.topics.id_of(partition.topic) is None:
            return True
        if partition in group.offsets_in_flight:
            return False  # it may be the new topic's (3); if it is not, it never counts
        return self._judge(group, partition) is not Verdict.COUNTS

    def tidy(self) -> None:
        for group in list(self._shared.groups.values()):
            at_rest = [each for each in group.offsets if each not in group.offsets_in_flight]
            self._sign(group, [each for each in at_rest if self._judge(group, each) is Verdict.UNSIGNED])
            self._remove(group, [each for each in at_rest if self._judge(group, each) is Verdict.GONE])

    def _sign(self, group: Group, partitions: Iterable[TopicPartition]) -> None:
        """Stores the ids of the topics that have these names now."""
        topics = self._shared.topics
        ids = {partition: topics.id_of(partition.topic) for partition in partitions}
        signed = {
            partition: replace(group.offsets[partition], topic_id=topic_id, topics_version=topics.version)
            for partition, topic_id in ids.items()
            if topic_id is not None
        }
        if signed:
            self._write(group, signed, lambda now_ms, ok: None)

    # Expiry

    def expire(self, now_ms: int) -> None:
        """Removes expired offsets, and sets the timer for the next check."""
        self.tidy()
        for group in list(self._shared.groups.values()):
            expired = [each for each in _may_expire(group) if self._has_expired(now_ms, group, each)]
            if expired:
                self._remove(group, expired)
            elif group.is_idle:
                self._end(now_ms, group)
        if self._shared.groups:
            deadline_ms = now_ms + self._shared.settings.offsets_retention_check_interval_ms
            self._shared.timers.set(EXPIRY_TIMER, deadline_ms)

    def _has_expired(self, now_ms: int, group: Group, partition: TopicPartition) -> bool:
        if self._judge(group, partition) is Verdict.GONE:
            return False  # its deletion is being written
        committed = group.offsets[partition]
        if committed.expire_timestamp_ms >= 0:
            return now_ms >= committed.expire_timestamp_ms
        since_ms = committed.commit_timestamp_ms
        if group.state is GroupState.EMPTY and group.protocol_type is not None:
            since_ms = max(since_ms, group.state_timestamp_ms)
        return now_ms - since_ms >= self._shared.settings.offsets_retention_ms

    def _remove(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        """Writes deletions; once they are durable, removes the offsets, and then the group if nothing is left of it."""
        if not partitions:
            return

        def removed(now_ms: int, ok: bool) -> None:
            if ok:
                _take_out(group, partitions)
                if group.is_idle and self._shared.find(group.group_id) is group:
                    self._end(now_ms, group)

        self._shared.outbox.persist(_tombstones(group, partitions), removed)

    def _end(self, now_ms: int, group: Group) -> None:
        """An empty group without offsets is removed. If the write is lost, the next coordinator finds the group and
        removes it again."""
        self._forget(group)
        group.move_to(GroupState.DEAD, now_ms)
        self._shared.events.tell("group.forgotten", group=group.group_id)
        if group.generation > 0:
            self._shared.outbox.persist(((encode_group_key(group.group_id), None),), lambda now_ms, ok: None)


def _may_expire(group: Group) -> Iterator[TopicPartition]:
    """The offsets to which retention applies."""
    if group.state is GroupState.EMPTY:
        kept: frozenset[str] | None = frozenset()
    elif group.state is GroupState.STABLE:
        kept = group.subscribed_topics()
    else:
        kept = None
    if kept is not None:
        # A commit that is being written renews the offset, so its partition is skipped until then.
        yield from (
            each for each in group.offsets if each.topic not in kept and each not in group.offsets_in_flight
        )


def _deletable(group: Group, partition: TopicPartition) -> ErrorCode:
    if not group.members:
        return ErrorCode.NONE
    topics = group.subscribed_topics()
    if topics is None or partition.topic in topics:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def _landed(group: Group, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        group.offsets_in_flight[partition] -= 1
        if not group.offsets_in_flight[partition]:
            del group.offsets_in_flight[partition]


def _take_out(group: Group, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        group.offsets.pop(partition, None)


def _tombstones(group: Group, partitions: Iterable[TopicPartition]) -> tuple[KeyValue, ...]:
    return tuple((encode_offset_key(group.group_id, partition), None) for partition in partitions)


def _all_tombstones(group: Group) -> tuple[KeyValue, ...]:
    partitions = sorted(group.offsets.keys() | group.offsets_in_flight.keys())
    return (*_tombstones(group, partitions), (encode_group_key(group.group_id), None))
