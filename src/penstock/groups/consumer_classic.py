"""Members of the classic protocol in a group that has moved to the consumer protocol: JoinGroup, SyncGroup, Heartbeat
and LeaveGroup in terms of KIP-848.

The coordinator assigns for them, too. Each such member is its own rebalance: its heartbeat tells it to join again
(REBALANCE_IN_PROGRESS) when there is a step to take towards its target; by JoinGroup it reports the partitions that it
has kept, and takes the step; by SyncGroup it gets its assignment. Its generation is its epoch. It is never the leader.
"""

from collections.abc import Sequence

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_member import ClassicFacts, ConsumerMember, visible
from penstock.groups.consumer_shared import REJOIN, ConsumerShared
from penstock.groups.consumer_values import NOTHING, Assignment, MemberState
from penstock.groups.embedded_protocol import Subscription, decode_subscription, encode_assignment
from penstock.groups.joining import check_join
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE
from penstock.groups.values import (
    NO_MEMBER,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResult,
)
from penstock.types import TopicPartition


class ClassicMembers:
    """Decides on their requests."""

    def __init__(self, consumers: ConsumerShared) -> None:
        self._consumers = consumers
        self._shared = consumers.shared

    # JoinGroup

    def join(self, now_ms: int, token: object, request: JoinRequest, group: ConsumerGroup) -> None:
        try:
            check_join(self._shared, request)
            subscription = _subscription(group, request)
            member = self._member(now_ms, group, request)
            if member is None:
                asked = JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=request.new_member_id)
                self._shared.outbox.reply(token, asked)
            else:
                self._join(now_ms, token, request, group, member, subscription)
        except KafkaError as refusal:
            self._shared.outbox.reply(token, JoinResult(error=refusal.code, member_id=request.member_id))

    def _join(
        self,
        now_ms: int,
        token: object,
        request: JoinRequest,
        group: ConsumerGroup,
        member: ConsumerMember,
        subscription: Subscription,
    ) -> None:
        self._update(now_ms, group, member, request, subscription)
        owned = self._owned(subscription)
        # It has given up everything else before it joined.
        member.told = owned
        self._consumers.targets.compute_if_due(now_ms, group)
        self._consumers.advance(now_ms, group, member, owned)
        self._shared.timers.cancel((REJOIN, group.group_id, member.member_id))
        self._consumers.touch(now_ms, group, member)
        result = JoinResult(
            member_id=member.member_id,
            generation=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
        )
        refusal = JoinResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=member.member_id)
        self._consumers.answer(group, member, token, result, refusal)

    def _member(self, now_ms: int, group: ConsumerGroup, request: JoinRequest) -> ConsumerMember | None:
        """The member that joins; None if it must first learn its id."""
        known = group.static.get(request.instance_id) if request.instance_id is not None else None
        if known is not None and request.member_id not in (NO_MEMBER, known):
            message = f"{group.group_id}: instance {request.instance_id!r} is another member now"
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
        member = group.members.get(known or request.member_id)
        if member is not None:
            if request.member_id == NO_MEMBER:
                self._consumers.replace(group, member, request.new_member_id)
            return member
        if request.member_id == NO_MEMBER and request.requires_known_member_id and not request.instance_id:
            return None
        limit = self._shared.limits.max_group_members
        if len(group.members) >= limit:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"full: limits.max_group_members={limit}")
        member = ConsumerMember(request.member_id or request.new_member_id, request.instance_id)
        group.add(member)
        group.bump()
        return member

    def _update(
        self,
        now_ms: int,
        group: ConsumerGroup,
        member: ConsumerMember,
        request: JoinRequest,
        subscription: Subscription,
    ) -> None:
        before = member.topics, member.pattern
        topics = tuple(sorted(set(subscription.topics)))
        self._consumers.subscriptions.check_size(group, topics, member.topics)
        member.client_id, member.client_host = request.client_id, request.client_host
        timeout_ms = request.rebalance_timeout_ms
        member.rebalance_timeout_ms = timeout_ms if timeout_ms >= 0 else request.session_timeout_ms
        member.classic = ClassicFacts(request.session_timeout_ms, request.protocols)
        member.topics, member.pattern = topics, ""
        group.mark_member(member)
        if (member.topics, member.pattern) != before:
            self._consumers.subscriptions.change(now_ms, group, member, before)
            group.bump()

    def _owned(self, subscription: Subscription) -> Assignment:
        ids = ((self._shared.topics.id_of(topic), index) for topic, index in subscription.owned)
        return frozenset((topic_id, index) for topic_id, index in ids if topic_id is not None)

    # SyncGroup, Heartbeat, LeaveGroup

    def sync(self, now_ms: int, token: object, request: SyncRequest, group: ConsumerGroup) -> None:
        try:
            member = _current(group, request.member_id, request.instance_id, request.generation)
        except KafkaError as refusal:
            self._shared.outbox.reply(token, SyncResult(error=refusal.code))
            return
        self._consumers.touch(now_ms, group, member)
        member.told = visible(member)
        result = SyncResult(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocol_name or _protocols(member)[0],
            assignment=self.assignment(member),
        )
        unsaved = SyncResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._consumers.answer(group, member, token, result, unsaved)

    def assignment(self, member: ConsumerMember) -> bytes:
        names = ((self._consumers.cluster.topic_name(topic_id), index) for topic_id, index in member.assigned)
        return encode_assignment(TopicPartition(name, index) for name, index in names if name is not None)

    def heartbeat(
        self, now_ms: int, group: ConsumerGroup, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        try:
            member = _current(group, member_id, instance_id, generation)
        except KafkaError as refusal:
            return refusal.code
        self._consumers.touch(now_ms, group, member)
        if not _has_a_step(group, member):
            return ErrorCode.NONE
        timer = (REJOIN, group.group_id, member_id)
        if timer not in self._shared.timers:
            self._shared.timers.set(timer, now_ms + member.rebalance_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave(
        self, now_ms: int, token: object, leaving: Sequence[LeavingMember], group: ConsumerGroup
    ) -> None:
        left = tuple(self._leave_one(now_ms, group, each) for each in leaving)
        self._shared.outbox.reply(token, LeaveResult(members=left))
        self._consumers.save(group)

    def _leave_one(self, now_ms: int, group: ConsumerGroup, leaving: LeavingMember) -> LeftMember:
        error = ErrorCode.NONE
        try:
            member_id = leaving.member_id
            if member_id == NO_MEMBER and leaving.instance_id in group.static:
                member_id = group.static[leaving.instance_id]
            member = _known(group, member_id, leaving.instance_id)
            self._consumers.remove(now_ms, group, member)
            who = {"group": group.group_id, "member": member_id, "instance": member.instance_id}
            self._shared.events.tell("group.member_left", **who)
        except KafkaError as refusal:
            error = refusal.code
        return LeftMember(member_id=leaving.member_id, instance_id=leaving.instance_id, error=error)


def _subscription(group: ConsumerGroup, request: JoinRequest) -> Subscription:
    """The subscription of a member that can take part, and could also in a classic group of the members like it."""
    names = {protocol.name for protocol in request.protocols}
    for member in group.members.values():
        if member.classic is not None and member.member_id != request.member_id:
            names &= set(_protocols(member))
    found = decode_subscription(request.protocols[0].metadata) if names else None
    if found is None or request.protocol_type != CONSUMER_PROTOCOL_TYPE:
        message = (
            f"{group.group_id}: expected a consumer with a protocol (assignor) that all other members have"
        )
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)
    return found


def _protocols(member: ConsumerMember) -> list[str]:
    return [protocol.name for protocol in member.classic.protocols] if member.classic is not None else [""]


def _has_a_step(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether the member would get further if it joined again."""
    if member.state is MemberState.UNREVOKED_PARTITIONS or member.epoch < group.assignment_epoch:
        return True
    if member.state is MemberState.STABLE:
        return False
    missing = group.targets.get(member.member_id, NOTHING) - member.assigned.keys()
    return any(partition not in group.owners for partition in missing)


def _current(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    member = _known(group, member_id, instance_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} uses the consumer protocol")
    if generation != member.epoch:
        message = f"{group.group_id}: {member_id!r} is in generation {member.epoch}, not {generation}"
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)
    return member


def _known(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None and group.static.get(instance_id, member_id) != member_id:
        message = f"{group.group_id}: instance {instance_id!r} is another member now"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id}: no member {member_id!r}")
    return member
