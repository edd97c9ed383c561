"""JoinGroup: which members are admitted, under which id, and whether that costs the others a rebalance.

- A *new dynamic member* first receives its id (clients since JoinGroup v4) and then joins with it.
- A *known member* that joins again with unchanged metadata, outside a rebalance, gets its generation again: it has only
  lost an answer. A leader that joins again requests a rebalance, because it saw something change.
- A *static member* (one with an instance id) that comes back without a member id gets a new one and takes its old
  position, and the old id is fenced off. In a stable group this needs no rebalance, so that the other members do not
  notice a restart. The new id must be durable before the client learns it: otherwise a crash of this node would fence
  off the wrong id.
"""

from msgspec.structs import replace

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.group import Group, Member, metadata_size
from penstock.groups.rebalancing import Rebalancing, join_result
from penstock.groups.shared_state import SharedState, pending_timer, session_timer
from penstock.groups.states import GroupState
from penstock.groups.storage import encode_group, encode_group_key
from penstock.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from penstock.groups.values import NO_MEMBER, JoinRequest, JoinResult


class Joining:
    """Decides on JoinGroup requests."""

    def __init__(self, shared: SharedState, rebalancing: Rebalancing) -> None:
        self._shared = shared
        self._rebalancing = rebalancing

    def join(self, now_ms: int, token: object, request: JoinRequest) -> None:
        try:
            check_join(self._shared, request)
            group = self._group_for(now_ms, request)
            self._check_size(now_ms, group, request)
            if request.member_id == NO_MEMBER:
                self._join_new(now_ms, token, request, group)
            else:
                self._join_known(now_ms, token, request, group)
        except KafkaError as refusal:
            full = refusal.code is ErrorCode.GROUP_MAX_SIZE_REACHED
            member_id = NO_MEMBER if full else request.member_id
            self._shared.outbox.reply(token, JoinResult(error=refusal.code, member_id=member_id))

    def _group_for(self, now_ms: int, request: JoinRequest) -> Group:
        if request.member_id == NO_MEMBER:
            full = ErrorCode.GROUP_MAX_SIZE_REACHED
            return self._shared.open_group(now_ms, request.group_id, full=full)
        return known_group(self._shared, request.group_id)

    def _check_size(self, now_ms: int, group: Group, request: JoinRequest) -> None:
        """Refuses a member beyond the maximum. As in Kafka, during a rebalance only members that have joined count."""
        limit = self._shared.limits.max_group_members
        member = group.members.get(request.member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            has_place = member is not None and member.join_token is not None
            full = not has_place and group.waiting_to_join >= limit
        else:
            full = member is None and len(group.members) >= limit
        if not full and member is None and request.member_id not in group.pending:
            full = len(group.pending) >= limit
        if full:
            if member is not None:
                self._rebalancing.dismiss(group, member, "the group is full")
                self._rebalancing.begin_or_complete(now_ms, group)
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"full: limits.max_group_members={limit}")

    def _check_protocols(self, group: Group, request: JoinRequest) -> None:
        if not group.supports(request.protocol_type, request.protocols):
            message = f"{request.group_id}: expected a protocol (assignor) that all other members have"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)

    def _check_metadata_room(self, group: Group, request: JoinRequest, member: Member | None) -> None:
        freed = metadata_size(member.protocols) if member is not None else 0
        total = group.metadata_bytes - freed + metadata_size(request.protocols)
        if total > self._shared.limits.max_group_metadata_bytes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the group is above limits.max_group_metadata_bytes")

    # New members

    def _join_new(self, now_ms: int, token: object, request: JoinRequest, group: Group) -> None:
        self._check_protocols(group, request)
        old_id = group.static.get(request.instance_id) if request.instance_id is not None else None
        if old_id is not None:
            self._replace_static(now_ms, token, request, group, group.members[old_id])
        elif request.instance_id is None and request.requires_known_member_id:
            self._promise_id(now_ms, token, request, group)
        else:
            self._add(now_ms, token, request, group, request.new_member_id)

    def _promise_id(self, now_ms: int, token: object, request: JoinRequest, group: Group) -> None:
        member_id = request.new_member_id
        self._shared.keep(now_ms, group)
        group.pending.add(member_id)
        self._shared.timers.set(pending_timer(group, member_id), now_ms + request.session_timeout_ms)
        self._shared.outbox.reply(token, JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))

    def _add(self, now_ms: int, token: object, request: JoinRequest, group: Group, member_id: str) -> None:
        self._check_metadata_room(group, request, None)
        self._shared.keep(now_ms, group)
        group.pending.discard(member_id)
        self._shared.timers.cancel(pending_timer(group, member_id))
        member = Member(member_id, request)
        group.add(member, request.protocol_type)
        group.wait_for_join(member, token)
        group.new_member_added = True
        self._tell_joined(group, member)
        self._rebalancing.touch(now_ms, group, member)
        self._rebalancing.begin_or_complete(now_ms, group)

    def _tell_joined(self, group: Group, member: Member) -> None:
        self._shared.events.tell(
            "group.member_joined",
            group=group.group_id,
            member=member.member_id,
            instance=member.instance_id,
            client_id=member.client_id,
            client=member.client_host.lstrip("/"),
        )

    # Known members

    def _join_known(self, now_ms: int, token: object, request: JoinRequest, group: Group) -> None:
        if request.member_id in group.pending:
            self._check_protocols(group, request)
            self._add(now_ms, token, request, group, request.member_id)
            return
        member = known_member(group, request.member_id, request.instance_id)
        self._check_protocols(group, request)
        if self._has_nothing_new(group, member, request):
            self._rebalancing.touch(now_ms, group, member)
            self._shared.outbox.reply(token, join_result(group, member))
        else:
            self._rejoin(now_ms, token, request, group, member)

    def _has_nothing_new(self, group: Group, member: Member, request: JoinRequest) -> bool:
        if member.protocols != request.protocols:
            return False
        if group.state is GroupState.COMPLETING_REBALANCE:
            return True
        return group.state is GroupState.STABLE and member.member_id != group.leader

    def _rejoin(self, now_ms: int, token: object, request: JoinRequest, group: Group, member: Member) -> None:
        self._check_metadata_room(group, request, member)
        group.update(member, request)
        self._wait(group, member, token)
        self._rebalancing.begin_or_complete(now_ms, group)

    def _wait(self, group: Group, member: Member, token: object) -> None:
        """The member waits with its newest request. The client has given up an older one: it is answered and
        forgotten."""
        if member.join_token is not None:
            older = JoinResult(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id)
            self._shared.outbox.reply(group.end_join(member), older)
        group.wait_for_join(member, token)

    # Static members that come back

    def _replace_static(
        self, now_ms: int, token: object, request: JoinRequest, group: Group, member: Member
    ) -> None:
        self._check_metadata_room(group, request, member)
        old_leader = group.leader
        unchanged = self._reads_the_same(group, member, request)
        self._fence(group, member)
        group.rename(member, request.new_member_id)
        group.update(member, request)
        self._tell_joined(group, member)
        self._rebalancing.touch(now_ms, group, member)
        if unchanged and group.state is GroupState.STABLE and group.choose_protocol() == group.protocol_name:
            self._store_replacement(token, request, group, member, old_leader)
        else:
            self._wait(group, member, token)
            self._rebalancing.begin_or_complete(now_ms, group)

    def _fence(self, group: Group, member: Member) -> None:
        """Tells the client that holds the old id that another client has replaced it."""
        self._shared.timers.cancel(session_timer(group, member.member_id))
        error = ErrorCode.FENCED_INSTANCE_ID
        if member.join_token is not None:
            self._shared.outbox.reply(
                group.end_join(member), JoinResult(error=error, member_id=member.member_id)
            )
        self._rebalancing.end_member_sync(member, error)

    def _reads_the_same(self, group: Group, member: Member, request: JoinRequest) -> bool:
        """Whether the assignment still fits.

        Only the topics are compared: assignors put more into the metadata, such as the partitions owned, which a
        restart always changes.
        """
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return True
        for protocol in request.protocols:
            if protocol.name == group.protocol_name:
                before = subscribed_topics(member.metadata(group.protocol_name))
                return before == subscribed_topics(protocol.metadata)
        return False

    def _store_replacement(
        self, token: object, request: JoinRequest, group: Group, member: Member, old_leader: str | None
    ) -> None:
        result = join_result(group, member)
        if result.members and request.supports_skip_assignment:
            result = replace(result, skip_assignment=True)
        elif result.members:
            # An older client that finds itself leader would compute an assignment, and the group would ignore it. Told
            # the leader id that it had before, it behaves as a follower.
            result = replace(result, leader=old_leader or NO_MEMBER, members=())

        def stored(_now_ms: int, ok: bool) -> None:
            failure = JoinResult(error=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=request.member_id)
            self._shared.outbox.reply(token, result if ok else failure)

        self._shared.outbox.persist(
            ((encode_group_key(group.group_id), encode_group(group.stored())),), stored
        )


def check_join(shared: SharedState, request: JoinRequest) -> None:
    """Refuses what is wrong in every state of the group."""
    settings, limits = shared.settings, shared.limits
    check_group_id(request.group_id, limits.max_group_id_bytes)
    shortest, longest = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        message = f"session_timeout_ms {request.session_timeout_ms}: expected {shortest} to {longest}"
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, message)
    names = [request.new_member_id, request.protocol_type, request.instance_id or ""]
    names += [protocol.name for protocol in request.protocols]
    if max(len(name.encode()) for name in names) > limits.max_group_id_bytes:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an id or name is above limits.max_group_id_bytes")
    if len(request.protocols) > limits.max_group_protocols:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "protocols: above limits.max_group_protocols")
    if metadata_size(request.protocols) > limits.max_member_metadata_bytes:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "protocols: above limits.max_member_metadata_bytes")


def check_group_id(group_id: str, max_bytes: int) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "group_id: expected a name, found an empty one")
    if len(group_id.encode()) > max_bytes:
        raise KafkaError(
            ErrorCode.INVALID_GROUP_ID, f"group_id: longer than limits.max_group_id_bytes ({max_bytes})"
        )


def known_group(shared: SharedState, group_id: str) -> Group:
    """The group of a client that claims to be a member."""
    group = shared.find(group_id)
    if group is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
    return group


def known_member(group: Group, member_id: str, instance_id: str | None) -> Member:
    """The member with this id.

    One with an instance id must hold the id that was last given to that instance.
    """
    if instance_id is not None:
        current = group.static.get(instance_id)
        if current is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id}: no instance {instance_id!r}")
        if current != member_id:
            message = f"{group.group_id}: instance {instance_id!r} is another member now"
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, message)
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{group.group_id}: no member {member_id!r}")
    return member
