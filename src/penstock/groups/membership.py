"""SyncGroup, Heartbeat and LeaveGroup: the requests of members between joining and leaving."""

from collections.abc import Sequence

from penstock.errors import ErrorCode, KafkaError
from penstock.groups.group import Group, Member
from penstock.groups.joining import check_group_id, known_group, known_member
from penstock.groups.rebalancing import LEFT, Rebalancing, sync_result
from penstock.groups.shared_state import SharedState, pending_timer, sync_timer
from penstock.groups.states import GroupState
from penstock.groups.storage import encode_group, encode_group_key
from penstock.groups.values import NO_MEMBER, LeaveResult, LeavingMember, LeftMember, SyncRequest, SyncResult


class Membership:
    """Decides on the requests of members."""

    def __init__(self, shared: SharedState, rebalancing: Rebalancing) -> None:
        self._shared = shared
        self._rebalancing = rebalancing

    # SyncGroup

    def sync(self, now_ms: int, token: object, request: SyncRequest) -> None:
        try:
            group, member = self._current_member(
                request.group_id, request.member_id, request.instance_id, request.generation
            )
            self._check_protocol(group, request)
            self._sync(now_ms, token, request, group, member)
        except KafkaError as refusal:
            self._shared.outbox.reply(token, SyncResult(error=refusal.code))

    def _sync(self, now_ms: int, token: object, request: SyncRequest, group: Group, member: Member) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.group_id} is rebalancing")
        if group.state is GroupState.COMPLETING_REBALANCE and member.member_id == group.leader:
            self._check_assignments(request)
        self._has_synced(group, member)
        if group.state is GroupState.STABLE:
            self._rebalancing.touch(now_ms, group, member)
            self._shared.outbox.reply(token, sync_result(group, member))
            return
        # The client has given up an older request of the same member: it is answered and forgotten.
        self._rebalancing.end_member_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_token = token
        if member.member_id == group.leader and not group.assignment_in_flight:
            self._store_assignments(group, request)

    def _check_protocol(self, group: Group, request: SyncRequest) -> None:
        wrong_type = request.protocol_type not in (None, group.protocol_type)
        if wrong_type or request.protocol_name not in (None, group.protocol_name):
            message = f"{group.group_id} uses {group.protocol_type}/{group.protocol_name}"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)

    def _check_assignments(self, request: SyncRequest) -> None:
        total = sum(len(assignment) for assignment in request.assignments.values())
        if total > self._shared.limits.max_group_assignment_bytes:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "assignments above limits.max_group_assignment_bytes")

    def _has_synced(self, group: Group, member: Member) -> None:
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._shared.timers.cancel(sync_timer(group))

    def _store_assignments(self, group: Group, request: SyncRequest) -> None:
        """No member learns its assignment before it is durable: after a crash the next coordinator must find the same
        generation."""
        assignments = {member_id: request.assignments.get(member_id, b"") for member_id in group.members}
        generation = group.generation
        group.assignment_in_flight = True

        def stored(now_ms: int, ok: bool) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            if ok:
                self._rebalancing.assigned(now_ms, group, assignments)
            else:
                self._rebalancing.assignment_lost(now_ms, group)

        record = (encode_group_key(group.group_id), encode_group(group.stored(assignments)))
        self._shared.outbox.persist((record,), stored)

    # Heartbeat

    def heartbeat(
        self, now_ms: int, group_id: str, member_id: str, generation: int, instance_id: str | None
    ) -> ErrorCode:
        try:
            group, member = self._current_member(group_id, member_id, instance_id, generation)
        except KafkaError as refusal:
            return refusal.code
        self._rebalancing.touch(now_ms, group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _current_member(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Group, Member]:
        check_group_id(group_id, self._shared.limits.max_group_id_bytes)
        group = known_group(self._shared, group_id)
        member = known_member(group, member_id, instance_id)
        if generation != group.generation:
            message = f"{group_id} is in generation {group.generation}, not {generation}"
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, message)
        return group, member

    # LeaveGroup

    def leave(self, now_ms: int, token: object, group_id: str, leaving: Sequence[LeavingMember]) -> None:
        try:
            check_group_id(group_id, self._shared.limits.max_group_id_bytes)
            group = known_group(self._shared, group_id)
        except KafkaError as refusal:
            self._shared.outbox.reply(token, LeaveResult(error=refusal.code))
            return
        size = len(group.members)
        left = tuple(self._leave_one(group, each) for each in leaving)
        if len(group.members) < size:
            self._rebalancing.begin_or_complete(now_ms, group)
        else:
            self._rebalancing.complete_if_all_joined(now_ms, group)
            self._shared.drop_if_never_used(now_ms, group)
        self._shared.outbox.reply(token, LeaveResult(members=left))

    def _leave_one(self, group: Group, leaving: LeavingMember) -> LeftMember:
        error = ErrorCode.NONE
        try:
            if leaving.instance_id is None and leaving.member_id in group.pending:
                group.pending.discard(leaving.member_id)
                self._shared.timers.cancel(pending_timer(group, leaving.member_id))
            else:
                self._rebalancing.dismiss(group, self._leaver(group, leaving), LEFT)
        except KafkaError as refusal:
            error = refusal.code
        return LeftMember(member_id=leaving.member_id, instance_id=leaving.instance_id, error=error)

    def _leaver(self, group: Group, leaving: LeavingMember) -> Member:
        """An operator may remove an instance without knowing its member id."""
        if leaving.member_id == NO_MEMBER and leaving.instance_id in group.static:
            return group.members[group.static[leaving.instance_id]]
        return known_member(group, leaving.member_id, leaving.instance_id)
