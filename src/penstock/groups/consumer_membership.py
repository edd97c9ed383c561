"""ConsumerGroupHeartbeat (KIP-848): one request does everything, by the epoch that it carries.

    0     join, or join again: the client reads nothing, and the answer is complete
    > 0   heartbeat; perhaps with another subscription, or with a report of the partitions that it reads
    -1    leave
    -2    pause: a static member restarts, and comes back with the same instance id

There is no moment at which all members stop. The coordinator computes a target assignment (`consumer_targets.py`), and
each member goes towards its target with its own heartbeats (`consumer_member.py`). A member must report the epoch of
its last answer or, in case it never got that answer, the one before; any other epoch is fenced: the client gives up its
partitions, and joins again.

Members are stored with everything that they may rely on, so that a failover does not disturb them.
"""

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.consumer_assignors import ASSIGNORS
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_member import ConsumerMember, visible
from penstock.groups.consumer_migration import Migration
from penstock.groups.consumer_shared import UNSAVED, ConsumerShared
from penstock.groups.consumer_values import (
    JOINING,
    LEAVING,
    PAUSING,
    Assignment,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    MemberState,
)
from penstock.groups.group import Group
from penstock.groups.states import GroupState
from penstock.groups.storage import NEVER_USED

NOT_STORED = ConsumerHeartbeatResult(error=UNSAVED, message="the group could not be stored")


class ConsumerMembership:
    """Decides on heartbeats, and on members that are silent."""

    def __init__(self, consumers: ConsumerShared, migration: Migration) -> None:
        self._consumers = consumers
        self._migration = migration
        self._shared = consumers.shared

    def heartbeat(self, now_ms: int, token: object, request: ConsumerHeartbeat) -> None:
        try:
            self._check(request)
            if request.member_epoch in (LEAVING, PAUSING):
                self._leave(now_ms, token, request)
            else:
                self._report(now_ms, token, request)
        except KafkaError as refusal:
            result = ConsumerHeartbeatResult(error=refusal.code, message=refusal.message)
            self._shared.outbox.reply(token, result)

    def _report(self, now_ms: int, token: object, request: ConsumerHeartbeat) -> None:
        is_new = False
        if request.member_epoch == JOINING:
            group, member, is_new = self._joined(now_ms, request)
        else:
            group, member = self._known(request)
            _check_epoch(member, request)
        if self._update(now_ms, group, member, request) or is_new:
            group.bump()
        self._consumers.targets.compute_if_due(now_ms, group)
        self._consumers.advance(now_ms, group, member, request.owned)
        self._consumers.touch(now_ms, group, member)
        result = ConsumerHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._consumers.config(group.group_id).heartbeat_interval_ms,
            assignment=_news(member, request),
        )
        self._consumers.answer(group, member, token, result, NOT_STORED)

    def _update(
        self, now_ms: int, group: ConsumerGroup, member: ConsumerMember, request: ConsumerHeartbeat
    ) -> bool:
        """Takes over what the request says. Returns whether the target may be another because of it."""
        subscriptions = self._consumers.subscriptions
        if request.topics is not None:
            subscriptions.check_size(group, request.topics, member.topics)
        before, assignor = (member.topics, member.pattern), member.assignor
        was_classic, member.classic = member.classic is not None, None
        if member.take_over(request) or was_classic or request.member_epoch == JOINING:
            group.mark_member(member)
        subscribed = (member.topics, member.pattern) != before
        if subscribed:
            subscriptions.change(now_ms, group, member, before)
        refreshed = bool(member.pattern) and subscriptions.refresh(now_ms, group, member)
        return subscribed or refreshed or member.assignor != assignor

    # Members

    def _joined(self, now_ms: int, request: ConsumerHeartbeat) -> tuple[ConsumerGroup, ConsumerMember, bool]:
        """The group, the member, and whether it is new."""
        outer = self._open(now_ms, request.group_id)
        group = outer.consumer or ConsumerGroup(request.group_id)
        member = self._returning(group, request)
        if member is not None:
            return group, member, False
        self._check_room(len(group.members))
        self._consumers.subscriptions.check_size(group, request.topics or ())
        member = ConsumerMember(request.member_id, request.instance_id)
        self._begin(now_ms, outer, group)
        group.add(member)
        self._tell_joined(group, request)
        return group, member, True

    def _check_room(self, members: int) -> None:
        limit = self._shared.limits.max_group_members
        if members >= limit:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"full: limits.max_group_members={limit}")

    def _open(self, now_ms: int, group_id: str) -> Group:
        """The group, created if it does not exist. It is kept when the member is admitted."""
        group = self._shared.open_group(now_ms, group_id, full=ErrorCode.GROUP_MAX_SIZE_REACHED)
        if group.consumer is None and not (group.state is GroupState.EMPTY and not group.pending):
            self._check_room(len(group.members))
            self._migration.upgrade(now_ms, group)
        return group

    def _begin(self, now_ms: int, outer: Group, group: ConsumerGroup) -> None:
        """A group without members is of the type of its first member. Its offsets stay."""
        if outer.consumer is None:
            outer.consumer = group
            if outer.generation > 0:
                group.epoch = outer.generation
                group.saving.mark(None, "")
                outer.restore(NEVER_USED)
            self._shared.keep(now_ms, outer)

    def _returning(self, group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember | None:
        """The member that joins again: under its own id, or a static one that has paused under another."""
        known = group.static.get(request.instance_id) if request.instance_id is not None else None
        member = group.members.get(request.member_id if known is None else known)
        if member is None:
            return None
        if request.instance_id is not None:
            group.name_instance(member, request.instance_id)
        if member.epoch == PAUSING or (member.classic is not None and member.member_id != request.member_id):
            # Static members of the classic protocol do not say that they pause: the newer one counts.
            _check_free(group, member, request.member_id)
            self._consumers.replace(group, member, request.member_id)
        elif member.member_id != request.member_id:
            message = f"{group.group_id}: instance {request.instance_id!r} is in use by another member"
            raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
        else:
            self._consumers.cancel_timers(group, member)
            group.disown(member)
            member.start_over()
        return member

    def _known(self, request: ConsumerHeartbeat) -> tuple[ConsumerGroup, ConsumerMember]:
        """The member that a client claims to be. A client that is not known joins again by itself."""
        group = self._consumers.find(request.group_id)
        member = group.members.get(request.member_id) if group is not None else None
        if group is not None and request.instance_id is not None:
            current = group.static.get(request.instance_id)
            if current is None:
                member = None  # a dynamic member cannot pause: there is no instance that could come back
            elif current != request.member_id:
                message = f"{request.group_id}: instance {request.instance_id!r} is another member now"
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
        if group is None or member is None:
            message = f"{request.group_id}: no member {request.member_id!r}"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return group, member

    def _tell_joined(self, group: ConsumerGroup, request: ConsumerHeartbeat) -> None:
        self._shared.events.tell(
            "group.member_joined",
            group=group.group_id,
            member=request.member_id,
            instance=request.instance_id,
            client_id=request.caller.client_id,
            client=request.caller.host,
        )

    # Members that go

    def _leave(self, now_ms: int, token: object, request: ConsumerHeartbeat) -> None:
        group, member = self._known(request)
        if request.member_epoch == PAUSING:
            member.move_to(PAUSING, member.state)
            group.mark_current(member)
        else:
            self._consumers.remove(now_ms, group, member)
            self._tell_left(group, member, None)
            self._migration.downgrade_if_due(now_ms, group.group_id)
        result = ConsumerHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)
        self._shared.outbox.reply(token, result)
        self._consumers.save(group)

    def session_timed_out(self, now_ms: int, group_id: str, member_id: str) -> None:
        self._expire(now_ms, group_id, member_id, "its session timed out")

    def revocation_timed_out(self, now_ms: int, group_id: str, member_id: str) -> None:
        group = self._consumers.find(group_id)
        member = group.members.get(member_id) if group is not None else None
        if member is not None and member.state is MemberState.UNREVOKED_PARTITIONS:
            self._expire(now_ms, group_id, member_id, "it did not give up its partitions in time")

    def rejoin_timed_out(self, now_ms: int, group_id: str, member_id: str) -> None:
        self._expire(now_ms, group_id, member_id, "it did not join again in time")

    def _expire(self, now_ms: int, group_id: str, member_id: str, reason: str) -> None:
        group = self._consumers.find(group_id)
        assert group is not None
        member = group.members[member_id]
        self._consumers.remove(now_ms, group, member)
        self._tell_left(group, member, reason)
        self._migration.downgrade_if_due(now_ms, group_id)
        self._consumers.save(group)

    def _tell_left(self, group: ConsumerGroup, member: ConsumerMember, reason: str | None) -> None:
        who = {"group": group.group_id, "member": member.member_id, "instance": member.instance_id}
        if reason is None:
            self._shared.events.tell("group.member_left", **who)
        else:
            self._shared.events.tell("group.member_expired", **who, reason=reason)

    # Refusals

    def _check(self, request: ConsumerHeartbeat) -> None:
        self._check_text("GroupId", request.group_id)
        self._check_text("MemberId", request.member_id)
        for field, text in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
            if text is not None:
                self._check_text(field, text)
        for name in request.topics or ():
            self._check_text("SubscribedTopicNames", name)
        if request.member_epoch < PAUSING:
            raise _invalid(f"MemberEpoch is {request.member_epoch}; it cannot be below {PAUSING}")
        if request.member_epoch == PAUSING and request.instance_id is None:
            raise _invalid("InstanceId must be set in a request with MemberEpoch -2")
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            message = (
                f"ServerAssignor {request.assignor!r} is not supported; there are: {', '.join(ASSIGNORS)}"
            )
            raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, message)
        if request.member_epoch == JOINING:
            _check_join(request)
        group = self._consumers.find(request.group_id)
        self._consumers.subscriptions.check(group, request.topics or (), request.pattern)

    def _check_text(self, field: str, text: str) -> None:
        limit = self._shared.limits.max_group_id_bytes
        if not text:
            raise _invalid(f"{field} is empty")
        if len(text.encode()) > limit:
            raise _invalid(f"{field} is above limits.max_group_id_bytes ({limit})")


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be set when a member joins")
    if request.owned is None or request.owned:
        raise _invalid("TopicPartitions must be empty when a member joins")
    if request.topics is None and request.pattern is None:
        raise _invalid("SubscribedTopicNames or SubscribedTopicRegex must be set when a member joins")


def _check_free(group: ConsumerGroup, member: ConsumerMember, new_id: str) -> None:
    """If a paused member took over the id of another one, the partitions of that one would stay owned for ever."""
    if new_id != member.member_id and new_id in group.members:
        raise _invalid(f"MemberId {new_id!r} belongs to another member than InstanceId")


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    # The answer with the newer epoch may have been lost.
    if (
        epoch == member.previous_epoch
        and request.owned is not None
        and request.owned <= member.assigned.keys()
    ):
        return
    message = (
        f"{member.member_id!r} has epoch {member.epoch}, not {epoch}: give up all partitions, and join again"
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _news(member: ConsumerMember, request: ConsumerHeartbeat) -> Assignment | None:
    """The assignment if the member must be told: a complete request gets it in any case."""
    is_known = member.told is not None and member.told == member.assigned.keys()
    if is_known and not request.is_complete:
        return None
    member.told = visible(member)
    return member.told


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
