"""How a group gets from one generation to the next.

A rebalance *begins* when a member joins, leaves or changes. Members learn of it from their heartbeats and join again.
It *completes* when all have joined, or when the longest rebalance timeout has passed: members that have not joined by
then are removed, except static members, which stay until their session ends. Then the leader has the same time again to
send the assignments.

The first rebalance of an empty group waits a little longer than necessary (`initial_rebalance_delay_ms`, again for each
new member up to the rebalance timeout): consumers usually start in numbers, and one generation is better than ten.
"""

from penstock.errors import ErrorCode
from penstock.groups.group import Group, Member
from penstock.groups.shared_state import SharedState, join_timer, session_timer, sync_timer
from penstock.groups.states import GroupState
from penstock.groups.storage import encode_group, encode_group_key
from penstock.groups.values import JoinResult, SyncResult

LEFT = "it left"


class Rebalancing:
    """The transitions of a group between its states."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared

    def begin_or_complete(self, now_ms: int, group: Group) -> None:
        """A member joined, left or changed: a rebalance begins, or the one that is under way may now complete."""
        if group.can_move_to(GroupState.PREPARING_REBALANCE):
            self.begin(now_ms, group)
        else:
            self.complete_if_all_joined(now_ms, group)

    def begin(self, now_ms: int, group: Group) -> None:
        was_empty = group.state is GroupState.EMPTY
        self._end_sync(now_ms, group, ErrorCode.REBALANCE_IN_PROGRESS)
        group.move_to(GroupState.PREPARING_REBALANCE, now_ms)
        if was_empty:
            self._begin_first(now_ms, group)
        elif group.all_joined:
            self._complete(now_ms, group)
        else:
            self._shared.timers.set(join_timer(group), now_ms + group.rebalance_timeout_ms)

    def complete_if_all_joined(self, now_ms: int, group: Group) -> None:
        preparing = group.state is GroupState.PREPARING_REBALANCE
        if preparing and group.initial_remaining_ms is None and group.all_joined:
            self._complete(now_ms, group)

    def join_timed_out(self, now_ms: int, group: Group) -> None:
        """The time for joining is over. An empty group's first rebalance gets more time while members still join."""
        remaining_ms = group.initial_remaining_ms
        if not remaining_ms or not group.new_member_added:
            self._complete(now_ms, group)
            return
        delay_ms = min(self._shared.settings.initial_rebalance_delay_ms, remaining_ms)
        group.new_member_added = False
        group.initial_remaining_ms = remaining_ms - delay_ms
        self._shared.timers.set(join_timer(group), now_ms + delay_ms)

    def sync_timed_out(self, now_ms: int, group: Group) -> None:
        """The time for syncing is over: members that did not ask for their assignment are removed."""
        late = [group.members[member_id] for member_id in sorted(group.pending_sync)]
        for member in late:
            self.dismiss(group, member, "it did not ask for its assignment in time")
        if late:
            self.begin(now_ms, group)

    def session_timed_out(self, now_ms: int, group: Group, member: Member) -> None:
        """No request of the member came in time. A member that waits for an answer is not silent, unless it never was
        in the group."""
        if member.is_waiting and not member.is_new:
            self.touch(now_ms, group, member)
            return
        self.dismiss(group, member, "its session timed out")
        self.begin_or_complete(now_ms, group)

    def pending_timed_out(self, now_ms: int, group: Group, member_id: str) -> None:
        """A member id was assigned and never used."""
        group.pending.discard(member_id)
        self.complete_if_all_joined(now_ms, group)
        self._shared.drop_if_never_used(now_ms, group)

    def dismiss(self, group: Group, member: Member, reason: str) -> None:
        """Removes a member, because it leaves (LEFT) or for another reason. Its open requests are answered, so that a
        client that still runs joins again."""
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if member.join_token is not None:
            self._shared.outbox.reply(
                group.end_join(member), JoinResult(error=error, member_id=member.member_id)
            )
        self.end_member_sync(member, error)
        self._shared.timers.cancel(session_timer(group, member.member_id))
        group.remove(member)
        who = {"group": group.group_id, "member": member.member_id, "instance": member.instance_id}
        if reason == LEFT:
            self._shared.events.tell("group.member_left", **who)
        else:
            self._shared.events.tell("group.member_expired", **who, reason=reason)

    def touch(self, now_ms: int, group: Group, member: Member) -> None:
        """A request came from the member: its session begins again. A new member's session has not begun; it may wait
        longer to be admitted."""
        settings = self._shared.settings
        timeout_ms = settings.new_member_join_timeout_ms if member.is_new else member.session_timeout_ms
        self._shared.timers.set(session_timer(group, member.member_id), now_ms + timeout_ms)

    def end_member_sync(self, member: Member, error: ErrorCode) -> None:
        if member.sync_token is not None:
            token, member.sync_token = member.sync_token, None
            self._shared.outbox.reply(token, SyncResult(error=error))

    def assigned(self, now_ms: int, group: Group, assignments: dict[str, bytes]) -> None:
        """The leader's assignments are durable: the generation is complete."""
        group.assignment_in_flight = False
        group.move_to(GroupState.STABLE, now_ms)
        self._shared.events.tell(
            "group.rebalanced", group=group.group_id, generation=group.generation, members=len(group.members)
        )
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
            if member.sync_token is not None:
                token, member.sync_token = member.sync_token, None
                self._shared.outbox.reply(token, sync_result(group, member))
                self.touch(now_ms, group, member)

    def assignment_lost(self, now_ms: int, group: Group) -> None:
        """The assignments of the leader could not be stored: no member gets one, and the group tries again."""
        self._end_sync(now_ms, group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.begin(now_ms, group)

    def _begin_first(self, now_ms: int, group: Group) -> None:
        delay_ms = self._shared.settings.initial_rebalance_delay_ms
        if delay_ms == 0:
            self._complete(now_ms, group)
            return
        group.new_member_added = False
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self._shared.timers.set(join_timer(group), now_ms + delay_ms)

    def _complete(self, now_ms: int, group: Group) -> None:
        """All members that will join have joined."""
        self._shared.timers.cancel(join_timer(group))
        for member in list(group.members.values()):
            if member.join_token is None and not member.is_static:
                self.dismiss(group, member, "it did not join again in time")
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none of them is back. They have their sessions to come back in, and a
            # generation without a leader would be of no use to them. (A client may ask for a rebalance timeout of 0,
            # hence the second bound.)
            wait_ms = max(group.rebalance_timeout_ms, self._shared.settings.min_session_timeout_ms)
            self._shared.timers.set(join_timer(group), now_ms + wait_ms)
            return
        group.initial_remaining_ms = None
        group.generation += 1
        if group.members:
            self._begin_generation(now_ms, group)
        else:
            self._become_empty(now_ms, group)

    def _begin_generation(self, now_ms: int, group: Group) -> None:
        group.protocol_name = group.choose_protocol()
        group.move_to(GroupState.COMPLETING_REBALANCE, now_ms)
        group.pending_sync = set(group.members)
        for member in group.members.values():
            member.is_new = False
            if member.join_token is not None:
                self._shared.outbox.reply(group.end_join(member), join_result(group, member))
            self.touch(now_ms, group, member)
        self._shared.timers.set(sync_timer(group), now_ms + group.rebalance_timeout_ms)

    def _become_empty(self, now_ms: int, group: Group) -> None:
        group.protocol_name = None
        group.move_to(GroupState.EMPTY, now_ms)
        self._shared.events.tell("group.empty", group=group.group_id, generation=group.generation)
        # No request waits for this write. If it is lost, the next coordinator finds the members of the last generation,
        # and their sessions end.
        record = (encode_group_key(group.group_id), encode_group(group.stored()))
        self._shared.outbox.persist((record,), lambda now_ms, ok: None)

    def _end_sync(self, now_ms: int, group: Group, error: ErrorCode) -> None:
        """Requests that wait for an assignment of this generation are refused."""
        self._shared.timers.cancel(sync_timer(group))
        group.pending_sync.clear()
        group.assignment_in_flight = False
        for member in group.members.values():
            if member.sync_token is not None:
                # It was not silent, it waited for an answer: its session begins again with the answer.
                self.touch(now_ms, group, member)
                self.end_member_sync(member, error)


def join_result(group: Group, member: Member) -> JoinResult:
    """A member's view of its generation; the leader also learns who the others are."""
    assert group.leader is not None
    return JoinResult(
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader,
        members=group.joined_members() if member.member_id == group.leader else (),
    )


def sync_result(group: Group, member: Member) -> SyncResult:
    return SyncResult(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
