"""How a group gets from one generation to the next.

A rebalance *begins* when a member comes, goes or changes. Members that are in learn of it from their
heartbeats and join again. It *completes* when all have joined, or when the longest rebalance timeout has
passed: whoever has not joined by then is out, except static members, who keep their place until their session
ends. Then the leader has the same time again to bring the assignments.

The first rebalance of an empty group waits a little longer than it must (`initial_rebalance_delay_ms`, again
for each new member up to the rebalance timeout): consumers usually start in numbers, and one generation is
better than ten.
"""

from penstock.errors import ErrorCode
from penstock.groups.group import Group, Member
from penstock.groups.shared_state import SharedState, join_timer, session_timer, sync_timer
from penstock.groups.states import GroupState
from penstock.groups.storage import encode_group, encode_group_key
from penstock.groups.values import JoinResult, SyncResult

LEFT = "it left"


class Rebalancing:
    """The moves of a group between its states."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared

    def begin_or_complete(self, now_ms: int, group: Group) -> None:
        """Somebody came, went or changed: a rebalance begins, or the one under way may have waited for this."""
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
        """The time for joining is over. An empty group's first rebalance gets more if members still come."""
        remaining_ms = group.initial_remaining_ms
        if not remaining_ms or not group.new_member_added:
            self._complete(now_ms, group)
            return
        delay_ms = min(self._shared.settings.initial_rebalance_delay_ms, remaining_ms)
        group.new_member_added = False
        group.initial_remaining_ms = remaining_ms - delay_ms
        self._shared.timers.set(join_timer(group), now_ms + delay_ms)

    def sync_timed_out(self, now_ms: int, group: Group) -> None:
        """The time for syncing is over: members that did not ask for their assignment are gone."""
        late = [group.members[member_id] for member_id in sorted(group.pending_sync)]
        for member in late:
            self.dismiss(group, member, "it did not ask for its assignment in time")
        if late:
            self.begin(now_ms, group)

    def session_timed_out(self, now_ms: int, group: Group, member: Member) -> None:
        """A member was not heard of.

        One that waits for our answer is not silent, unless it never was in the group.
        """
        if member.is_waiting and not member.is_new:
            self.touch(now_ms, group, member)
            return
        self.dismiss(group, member, "its session timed out")
        self.begin_or_complete(now_ms, group)

    def pending_timed_out(self, now_ms: int, group: Group, member_id: str) -> None:
        """An id was given out and never used."""
        group.pending.discard(member_id)
        self.complete_if_all_joined(now_ms, group)
        self._shared.drop_if_never_used(now_ms, group)

    def dismiss(self, group: Group, member: Member, reason: str) -> None:
        """Takes a member out, because it wants to leave (LEFT) or for another reason.

        What it waits for is answered, so that a client that is still there joins anew.
        """
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
        """A sign of life: the session begins again.

        A new member's has not begun; it may wait longer to be let in.
        """
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
        """The leader's assignments could not be stored: nobody gets one, and the group tries again."""
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
        """All who will join have joined."""
        self._shared.timers.cancel(join_timer(group))
        for member in list(group.members.values()):
            if member.join_token is None and not member.is_static:
                self.dismiss(group, member, "it did not join again in time")
        if group.members and not group.elect_joined_leader():
            # Only static members are left and none of them is back. They have their sessions to come back in,
            # and a generation without anybody to lead it would be of no use to them. (A client may ask for a
            # rebalance timeout of 0, hence the second bound.)
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
        # Nobody waits for this write. If it is lost, the members of the last generation are found again at
        # the next start, and their sessions end.
        record = (encode_group_key(group.group_id), encode_group(group.stored()))
        self._shared.outbox.persist((record,), lambda now_ms, ok: None)

    def _end_sync(self, now_ms: int, group: Group, error: ErrorCode) -> None:
        """Whoever waits for an assignment of this generation waits in vain."""
        self._shared.timers.cancel(sync_timer(group))
        group.pending_sync.clear()
        group.assignment_in_flight = False
        for member in group.members.values():
            if member.sync_token is not None:
                # It was not silent, it waited for us: its session begins again with the answer.
                self.touch(now_ms, group, member)
                self.end_member_sync(member, error)


def join_result(group: Group, member: Member) -> JoinResult:
    """What a member learns of its generation; the leader also learns who the others are."""
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
