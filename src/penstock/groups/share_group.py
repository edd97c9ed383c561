"""One share group: its members and what they read. It decides nothing about time, answers or the disk.

Invariants, cited in the tests:

1. The epoch never goes back, and is higher after every change of members, of subscriptions, or of the topics that
   they name. A member's epoch is never above its group's.
2. `durable_epoch` is in the log, and no client was told a higher one: an epoch that a client has heard never stands for
   another state of the group, not even under the next coordinator.
3. A plan exists as long as a member follows it; `plan.members` counts them, and `metadata_bytes` the plans' sizes.
"""

from collections.abc import Iterable, Sequence

from penstock.groups.share_values import Assignment, ShareHeartbeat, ShareHeartbeatResult
from penstock.groups.states import GroupState

Waiting = tuple[object, ShareHeartbeatResult]
"""A token, and its answer, which may be sent once the epoch in it is durable."""

NAME_OVERHEAD_BYTES = 64
"""The memory of a name beside its letters: the object and its slot in a tuple. A limit on letters alone would let
one-letter names take fifty times the memory."""


class Plan:
    """The topics of all members with the same subscription. Most groups have one subscription, so thousands of members
    share one list of topics, and a new topic is looked up once for all of them."""

    __slots__ = ("assignment", "members", "size_bytes", "topics")

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.assignment: Assignment = ()
        self.members = 0
        self.size_bytes = plan_size(topics)


class ShareMember:
    """A member. `told` is the assignment of its last answer, which it works on until it gets another."""

    __slots__ = ("client_host", "client_id", "epoch", "heard_epoch", "member_id", "plan", "rack_id", "told")

    def __init__(self, request: ShareHeartbeat, plan: Plan) -> None:
        self.member_id = request.member_id
        self.rack_id: str | None = None
        self.describe(request)
        self.plan = plan
        self.epoch = 0
        """The epoch in its last answer."""
        self.heard_epoch = 0
        """The epoch that it last reported: it may not have received the answer after that."""
        self.told: Assignment | None = None

    def describe(self, request: ShareHeartbeat) -> None:
        """Client id, host and rack as of this request: the client may have reconnected. A rack holds until another one
        is reported."""
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.rack_id = request.rack_id or self.rack_id


class ShareGroup:
    """One group's state."""

    def __init__(self, group_id: str, epoch: int = 0) -> None:
        self.group_id = group_id
        self.epoch = epoch
        self.durable_epoch = epoch
        """0: nothing of this group is in the log."""
        self.is_saving = False
        self.waiting: list[Waiting] = []
        self.members: dict[str, ShareMember] = {}
        self.plans: dict[tuple[str, ...], Plan] = {}
        self.metadata_bytes = 0

    @property
    def state(self) -> GroupState:
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def add(self, request: ShareHeartbeat, topics: tuple[str, ...]) -> ShareMember:
        member = ShareMember(request, self._follow(topics))
        self.members[member.member_id] = member
        return member

    def remove(self, member: ShareMember) -> Plan | None:
        """The member's plan, if no other member follows it."""
        del self.members[member.member_id]
        return self._leave(member.plan)

    def resubscribe(self, member: ShareMember, topics: tuple[str, ...]) -> Plan | None:
        """The same, for a member that follows another plan from now on."""
        left, member.plan = member.plan, self._follow(topics)
        return self._leave(left)

    def size_with(self, topics: tuple[str, ...]) -> int:
        """`metadata_bytes` if a member followed this plan."""
        return self.metadata_bytes + (0 if topics in self.plans else plan_size(topics))

    def take_waiting(self, epoch: int | None = None) -> Sequence[Waiting]:
        """Removes and returns the answers up to this epoch, or all."""
        ready = [one for one in self.waiting if epoch is None or one[1].member_epoch <= epoch]
        self.waiting = [one for one in self.waiting if epoch is not None and one[1].member_epoch > epoch]
        return ready

    def _follow(self, topics: tuple[str, ...]) -> Plan:
        plan = self.plans.get(topics)
        if plan is None:
            plan = self.plans[topics] = Plan(topics)
            self.metadata_bytes += plan.size_bytes
        plan.members += 1
        return plan

    def _leave(self, plan: Plan) -> Plan | None:
        plan.members -= 1
        if plan.members:
            return None
        del self.plans[plan.topics]
        self.metadata_bytes -= plan.size_bytes
        return plan


def plan_size(topics: Iterable[str]) -> int:
    return sum(NAME_OVERHEAD_BYTES + len(name.encode()) for name in topics)
