"""One member of a consumer group, and how it gets from its assignment to its target.

A member reads `assigned`. To get another assignment it first gives partitions up, and then gets new ones:

    STABLE ──the target takes partitions away──▶ UNREVOKED_PARTITIONS ──it confirms──┐
      ▲  ▲                                                                          ▼
      │  └──────── all partitions of the target are free, or there are none ──── next step
      │                                                                             │
      └── the others have given them up ── UNRELEASED_PARTITIONS ◀── some are not ──┘

Invariants, cited in the tests:

1. A partition is in the hands of one member at most: in `assigned` or in `revoking`. It goes to another member only
   after this one has confirmed that it gave it up, has left, or has been removed.
2. A member's epoch never goes back, except to 0 when it joins again, and is never above the group's assignment epoch.
   It moves to a target's epoch only when it has given up everything that the target does not contain.
"""

from collections.abc import Callable

from penstock.groups.consumer_values import (
    NOTHING,
    Assignment,
    ConsumerHeartbeat,
    MemberState,
    TopicIdPartition,
)
from penstock.groups.values import Protocol
from penstock.types import ANONYMOUS, Caller

Epochs = dict[TopicIdPartition, int]
"""Partitions, each with the epoch in which the member got it. A commit of an older epoch is not for this time of
owning it (KIP-1251)."""


class ConsumerMember:
    """A member. `told` is the assignment of its last answer."""

    __slots__ = (
        "assigned",
        "assignor",
        "caller",
        "change",
        "classic",
        "client_host",
        "client_id",
        "epoch",
        "instance_id",
        "member_id",
        "pattern",
        "previous_epoch",
        "rack_id",
        "rebalance_timeout_ms",
        "revoking",
        "state",
        "told",
        "topics",
    )

    def __init__(self, member_id: str, instance_id: str | None = None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_timeout_ms = -1
        self.topics: tuple[str, ...] = ()
        self.pattern = ""
        self.assignor: str | None = None
        self.classic: ClassicFacts | None = None
        """None: it speaks the consumer protocol."""
        self.epoch = 0
        self.previous_epoch = 0
        """The epoch before: the answer with the newer one may have been lost."""
        self.state = MemberState.STABLE
        self.assigned: Epochs = {}
        self.revoking: Epochs = {}
        self.told: Assignment | None = None
        self.caller: Caller = ANONYMOUS
        """The caller of its last request. Not stored."""
        self.change = 0
        """The group's change in which it last changed (`consumer_saving.py`)."""

    @property
    def held(self) -> set[TopicIdPartition]:
        """The partitions in its hands (1)."""
        return self.assigned.keys() | self.revoking.keys()

    def take_over(self, request: ConsumerHeartbeat) -> bool:
        """Takes over what a request says about the member. Returns whether anything stored has changed."""
        before = self._facts()
        self.caller = request.caller
        self.client_id, self.client_host = request.caller.client_id, "/" + request.caller.host
        if request.rack_id is not None:
            self.rack_id = request.rack_id
        if request.rebalance_timeout_ms != -1:
            self.rebalance_timeout_ms = request.rebalance_timeout_ms
        if request.assignor is not None:
            self.assignor = request.assignor
        if request.topics is not None:
            self.topics = tuple(sorted(set(request.topics)))
        if request.pattern is not None:
            self.pattern = request.pattern
        return self._facts() != before

    def _facts(self) -> tuple[object, ...]:
        about = self.client_id, self.client_host, self.rack_id, self.rebalance_timeout_ms, self.assignor
        return *about, self.topics, self.pattern

    def start_over(self) -> None:
        """The client has joined again: it has given up everything, and knows of no epoch."""
        self.epoch = self.previous_epoch = 0
        self.state = MemberState.STABLE
        self.assigned, self.revoking, self.told = {}, {}, None

    def move_to(self, epoch: int, state: MemberState) -> None:
        self.previous_epoch, self.epoch, self.state = self.epoch, epoch, state


class ClassicFacts:
    """A member that speaks the classic protocol, in a group that has moved to the consumer protocol."""

    __slots__ = ("protocols", "session_timeout_ms")

    def __init__(self, session_timeout_ms: int, protocols: tuple[Protocol, ...]) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols


def reconcile(
    member: ConsumerMember,
    target: Assignment,
    target_epoch: int,
    owned: Assignment | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> bool:
    """The member's next step towards its target. Returns whether it has changed.

    `owned` is what it has reported, if it did. A partition that it was never told of can be taken away at once;
    otherwise a client that is just beginning to read it would not have confirmed anything.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return False
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or not owned.isdisjoint(member.revoking):
            return False
        member.revoking = {}
    before = member.epoch, member.state, len(member.assigned)
    kept = {each: epoch for each, epoch in member.assigned.items() if each in target}
    lost = {each: epoch for each, epoch in member.assigned.items() if each not in target}
    member.assigned = kept
    known_to_client = lost.keys() & member.told if member.told is not None else lost.keys()
    if known_to_client:
        member.revoking = {each: lost[each] for each in known_to_client}
        member.move_to(member.epoch, MemberState.UNREVOKED_PARTITIONS)
        return True
    missing = target - kept.keys()
    free = {each: target_epoch for each in missing if is_free(each)}
    kept |= free
    waits = len(free) < len(missing)
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    if not lost and before == (target_epoch, state, len(kept)):
        return False
    member.move_to(target_epoch, state)
    return True


def visible(member: ConsumerMember) -> Assignment:
    """The partitions that the member may read."""
    return frozenset(member.assigned) if member.assigned else NOTHING
