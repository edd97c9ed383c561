"""Committed offsets: fetch, delete, expire. `commits.py` has the commits.

An offset counts from the moment it is durable, in the order of the writes: concurrent commits of one partition take
effect in the order of the log, and a deletion removes only offsets that were written before it. An offset that was
committed within a transaction counts from the end of the transaction: `open_transactions.py`.

Retention runs from the later of these times:

- a group without members that had members: the commit, and the moment when the last member left;
- a group that never had members (consumers that assign partitions themselves): the commit;
- a stable group of consumers, or a group of the consumer protocol: the commit, and only in topics that no member
  reads;
- any other group, for example in a rebalance: nothing expires.

Offsets of a topic that was deleted do not count, whatever their age: `topics.py`.

An offset whose client set an expiry of its own expires at that time, under the same conditions. Nothing expires while a
transaction has an offset of the same partition. A group that is empty and has no offsets left is deleted.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec.structs import replace

from penstock.effects import KeyValue
from penstock.errors import ErrorCode
from penstock.groups.commits import Commits
from penstock.groups.consumer_shared import consumer_tombstones
from penstock.groups.group import Group
from penstock.groups.shared_state import EXPIRY_TIMER, SharedState, pending_timer
from penstock.groups.states import GroupState
from penstock.groups.storage import encode_group_key, encode_offset_key
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.topics import Verdict, judge
from penstock.groups.values import CommittedOffset, DeleteGroupsResult, DeleteOffsetsResult
from penstock.types import TopicPartition


class Offsets:
    """Decides on offsets and on the end of groups."""

    def __init__(self, shared: SharedState, commits: Commits) -> None:
        self._shared = shared
        self._commits = commits

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

    def unstable(self, group_id: str, partitions: Iterable[TopicPartition] | None) -> set[TopicPartition]:
        """Offsets that are being written count: their members were checked before those of a rebalance that follows,
        and the partition's next owner must not begin before the end of their transaction (KIP-447)."""
        group = self._shared.find(group_id)
        if group is None:
            return set()
        known = group.pending_offsets.keys() | group.pending_in_flight.keys()
        return known if partitions is None else known.intersection(partitions)

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
        known = group.offsets.keys() | group.pending_offsets.keys()
        doomed = [each for each in partitions if errors[each] is ErrorCode.NONE and each in known]
        if not doomed:
            self._shared.outbox.reply(token, DeleteOffsetsResult(errors=errors))
            return

        def deleted(_now_ms: int, ok: bool) -> None:
            if ok:
                self._deleted(group, doomed)
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
                    self._deleted(group, [*group.offsets, *group.pending_offsets])
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
        return ErrorCode.NONE if group.is_empty else ErrorCode.NON_EMPTY_GROUP

    def _forget(self, group: Group) -> None:
        for member_id in group.pending:
            self._shared.timers.cancel(pending_timer(group, member_id))
        group.pending.clear()
        if group.consumer is not None:
            group.consumer.saving.freeze()
        del self._shared.groups[group.group_id]

    def _put_back(self, now_ms: int, group: Group) -> None:
        """The deletion was not written, so the log still has the group. A group that was created in its place meanwhile
        is newer."""
        if group.consumer is not None:
            group.consumer.saving.thaw()
        current = self._shared.find(group.group_id)
        if current is None:
            self._shared.keep(now_ms, group)
            return
        for partition, stored in group.offsets.items():
            current.offsets.setdefault(partition, stored)
        self._shared.transactions.move(group, current)

    # Topics that are gone

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Offsets of deleted topics must not count for later topics of the same name. Offsets without a topic id are
        removed as well: they are older than the deletion."""
        names = frozenset(topics)
        for group in list(self._shared.groups.values()):
            doomed = [
                each for each in _known(group) if each.topic in names and self._goes_with_topic(group, each)
            ]
            _take_out(group, doomed)
            self._remove(group, doomed)

    def _goes_with_topic(self, group: Group, partition: TopicPartition) -> bool:
        if self._shared.topics.id_of(partition.topic) is None:
            return True
        if not group.is_at_rest(partition):
            return False  # it may be the new topic's (3); if it is not, it never counts
        return self._judge(group, partition) is not Verdict.COUNTS

    def tidy(self) -> None:
        for group in list(self._shared.groups.values()):
            at_rest = [each for each in group.offsets if group.is_at_rest(each)]
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
            self._commits.write(group, signed, lambda now_ms, ok: None)

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
        if group.is_empty and group.protocol_type is not None:
            since_ms = max(since_ms, group.state_timestamp_ms)
        return now_ms - since_ms >= self._shared.settings.offsets_retention_ms

    def _remove(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        """Writes deletions; once they are durable, removes the offsets, and then the group if nothing is left of it."""
        if not partitions:
            return

        def removed(now_ms: int, ok: bool) -> None:
            if ok:
                self._deleted(group, partitions)
                if group.is_idle and self._shared.find(group.group_id) is group:
                    self._end(now_ms, group)

        self._shared.outbox.persist(_tombstones(group, partitions), removed)

    def _deleted(self, group: Group, partitions: Sequence[TopicPartition]) -> None:
        """Deletions of these offsets are in the log."""
        _take_out(group, partitions)
        self._shared.transactions.supersede(group, partitions)

    def _end(self, now_ms: int, group: Group) -> None:
        """An empty group without offsets is removed. If the write is lost, the next coordinator finds the group and
        removes it again."""
        self._forget(group)
        group.move_to(GroupState.DEAD, now_ms)
        self._shared.events.tell("group.forgotten", group=group.group_id)
        records = [*consumer_tombstones(group.consumer)] if group.consumer is not None else []
        if group.generation > 0:
            records.append((encode_group_key(group.group_id), None))
        if records:
            self._shared.outbox.persist(records, lambda now_ms, ok: None)


def _may_expire(group: Group) -> Iterator[TopicPartition]:
    """The offsets to which retention applies."""
    if group.is_empty:
        kept: frozenset[str] | None = frozenset()
    elif group.state is GroupState.STABLE or group.consumer is not None:
        kept = group.subscribed_topics()
    else:
        kept = None
    if kept is not None:
        # A commit that is being written renews the offset, so its partition is skipped until then. So does one of an
        # open transaction, and a deletion would also remove that (2 of open_transactions.py).
        yield from (each for each in group.offsets if each.topic not in kept and group.is_at_rest(each))


def _deletable(group: Group, partition: TopicPartition) -> ErrorCode:
    if not group.member_count:
        return ErrorCode.NONE
    topics = group.subscribed_topics()
    if topics is None or partition.topic in topics:
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    return ErrorCode.NONE


def _take_out(group: Group, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        group.offsets.pop(partition, None)


def _tombstones(group: Group, partitions: Iterable[TopicPartition]) -> tuple[KeyValue, ...]:
    return tuple((encode_offset_key(group.group_id, partition), None) for partition in partitions)


def _all_tombstones(group: Group) -> tuple[KeyValue, ...]:
    consumer = consumer_tombstones(group.consumer) if group.consumer is not None else ()
    return (*_tombstones(group, _known(group)), *consumer, (encode_group_key(group.group_id), None))


def _known(group: Group) -> list[TopicPartition]:
    """The partitions of all offsets that the group has, or will have when its writes and transactions end."""
    committed = group.offsets.keys() | group.offsets_in_flight.keys()
    return sorted(committed | group.pending_offsets.keys() | group.pending_in_flight.keys())
