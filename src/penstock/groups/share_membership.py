"""Share groups (KIP-932): their members, and what each member reads.

There is no rebalance as in the classic protocol. Every member reads all partitions of the topics that it subscribes to,
and the leaders of these partitions distribute the records; so this module only decides who is a member. One request
does everything, by the epoch that it carries:

    0     join, or join again: the answer is complete
    > 0   heartbeat; perhaps with another subscription
    -1    leave

The group's epoch rises with every change (invariant 1 of `share_group.py`). A member takes over the new epoch with its
next heartbeat, together with its new assignment if that has changed. A member must report the epoch of its last answer
or, in case it never got that answer, the one that it reported before; any other epoch is fenced, and the client joins
again.

Members live in memory only: after a failover the next coordinator knows none of them, says so, and they join again by
themselves. The existence of a group is durable, with an epoch that is at least as high as any that a client was told
(invariant 2): a group without members is still listed, described and deletable until an operator deletes it. So is one
that never had any: `begin` creates it, for consumers that do not use this protocol.

A name belongs to a share group or to a consumer group, never to both.
"""

from collections.abc import Collection, Iterator

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.share_group import Plan, ShareGroup, ShareMember, plan_size
from penstock.groups.share_storage import decode_share_group, encode_share_group, encode_share_group_key
from penstock.groups.share_values import (
    JOINING,
    LEAVING,
    Assignment,
    ClusterFacts,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResult,
    ShareMemberDescription,
)
from penstock.groups.shared_state import SharedState
from penstock.groups.values import DeleteGroupsResult, GroupListing

SHARE = "share"
"""The groups' type and protocol type, as ListGroups names them; and the kind of their timers."""


FIRST_EPOCH = 1
"""The first epoch of a group that exists: 0 means that the log has no record of it."""


class ShareMembership:
    """All share groups of one coordinator."""

    def __init__(self, shared: SharedState, cluster: ClusterFacts) -> None:
        self._shared = shared
        self._cluster = cluster
        self._groups: dict[str, ShareGroup] = {}
        self._readers: dict[str, dict[str, int]] = {}
        """The groups that read each topic, and how many of their plans name it."""

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    # Heartbeats

    def heartbeat(self, now_ms: int, token: object, request: ShareHeartbeat) -> None:
        try:
            self._check(request)
            if request.member_epoch == LEAVING:
                self._leave(token, request)
            else:
                self._report(now_ms, token, request)
        except KafkaError as refusal:
            self._shared.outbox.reply(
                token, ShareHeartbeatResult(error=refusal.code, message=refusal.message)
            )

    def begin(self, token: object, group_id: str) -> None:
        """The group exists, with or without members: answered once that is durable."""
        try:
            self._check_text("GroupId", group_id)
            group = self._groups[group_id] = self._open(group_id)
        except KafkaError as refusal:
            self._shared.outbox.reply(
                token, ShareHeartbeatResult(error=refusal.code, message=refusal.message)
            )
            return
        group.epoch = max(group.epoch, FIRST_EPOCH)
        self._answer(group, token, ShareHeartbeatResult(member_epoch=FIRST_EPOCH))

    def _report(self, now_ms: int, token: object, request: ShareHeartbeat) -> None:
        topics = None if request.topics is None else tuple(sorted(set(request.topics)))
        if request.member_epoch == JOINING:
            assert topics is not None
            group, member = self._joined(request, topics)
        else:
            group, member = self._known(request)
            _check_epoch(member, request.member_epoch)
        member.describe(request)
        if topics is not None and topics != member.plan.topics:
            self._resubscribe(group, member, topics)
        config = self._cluster.config(group.group_id)
        self._shared.timers.set(_session(group, member.member_id), now_ms + config.session_timeout_ms)
        assignment = _catch_up(group, member, request)
        result = ShareHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
            assignment=assignment,
        )
        self._answer(group, token, result)

    def _joined(self, request: ShareHeartbeat, topics: tuple[str, ...]) -> tuple[ShareGroup, ShareMember]:
        group = self._open(request.group_id)
        member = group.members.get(request.member_id)
        if member is None:
            if len(group.members) >= self._shared.limits.max_group_members:
                message = f"full: limits.max_group_members={self._shared.limits.max_group_members}"
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
            self._check_size(group, topics)
            self._groups[group.group_id] = group
            member = group.add(request, topics)
            self._followed(group, member.plan)
            group.epoch += 1
            self._shared.events.tell(
                "group.member_joined",
                group=group.group_id,
                member=request.member_id,
                client_id=request.client_id,
                client=request.client_host.lstrip("/"),
            )
        return group, member

    def _open(self, group_id: str) -> ShareGroup:
        """The group, created if it does not exist. The caller stores it: a refused request leaves no trace."""
        self._check_kind(group_id)
        group = self._groups.get(group_id)
        if group is None and len(self._groups) >= self._shared.limits.max_groups:
            message = f"limits.max_groups ({self._shared.limits.max_groups}) is reached"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        return group or ShareGroup(group_id)

    def _known(self, request: ShareHeartbeat) -> tuple[ShareGroup, ShareMember]:
        """The member that a client claims to be. A client that is not known joins again by itself."""
        self._check_kind(request.group_id)
        group = self._groups.get(request.group_id)
        member = group.members.get(request.member_id) if group is not None else None
        if group is None or member is None:
            message = f"{request.group_id}: no member {request.member_id!r}"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return group, member

    def _resubscribe(self, group: ShareGroup, member: ShareMember, topics: tuple[str, ...]) -> None:
        self._check_size(group, topics)
        abandoned = group.resubscribe(member, topics)
        if abandoned is not None:
            self._abandoned(group, abandoned)
        self._followed(group, member.plan)
        group.epoch += 1

    def _leave(self, token: object, request: ShareHeartbeat) -> None:
        group, member = self._known(request)
        self._remove(group, member)
        self._shared.events.tell("group.member_left", group=group.group_id, member=member.member_id)
        self._shared.outbox.reply(
            token, ShareHeartbeatResult(member_id=request.member_id, member_epoch=request.member_epoch)
        )

    def session_timed_out(self, group_id: str, member_id: str) -> None:
        group = self._groups[group_id]
        self._remove(group, group.members[member_id])
        who = {"group": group_id, "member": member_id}
        self._shared.events.tell("group.member_expired", **who, reason="its session timed out")

    def _remove(self, group: ShareGroup, member: ShareMember) -> None:
        abandoned = group.remove(member)
        if abandoned is not None:
            self._abandoned(group, abandoned)
        self._shared.timers.cancel(_session(group, member.member_id))
        group.epoch += 1
        self._drop_if_never_saved(group)

    # Refusals

    def _check(self, request: ShareHeartbeat) -> None:
        self._check_text("GroupId", request.group_id)
        self._check_text("MemberId", request.member_id)
        if request.rack_id is not None:
            self._check_text("RackId", request.rack_id)
        if request.member_epoch < LEAVING:
            raise _invalid(f"MemberEpoch is {request.member_epoch}; it cannot be below {LEAVING}")
        if request.member_epoch == JOINING and not request.topics:
            raise _invalid("SubscribedTopicNames must name a topic when a member joins")
        if request.topics is not None:
            self._check_topics(request.topics)

    def _check_text(self, field: str, text: str) -> None:
        if not text:
            raise _invalid(f"{field} is empty")
        if len(text.encode()) > self._shared.limits.max_group_id_bytes:
            limit = self._shared.limits.max_group_id_bytes
            raise _invalid(f"{field} is above limits.max_group_id_bytes ({limit})")

    def _check_topics(self, topics: tuple[str, ...]) -> None:
        limits = self._shared.limits
        if len(topics) > limits.max_subscribed_topics:
            limit = limits.max_subscribed_topics
            raise _invalid(f"SubscribedTopicNames: {len(topics)}; limits.max_subscribed_topics is {limit}")
        for name in topics:
            self._check_text("SubscribedTopicNames", name)
        if plan_size(topics) > limits.max_member_metadata_bytes:
            raise _invalid("SubscribedTopicNames: above limits.max_member_metadata_bytes")

    def _check_size(self, group: ShareGroup, topics: tuple[str, ...]) -> None:
        if group.size_with(topics) > self._shared.limits.max_group_metadata_bytes:
            message = "SubscribedTopicNames: the group would be above limits.max_group_metadata_bytes"
            raise _invalid(message)

    def _check_kind(self, group_id: str) -> None:
        if self._shared.find(group_id) is not None:
            message = f"{group_id!r} is a consumer group, not a share group"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    # Topics

    def topics_changed(self, names: Collection[str]) -> None:
        """Topics were created, deleted or extended. Their readers learn of it with their next heartbeat."""
        affected = {group_id: None for name in names for group_id in self._readers.get(name, ())}
        for group_id in affected:
            group = self._groups[group_id]
            changed = [self._look_up(plan) for plan in group.plans.values()]
            group.epoch += any(changed)

    def _look_up(self, plan: Plan) -> bool:
        """Whether the plan's topics have changed."""
        found = (self._cluster.topic(name) for name in plan.topics)
        assignment = tuple(topic for topic in found if topic is not None)
        changed = assignment != plan.assignment
        if changed:
            plan.assignment = assignment
        return changed

    def _followed(self, group: ShareGroup, plan: Plan) -> None:
        if plan.members == 1:
            self._look_up(plan)
            for name in plan.topics:
                groups = self._readers.setdefault(name, {})
                groups[group.group_id] = groups.get(group.group_id, 0) + 1

    def _abandoned(self, group: ShareGroup, plan: Plan) -> None:
        for name in plan.topics:
            groups = self._readers[name]
            groups[group.group_id] -= 1
            if not groups[group.group_id]:
                del groups[group.group_id]
            if not groups:
                del self._readers[name]

    # The disk

    def _answer(self, group: ShareGroup, token: object, result: ShareHeartbeatResult) -> None:
        """Answers once the epoch in the result is durable (2)."""
        if result.member_epoch <= group.durable_epoch:
            self._shared.outbox.reply(token, result)
        else:
            group.waiting.append((token, result))
            self._save(group)

    def _save(self, group: ShareGroup) -> None:
        """Writes the epoch. One write at a time: changes that come meanwhile share the next one, so that a thousand
        members that join at once cost a few writes."""
        if group.is_saving:
            return
        group.is_saving, epoch = True, group.epoch

        def saved(_now_ms: int, ok: bool) -> None:
            group.is_saving = False
            if ok:
                group.durable_epoch = epoch
            self._saved(group, ok)

        record = (encode_share_group_key(group.group_id), encode_share_group(epoch))
        self._shared.outbox.persist((record,), saved)

    def _saved(self, group: ShareGroup, ok: bool) -> None:
        for token, result in group.take_waiting(group.durable_epoch):
            self._shared.outbox.reply(token, result)
        if not ok:
            self._refuse_waiting(
                group, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group's epoch could not be stored"
            )
            self._drop_if_never_saved(group)
        elif self._groups.get(group.group_id) is not group:
            self._refuse_waiting(group, ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id!r} was deleted")
        elif group.waiting:
            self._save(group)

    def _refuse_waiting(self, group: ShareGroup, code: ErrorCode, message: str) -> None:
        for token, _ in group.take_waiting():
            self._shared.outbox.reply(token, ShareHeartbeatResult(error=code, message=message))

    def _drop_if_never_saved(self, group: ShareGroup) -> None:
        unused = not group.members and not group.durable_epoch and not group.is_saving
        if unused and self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def replay(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            self._groups.pop(group_id, None)
        else:
            self._groups[group_id] = ShareGroup(group_id, decode_share_group(value))

    # Administration

    def describe(self, group_id: str) -> ShareGroupDescription | None:
        group = self._groups.get(group_id)
        if group is None:
            return None
        members = tuple(map(_describe_member, group.members.values()))
        return ShareGroupDescription(group_id=group_id, state=group.state, epoch=group.epoch, members=members)

    def member_count(self, group_id: str) -> tuple[str, int] | None:
        group = self._groups.get(group_id)
        return None if group is None else (group.state.value, len(group.members))

    def list_groups(self, states: Collection[str], group_types: Collection[str]) -> Iterator[GroupListing]:
        """Works as the coordinator's own method; case does not matter."""
        wanted = {state.lower() for state in states}
        if group_types and SHARE not in {each.lower() for each in group_types}:
            return
        for group in list(self._groups.values()):
            if not wanted or group.state.value.lower() in wanted:
                yield GroupListing(
                    group_id=group.group_id, state=group.state, protocol_type=SHARE, group_type=SHARE
                )

    def deletable(self, group_id: str) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NON_EMPTY_GROUP if group.members else ErrorCode.NONE

    def delete(self, token: object, group_id: str) -> None:
        """A group that is created again while the deletion is written has its record after the deletion, and stays."""
        code = self.deletable(group_id)
        if code is not ErrorCode.NONE:
            self._shared.outbox.reply(token, DeleteGroupsResult(errors={group_id: code}))
            return
        group = self._groups.pop(group_id)

        def deleted(_now_ms: int, ok: bool) -> None:
            if not ok:
                self._groups.setdefault(group_id, group)
            else:
                self._shared.events.tell("group.deleted", group=group_id)
            outcome = ErrorCode.NONE if ok else ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._shared.outbox.reply(token, DeleteGroupsResult(errors={group_id: outcome}))

        self._shared.outbox.persist(((encode_share_group_key(group_id), None),), deleted)


def _check_epoch(member: ShareMember, epoch: int) -> None:
    if epoch not in (member.epoch, member.heard_epoch):
        message = f"{member.member_id!r} has epoch {member.epoch}, not {epoch}"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _catch_up(group: ShareGroup, member: ShareMember, request: ShareHeartbeat) -> Assignment | None:
    """The member has its group's epoch from now on. Returns the assignment if the member must be told: a full request,
    or one that shows that the last answer was lost, gets it in any case."""
    is_complete = request.topics is not None or request.member_epoch != member.epoch
    member.heard_epoch = request.member_epoch
    member.epoch = group.epoch
    if not is_complete and member.told == member.plan.assignment:
        return None
    member.told = member.plan.assignment
    return member.told


def _describe_member(member: ShareMember) -> ShareMemberDescription:
    return ShareMemberDescription(
        member_id=member.member_id,
        member_epoch=member.epoch,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=member.plan.topics,
        assignment=member.plan.assignment,
    )


def _session(group: ShareGroup, member_id: str) -> tuple[str, ...]:
    return (SHARE, group.group_id, member_id)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
