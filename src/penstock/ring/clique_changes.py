"""What a transition of a clique changed, for people and monitoring."""

import msgspec

from penstock.ring.clique_state import CliqueState
from penstock.types import EventSink

Members = frozenset[tuple[str, str]]
"""Workers with their member ids."""


class CliqueCounters(msgspec.Struct, kw_only=True):
    """How often things happened, over all cliques of one node."""

    joined: int = 0
    left: int = 0
    expired: int = 0
    """Members whose lease was over."""
    handovers: int = 0
    """Slots that went from one member to another."""

    def count(self, before: CliqueState, after: CliqueState, expired: Members) -> None:
        self.joined += len(gone(after, before))
        self.left += len(gone(before, after) - expired)
        self.expired += len(expired)
        self.handovers += _moved_slots(before, after)


def gone(before: CliqueState, after: CliqueState) -> Members:
    """The members that only the first state has."""
    return _members(before) - _members(after)


def tell_changes(
    events: EventSink, clique: str, before: CliqueState, after: CliqueState, expired: Members
) -> None:
    """One event for each member that came or went."""
    for worker, member_id in sorted(gone(before, after)):
        kind = "expired" if (worker, member_id) in expired else "left"
        events.tell(f"clique.worker_{kind}", clique=clique, worker=worker, member=member_id)
    for worker, member_id in sorted(gone(after, before)):
        events.tell("clique.worker_joined", clique=clique, worker=worker, member=member_id)


def _members(state: CliqueState) -> Members:
    return frozenset((worker, member.member_id) for worker, member in state.members.items())


def _moved_slots(before: CliqueState, after: CliqueState) -> int:
    """Slots whose member is another one, and that had one before."""
    new = {worker for worker, _ in gone(after, before)}
    return sum(
        was is not None and now is not None and (was != now or now in new)
        for was, now in zip(before.owners, after.owners, strict=True)
    )
