"""The table of members, and the rule by which claims change it.

The table holds the pair (incarnation, state) of each member, and the states are ordered: alive < suspect < dead < left.
**A claim is new if and only if its pair is greater.** That one rule is the whole of SWIM's precedence:

1. Pairs only rise, so all tables that receive the same claims end up equal, in whatever order they come.
2. At one incarnation, suspect overrides alive and dead overrides suspect: an accusation cannot be overlooked.
3. Only a greater incarnation brings a member back, and only the member itself raises it: an old Alive does not revive
   a dead member. For this the dead stay in the table, until it is full or the caller forgets them.
4. Left overrides dead: a member that left is not searched for.

A wiped node that comes back has another folder incarnation, so it is another member, and its incarnations start at 0.
"""

from collections.abc import Iterator, Sequence
from enum import Enum, auto

from penstock.swim.packets import Alive, Claim, Dead, Left, Row, Suspect
from penstock.swim.settings import SwimSettings
from penstock.swim.suspicion import Suspicion
from penstock.swim.values import Member, MemberMeta, State
from penstock.types import NodeId, Replica

CLAIMED_STATES: dict[type[Claim], State] = {
    Alive: State.ALIVE,
    Suspect: State.SUSPECT,
    Dead: State.DEAD,
    Left: State.LEFT,
}


class ClaimResult(Enum):
    """The result of comparing a claim with the table."""

    OLD = auto()
    """Known, contradicted already, or about an unknown member."""
    CONFIRMED = auto()
    """Another accuser of a suspect: the state is the same, its deadline is nearer."""
    NEW = auto()
    FULL = auto()
    """A new member that does not fit into the table."""


class MemberTable:
    """All members that this node knows, itself included."""

    def __init__(self, me: Member, settings: SwimSettings) -> None:
        self._settings = settings
        self.rows: dict[Replica, Member] = {me.replica: me}
        self.suspicions: dict[Replica, Suspicion] = {}
        self.ended_at: dict[Replica, float] = {}
        """When each dead member was declared dead, and each leaving member left, the earliest first."""
        self._by_node: dict[NodeId, list[Replica]] = {me.node: [me.replica]}

    @property
    def present_count(self) -> int:
        return len(self.rows) - len(self.ended_at)

    def is_present(self, replica: Replica) -> bool:
        member = self.rows.get(replica)
        return member is not None and member.state.is_present

    def present(self, but: Replica) -> list[Member]:
        return [member for replica, member in self.rows.items() if member.state.is_present and replica != but]

    def dead(self, since: float = float("-inf")) -> list[Member]:
        """Members that were declared dead at `since` or later, without those that left."""
        found = (self.rows[replica] for replica, ended_at in self.ended_at.items() if ended_at >= since)
        return [member for member in found if member.state is State.DEAD]

    def named(self, node: NodeId) -> Sequence[Replica]:
        """All members of this node id, whatever their state."""
        return self._by_node.get(node, ())

    def id_conflicts(self, meta: MemberMeta) -> Iterator[Member]:
        """Other present members with the same node id and another address.

        One with the same address is the same machine with a new folder; the old member will soon be found dead.
        """
        for replica in self.named(NodeId(meta.node)):
            member = self.rows[replica]
            if replica != meta.replica and member.state.is_present and member.meta.cluster != meta.cluster:
                yield member

    def evaluate(self, claim: Claim) -> ClaimResult:
        """Compares the claim with the table. A new claim is not applied yet; a confirmation is counted at once."""
        known = self.rows.get(claim.subject)
        if known is None:
            if not isinstance(claim, Alive):
                return ClaimResult.OLD
            return ClaimResult.NEW if self._has_space() else ClaimResult.FULL
        claimed = claim.incarnation, CLAIMED_STATES[type(claim)]
        if claimed > (known.incarnation, known.state):
            return ClaimResult.NEW
        if claimed == (known.incarnation, known.state) and isinstance(claim, Suspect):
            return (
                ClaimResult.CONFIRMED if self.suspicions[claim.subject].confirm(claim.by) else ClaimResult.OLD
            )
        return ClaimResult.OLD

    def apply(self, now: float, claim: Claim) -> Member:
        """Applies a claim that `evaluate` found to be new."""
        meta = claim.meta if isinstance(claim, Alive) else self.rows[claim.subject].meta
        member = Member(meta=meta, incarnation=claim.incarnation, state=CLAIMED_STATES[type(claim)])
        self.put(member)
        self.suspicions.pop(claim.subject, None)
        self.ended_at.pop(claim.subject, None)
        if isinstance(claim, Suspect):
            suspicion = Suspicion(now, claim.by, self.present_count, self._settings)
            self.suspicions[claim.subject] = suspicion
        elif not member.state.is_present:
            self.ended_at[claim.subject] = now
        return member

    def put(self, member: Member) -> None:
        replica = member.replica
        if replica not in self.rows:
            if len(self.rows) >= self._settings.max_members:
                self.forget(next(iter(self.ended_at)))
            self._by_node.setdefault(replica.node, []).append(replica)
        self.rows[replica] = member

    def forget(self, replica: Replica) -> None:
        del self.rows[replica]
        self.suspicions.pop(replica, None)
        self.ended_at.pop(replica, None)
        same_id = self._by_node[replica.node]
        same_id.remove(replica)
        if not same_id:
            del self._by_node[replica.node]

    def overdue(self, now: float) -> list[Member]:
        """Suspects whose time to refute has passed."""
        return [self.rows[replica] for replica, each in self.suspicions.items() if each.deadline <= now]

    def _has_space(self) -> bool:
        return len(self.rows) < self._settings.max_members or bool(self.ended_at)


def claims_of(row: Row, by: NodeId) -> list[Claim]:
    """The claims in a row of another node's table (guarantee 3 of `core`)."""
    subject = row.meta.replica
    alive = Alive(row.incarnation, row.meta)
    suspect = Suspect(row.incarnation, subject, by)
    match row.state:
        case State.ALIVE:
            return [alive]
        case State.SUSPECT:
            return [alive, suspect]
        case State.DEAD:
            # Without the Alive: a dead member that is unknown here need not be added.
            return [suspect]
        case State.LEFT:
            return [Left(row.incarnation, subject)]
