"""All consumer groups of KIP-848 of one coordinator: their requests, timers, records, and descriptions."""

from collections.abc import Collection, Mapping

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.consumer_classic import ClassicMembers
from penstock.groups.consumer_commits import check_fetch
from penstock.groups.consumer_group import ConsumerGroup, Pattern
from penstock.groups.consumer_member import ConsumerMember, visible
from penstock.groups.consumer_membership import ConsumerMembership
from penstock.groups.consumer_migration import Migration
from penstock.groups.consumer_shared import (
    REJOIN,
    REVOCATION,
    SESSION,
    ConsumerShared,
    consumer_tombstones,
)
from penstock.groups.consumer_storage import (
    ConsumerKey,
    RecordKind,
    decode_current,
    decode_epoch,
    decode_member,
    decode_pattern,
    decode_target,
)
from penstock.groups.consumer_targets import ASSIGNMENT
from penstock.groups.consumer_values import (
    NOTHING,
    Assignment,
    ConsumerCluster,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerMemberDescription,
    MemberState,
)
from penstock.groups.group import Group
from penstock.groups.rebalancing import Rebalancing
from penstock.groups.shared_state import SharedState
from penstock.timers import Key

CONSUMER = "consumer"
"""The groups' type, as ListGroups names it."""


class ConsumerGroups:
    """The part of a coordinator that knows the consumer protocol."""

    def __init__(self, shared: SharedState, cluster: ConsumerCluster, rebalancing: Rebalancing) -> None:
        self._shared = shared
        self._consumers = ConsumerShared(shared, cluster)
        self.classic = ClassicMembers(self._consumers)
        self._migration = Migration(self._consumers, rebalancing, self.classic)
        self._membership = ConsumerMembership(self._consumers, self._migration)

    def heartbeat(self, now_ms: int, token: object, request: ConsumerHeartbeat) -> None:
        self._membership.heartbeat(now_ms, token, request)

    def find(self, group_id: str) -> ConsumerGroup | None:
        return self._consumers.find(group_id)

    def check_fetch(self, group_id: str, member_id: str, epoch: int) -> ErrorCode:
        group = self._consumers.find(group_id)
        if group is None:
            known = self._shared.find(group_id) is not None
            return ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID
        try:
            check_fetch(group, member_id, epoch)
        except KafkaError as refusal:
            return refusal.code
        return ErrorCode.NONE

    def with_members(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group of this name, for a client of the classic protocol. A group without members becomes a
        classic group: None, as for others that are none."""
        group = self._shared.find(group_id)
        if group is None or group.consumer is None or group.consumer.members:
            return None if group is None else group.consumer
        consumer = group.consumer
        self._shared.outbox.persist(consumer_tombstones(consumer), lambda now_ms, ok: None)
        self._consumers.subscriptions.forget(consumer)
        group.consumer = None
        group.generation = max(group.generation, consumer.epoch)
        return None

    # Time and metadata

    def alarm(self, now_ms: int, key: Key) -> bool:
        """False if the timer is of another kind."""
        kind, group_id, *member_id = key
        if kind == SESSION:
            self._membership.session_timed_out(now_ms, group_id, member_id[0])
        elif kind == REVOCATION:
            self._membership.revocation_timed_out(now_ms, group_id, member_id[0])
        elif kind == REJOIN:
            self._membership.rejoin_timed_out(now_ms, group_id, member_id[0])
        elif kind == ASSIGNMENT:
            self._compute(now_ms, group_id)
        else:
            return False
        return True

    def _compute(self, now_ms: int, group_id: str) -> None:
        group = self._consumers.find(group_id)
        if group is not None:
            self._consumers.targets.compute_if_due(now_ms, group)
            self._consumers.save(group)

    def computed(self, now_ms: int, group_id: str, epoch: int, target: Mapping[str, Assignment]) -> None:
        """A target that was computed elsewhere. The group may have been deleted, and another one created, meanwhile."""
        group = self._consumers.find(group_id)
        if group is not None and group.is_computing and epoch > group.assignment_epoch:
            self._consumers.targets.computed(now_ms, group, epoch, target)
            self._consumers.save(group)

    def topics_changed(self, now_ms: int, names: Collection[str]) -> None:
        for group in self._consumers.subscriptions.topics_changed(now_ms, names):
            group.bump()
            self._consumers.targets.compute_if_due(now_ms, group)
            self._consumers.save(group)

    # Start

    def replay(self, group: Group, key: ConsumerKey, value: bytes | None) -> None:
        if key.kind is RecordKind.PARTITION_METADATA or (value is None and group.consumer is None):
            return
        if group.consumer is None:
            group.consumer = ConsumerGroup(group.group_id)
        if key.kind in (RecordKind.GROUP, RecordKind.TARGET_EPOCH):
            _replay_epoch(group.consumer, key.kind, (0, 0) if value is None else decode_epoch(value))
        elif key.kind is RecordKind.PATTERN:
            _replay_pattern(group.consumer, key.name, value)
        else:
            _replay_member(group.consumer, key, value)

    def loaded(self, now_ms: int, group: Group) -> None:
        """All records were replayed: the group goes on where it was."""
        consumer = group.consumer
        if consumer is None:
            return
        if group.generation > 0:
            # The group has become a classic one, and the deletion of these records was lost.
            self._shared.outbox.persist(consumer_tombstones(consumer), lambda now_ms, ok: None)
            group.consumer = None
            return
        for member_id in [each for each, member in consumer.members.items() if not member.client_host]:
            del consumer.members[member_id]  # the records of a member that was deleted, but for some
        if not consumer.members and not consumer.epoch:
            group.consumer = None
            return
        consumer.epoch = max(consumer.epoch, consumer.assignment_epoch)
        if consumer.assigned_ms is not None:
            # The clock of the coordinator before may have been ahead; the next computation must not wait for that.
            consumer.assigned_ms = min(consumer.assigned_ms, now_ms)
        consumer.targets = {each: consumer.targets.get(each, NOTHING) for each in consumer.members}
        self._take_hands(consumer)
        consumer.static = {
            each.instance_id: each.member_id for each in consumer.members.values() if each.instance_id
        }
        if self._consumers.subscriptions.restore(consumer):
            consumer.bump()
        for member in consumer.members.values():
            self._begin_session(now_ms, consumer, member)
        self._consumers.targets.compute_if_due(now_ms, consumer)
        self._consumers.save(consumer)
        self._migration.downgrade_if_due(now_ms, group.group_id)

    def _take_hands(self, group: ConsumerGroup) -> None:
        """If a crash tore a write of very many records, a partition may be in the records of two members. The one whose
        record is older may be reading it; the other was not told of it yet."""
        for member in group.members.values():
            taken = [each for each in member.assigned if each in group.owners]
            for partition in taken:
                del member.assigned[partition]
            if taken:
                member.state = MemberState.UNRELEASED_PARTITIONS
                group.mark_current(member)
            group.own(member)

    def _begin_session(self, now_ms: int, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._consumers.touch(now_ms, group, member)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            timer = (REVOCATION, group.group_id, member.member_id)
            self._shared.timers.set(timer, now_ms + max(member.rebalance_timeout_ms, 0))

    # Administration

    def describe(self, group_id: str) -> ConsumerGroupDescription | None:
        group = self._consumers.find(group_id)
        if group is None:
            return None
        return ConsumerGroupDescription(
            group_id=group_id,
            state=group.state,
            epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=group.assignor,
            members=tuple(_describe(group, member) for member in group.members.values()),
        )


def _describe(group: ConsumerGroup, member: ConsumerMember) -> ConsumerMemberDescription:
    return ConsumerMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=member.topics,
        pattern=member.pattern,
        assignment=visible(member),
        target=group.targets.get(member.member_id, NOTHING),
        is_classic=member.classic is not None,
    )


def _replay_epoch(group: ConsumerGroup, kind: RecordKind, value: tuple[int, int]) -> None:
    if kind is RecordKind.GROUP:
        group.epoch, group.topics_hash = value
    else:
        group.assignment_epoch, assigned_ms = value
        group.assigned_ms = assigned_ms or None


def _replay_pattern(group: ConsumerGroup, text: str, value: bytes | None) -> None:
    if value is None:
        group.patterns.pop(text, None)
    else:
        group.patterns[text] = Pattern(decode_pattern(value))


def _replay_member(group: ConsumerGroup, key: ConsumerKey, value: bytes | None) -> None:
    """A member's records may come in any order; the one that says who it is deletes it."""
    if key.kind is RecordKind.TARGET:
        if value is None:
            group.targets.pop(key.name, None)
        else:
            group.targets[key.name] = decode_target(value)
        return
    if value is None:
        if key.kind is RecordKind.MEMBER:
            group.members.pop(key.name, None)
        elif key.name in group.members:
            group.members[key.name].start_over()
        return
    member = group.members.get(key.name) or ConsumerMember(key.name)
    if key.kind is RecordKind.MEMBER:
        decode_member(value, member)
    else:
        group.members.pop(key.name, None)  # members are in the order of their hands: `_take_hands`
        decode_current(value, member)
    group.members[key.name] = member
