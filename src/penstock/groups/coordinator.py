"""The group coordinator: all groups of one partition of the offsets topic.

It is a durable core (`penstock.effects`): requests and the time come in, effects come out. Replies that depend on a
write are held back until the write is committed. Questions that memory answers are answered directly.

To start: `replay` every record of the partition from its beginning, wait until the metadata is at least as new as
`topics_version`, then `loaded(now_ms)`, then serve. Records and markers of transactions are replayed by methods of
their own.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from penstock.config import GroupSettings, Limits
from penstock.effects import Effect
from penstock.errors import ErrorCode, UnknownFormat
from penstock.groups.commits import Commits
from penstock.groups.consumer_groups import CONSUMER, ConsumerGroups
from penstock.groups.consumer_storage import decode_consumer_key
from penstock.groups.consumer_values import (
    EMPTY_CLUSTER,
    Assignment,
    ConsumerCluster,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
)
from penstock.groups.group import Group
from penstock.groups.joining import Joining
from penstock.groups.membership import Membership
from penstock.groups.offsets import Offsets
from penstock.groups.rebalancing import Rebalancing
from penstock.groups.share_membership import SHARE, ShareMembership
from penstock.groups.share_storage import decode_share_group_key
from penstock.groups.share_values import ShareGroupDescription, ShareHeartbeat
from penstock.groups.shared_state import EXPIRY_TIMER, SharedState
from penstock.groups.states import GroupState
from penstock.groups.storage import NEVER_USED, OffsetKey, decode_group, decode_key, decode_offset
from penstock.groups.topics import Topics
from penstock.groups.values import (
    NO_VERSION,
    CommitRequest,
    CommitResult,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    JoinRequest,
    JoinResult,
    LeavingMember,
    MemberDescription,
    SyncRequest,
)
from penstock.timers import Key
from penstock.types import NO_EVENTS, EventSink, TopicPartition

CLASSIC = "classic"


class Coordinator:
    """Every method that returns effects takes the time as `now_ms`, which must never go back."""

    applies_early = False
    """A change is made in memory when it is committed."""

    def __init__(
        self,
        topics: Topics,
        settings: GroupSettings | None = None,
        limits: Limits | None = None,
        cluster: ConsumerCluster = EMPTY_CLUSTER,
        events: EventSink = NO_EVENTS,
    ) -> None:
        self.topics_version = NO_VERSION
        """The newest metadata by which anything in the log was decided (invariant 1 of topics.py)."""
        self._shared = SharedState(topics, settings or GroupSettings(), limits or Limits(), events)
        self._rebalancing = Rebalancing(self._shared)
        self._joining = Joining(self._shared, self._rebalancing)
        self._membership = Membership(self._shared, self._rebalancing)
        self._commits = Commits(self._shared, self._rebalancing)
        self._offsets = Offsets(self._shared, self._commits)
        self._share_groups = ShareMembership(self._shared, cluster)
        self._consumer_groups = ConsumerGroups(self._shared, cluster, self._rebalancing)

    # Members

    def join(self, now_ms: int, token: object, request: JoinRequest) -> list[Effect]:
        consumer = self._consumer_groups.with_members(request.group_id)
        if request.group_id in self._share_groups:
            refusal = JoinResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=request.member_id)
            self._shared.outbox.reply(token, refusal)
        elif consumer is not None:
            self._consumer_groups.classic.join(now_ms, token, request, consumer)
        else:
            self._joining.join(now_ms, token, request)
        return self._shared.outbox.take()

    def sync(self, now_ms: int, token: object, request: SyncRequest) -> list[Effect]:
        consumer = self._consumer_groups.find(request.group_id)
        if consumer is not None:
            self._consumer_groups.classic.sync(now_ms, token, request, consumer)
        else:
            self._membership.sync(now_ms, token, request)
        return self._shared.outbox.take()

    def heartbeat(
        self, now_ms: int, group_id: str, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorCode:
        consumer = self._consumer_groups.find(group_id)
        if consumer is not None:
            classic = self._consumer_groups.classic
            return classic.heartbeat(now_ms, consumer, member_id, generation, instance_id)
        return self._membership.heartbeat(now_ms, group_id, member_id, generation, instance_id)

    def leave(
        self, now_ms: int, token: object, group_id: str, leaving: Sequence[LeavingMember]
    ) -> list[Effect]:
        consumer = self._consumer_groups.find(group_id)
        if consumer is not None:
            self._consumer_groups.classic.leave(now_ms, token, leaving, consumer)
        else:
            self._membership.leave(now_ms, token, group_id, leaving)
        return self._shared.outbox.take()

    # Offsets

    def commit_offsets(self, now_ms: int, token: object, request: CommitRequest) -> list[Effect]:
        """The reply is a CommitResult. With a producer, the offsets are pending until `transaction_ended`."""
        if request.group_id in self._share_groups:
            partitions = (TopicPartition(each.topic, each.partition) for each in request.offsets)
            errors = dict.fromkeys(partitions, ErrorCode.GROUP_ID_NOT_FOUND)
            self._shared.outbox.reply(token, CommitResult(errors=errors))
        else:
            self._commits.commit(now_ms, token, request)
        return self._shared.outbox.take()

    def transaction_ended(self, now_ms: int, producer_id: int, *, commit: bool) -> list[Effect]:
        """The marker of this producer is committed in the log: its pending offsets count from now on, or vanish. A
        repeated marker changes nothing."""
        self._commits.transaction_ended(now_ms, producer_id, commit=commit)
        return self._shared.outbox.take()

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets that the group committed: of these partitions, or (None) of all. A partition that is missing in
        the result has no committed offset."""
        return self._offsets.fetch(group_id, partitions)

    def unstable_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> set[TopicPartition]:
        """Those of these partitions, or (None) of all, for which an open transaction has an offset. OffsetFetch with
        `require_stable` answers UNSTABLE_OFFSET_COMMIT for them."""
        return self._offsets.unstable(group_id, partitions)

    def delete_offsets(
        self, now_ms: int, token: object, group_id: str, partitions: Sequence[TopicPartition]
    ) -> list[Effect]:
        self._offsets.delete(token, group_id, partitions)
        return self._shared.outbox.take()

    def topics_deleted(self, now_ms: int, topics: Collection[str]) -> list[Effect]:
        """The topics that had these names were deleted. Other topics may already have the names."""
        self._offsets.topics_deleted(topics)
        return self._shared.outbox.take()

    # Groups

    def describe(self, group_id: str) -> GroupDescription | None:
        """None for a group that is unknown, or that is not of the classic protocol."""
        group = self._shared.find(group_id)
        return None if group is None or group.consumer is not None else _describe(group)

    def wanted_topics(self, group_id: str) -> frozenset[str]:
        """The topics that a group's members read, or will read after the rebalance that is under way."""
        group = self._shared.find(group_id)
        return frozenset() if group is None else group.wanted_topics()

    def list_groups(
        self, states: Collection[str] = (), group_types: Collection[str] = ()
    ) -> Iterator[GroupListing]:
        """Groups in one of these states and of one of these types; an empty collection means any. Case does not
        matter. There may be a hundred thousand: the caller may pause, and groups may come and go meanwhile."""
        wanted = {state.lower() for state in states}
        types = {each.lower() for each in group_types} or {CLASSIC, CONSUMER}
        yield from self._share_groups.list_groups(states, group_types)
        for group in list(self._shared.groups.values()):
            listing = _listing(group)
            if listing.group_type in types and (not wanted or listing.state.value.lower() in wanted):
                yield listing

    def committed_partitions(self, group_id: str) -> list[TopicPartition]:
        """The partitions for which the group may have committed offsets: `fetch_offsets` tells which count."""
        group = self._shared.find(group_id)
        return [] if group is None else list(group.offsets)

    def member_count(self, group_id: str) -> tuple[str, int] | None:
        """The state of a group or share group, and how many members it has; None if it is unknown."""
        group = self._shared.find(group_id)
        if group is not None:
            return group.shown_state.value, group.member_count
        return self._share_groups.member_count(group_id)

    def delete_groups(self, now_ms: int, token: object, group_ids: Sequence[str]) -> list[Effect]:
        self._offsets.delete_groups(token, group_ids)
        return self._shared.outbox.take()

    # Consumer groups of KIP-848

    def consumer_heartbeat(self, now_ms: int, token: object, request: ConsumerHeartbeat) -> list[Effect]:
        """The reply is a ConsumerHeartbeatResult."""
        if request.group_id in self._share_groups:
            message = f"{request.group_id!r} is a share group"
            refusal = ConsumerHeartbeatResult(error=ErrorCode.GROUP_ID_NOT_FOUND, message=message)
            self._shared.outbox.reply(token, refusal)
        else:
            self._consumer_groups.heartbeat(now_ms, token, request)
        return self._shared.outbox.take()

    def assignment_computed(
        self, now_ms: int, group_id: str, epoch: int, target: Mapping[str, Assignment]
    ) -> list[Effect]:
        """The outcome of an AssignmentJob."""
        self._consumer_groups.computed(now_ms, group_id, epoch, target)
        return self._shared.outbox.take()

    def check_fetch(self, group_id: str, member_id: str, epoch: int) -> ErrorCode:
        """Whether a member with this epoch may fetch offsets."""
        return self._consumer_groups.check_fetch(group_id, member_id, epoch)

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescription | None:
        return self._consumer_groups.describe(group_id)

    # Share groups

    def share_heartbeat(self, now_ms: int, token: object, request: ShareHeartbeat) -> list[Effect]:
        self._share_groups.heartbeat(now_ms, token, request)
        return self._shared.outbox.take()

    def begin_share_group(self, now_ms: int, token: object, group_id: str) -> list[Effect]:
        """The group exists from now on, with or without members. The reply is a ShareHeartbeatResult."""
        self._share_groups.begin(token, group_id)
        return self._shared.outbox.take()

    def topics_changed(self, now_ms: int, names: Collection[str]) -> list[Effect]:
        """Topics were created, deleted or extended: members learn of it with their next heartbeat."""
        self._share_groups.topics_changed(names)
        self._consumer_groups.topics_changed(now_ms, names)
        return self._shared.outbox.take()

    def describe_share_group(self, group_id: str) -> ShareGroupDescription | None:
        return self._share_groups.describe(group_id)

    def share_group_deletable(self, group_id: str) -> ErrorCode:
        return self._share_groups.deletable(group_id)

    def delete_share_group(self, now_ms: int, token: object, group_id: str) -> list[Effect]:
        self._share_groups.delete(token, group_id)
        return self._shared.outbox.take()

    # Time and disk

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` is due; None while there is nothing to wait for."""
        return self._shared.timers.next_ms

    def tick(self, now_ms: int) -> list[Effect]:
        for key in self._shared.timers.due(now_ms):
            self._alarm(now_ms, key)
        return self._shared.outbox.take()

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> list[Effect]:
        """A write is durable, or has failed and is not in the log."""
        self._shared.outbox.persisted(now_ms, persist_id, ok)
        return self._shared.outbox.take()

    def _alarm(self, now_ms: int, key: Key) -> None:
        if key == EXPIRY_TIMER:
            self._offsets.expire(now_ms)
            return
        if self._consumer_groups.alarm(now_ms, key):
            return
        kind, group_id, *member_id = key
        if kind == SHARE:
            self._share_groups.session_timed_out(group_id, member_id[0])
            return
        group = self._shared.groups[group_id]
        if kind == "join":
            self._rebalancing.join_timed_out(now_ms, group)
        elif kind == "sync":
            self._rebalancing.sync_timed_out(now_ms, group)
        elif kind == "pending":
            self._rebalancing.pending_timed_out(now_ms, group, member_id[0])
        else:
            self._rebalancing.session_timed_out(now_ms, group, group.members[member_id[0]])

    # Start

    def replay(self, key: bytes, value: bytes | None) -> None:
        """One record of the offsets topic, in order. UnknownFormat if this version does not know its format."""
        share_group = decode_share_group_key(key)
        if share_group is not None:
            self._share_groups.replay(share_group, value)
            return
        consumer_key = decode_consumer_key(key)
        if consumer_key is not None:
            group = self._replayed_group(consumer_key.group_id)
            self._consumer_groups.replay(group, consumer_key, value)
            return
        decoded = decode_key(key)
        group = self._replayed_group(decoded.group_id)
        if not isinstance(decoded, OffsetKey):
            # Offsets are deleted by records of their own.
            group.restore(NEVER_USED if value is None else decode_group(value))
            return
        partition = decoded.topic_partition
        if value is None:
            group.offsets.pop(partition, None)
        else:
            group.offsets[partition] = self._replayed_offset(value)
        self._shared.transactions.supersede(group, (partition,))

    def _replayed_group(self, group_id: str) -> Group:
        group = self._shared.find(group_id)
        if group is None:
            group = self._shared.groups[group_id] = Group(group_id, 0)
        return group

    def _replayed_offset(self, value: bytes) -> CommittedOffset:
        offset = decode_offset(value)
        self.topics_version = max(self.topics_version, offset.topics_version)
        return offset

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """One record of a transaction, whose marker may come later. Only offsets are committed in transactions."""
        decoded = decode_key(key)
        if value is None or not isinstance(decoded, OffsetKey):
            raise UnknownFormat("the offsets topic has a transactional record that is no committed offset")
        offsets = {decoded.topic_partition: self._replayed_offset(value)}
        self._shared.transactions.add(self._replayed_group(decoded.group_id), producer_id, offsets)

    def replay_marker(self, producer_id: int, *, commit: bool) -> None:
        self._shared.transactions.end(producer_id, commit=commit)

    def loaded(self, now_ms: int) -> list[Effect]:
        """All records were replayed: sessions begin, groups that were deleted altogether are dropped, and the offsets
        are tidied by the metadata as it is now."""
        for group in list(self._shared.groups.values()):
            for member in group.members.values():
                self._rebalancing.touch(now_ms, group, member)
            self._consumer_groups.loaded(now_ms, group)
            self._shared.drop_if_never_used(now_ms, group)
        if self._shared.groups:
            interval_ms = self._shared.settings.offsets_retention_check_interval_ms
            self._shared.timers.set(EXPIRY_TIMER, now_ms + interval_ms)
        self._offsets.tidy()
        return self._shared.outbox.take()


def _listing(group: Group) -> GroupListing:
    if group.consumer is None:
        protocol_type, group_type = group.protocol_type or "", CLASSIC
    else:
        protocol_type, group_type = CONSUMER, CONSUMER
    return GroupListing(
        group_id=group.group_id, state=group.shown_state, protocol_type=protocol_type, group_type=group_type
    )


def _describe(group: Group) -> GroupDescription:
    stable = group.state is GroupState.STABLE
    return GroupDescription(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_name=(group.protocol_name or "") if stable else "",
        generation=group.generation,
        leader=group.leader,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(group.protocol_name) if stable else b"",
                assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ),
    )
