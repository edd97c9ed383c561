"""The table of members, and when a claim is news.

What is believed of a member is the pair (incarnation, state), and the states are ordered: alive < suspect < dead <
left. **A claim is news if and only if its pair is greater.** That one rule is the whole of SWIM's precedence:

1. Beliefs only rise, so all tables that hear the same claims end up equal, in whatever order they come.
2. At one incarnation, suspicion beats life and death beats suspicion: an accusation cannot be overlooked.
3. Only a greater incarnation brings a member back, and only the member itself makes one: a stale Alive resurrects
   nobody. For this the dead stay in the table, until it is full or the caller says that they are to be forgotten.
4. A farewell beats death: whoever left is not looked for.

A wiped node that comes back has another folder incarnation, so it is another member, and its incarnations begin anew.
"""

from collections.abc import Iterator, Sequence
from enum import Enum, auto

from penstock.swim.packets import Alive, Claim, Dead, Left, Suspect
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


class Verdict(Enum):
    """What a claim is to the table."""

    OLD = auto()
    """Known, contradicted already, or about somebody unknown."""
    CONFIRMED = auto()
    """Another accuser of a suspect: the state is the same, its deadline is nearer."""
    NEWS = auto()
    FULL = auto()
    """A new member for whom there is no room."""


class MemberTable:
    """Everybody that this node knows of, itself included."""

    def __init__(self, me: Member, settings: SwimSettings) -> None:
        self._settings = settings
        self.rows: dict[Replica, Member] = {me.replica: me}
        self.suspicions: dict[Replica, Suspicion] = {}
        self.ended_at: dict[Replica, float] = {}
        """When the dead and those who left were found to be so, the longest gone first."""
        self._by_node: dict[NodeId, list[Replica]] = {me.node: [me.replica]}

    @property
    def here_count(self) -> int:
        return len(self.rows) - len(self.ended_at)

    def is_here(self, replica: Replica) -> bool:
        member = self.rows.get(replica)
        return member is not None and member.state.is_here

    def here(self, but: Replica) -> list[Member]:
        return [member for replica, member in self.rows.items() if member.state.is_here and replica != but]

    def dead(self, since: float = float("-inf")) -> list[Member]:
        """Those who died at `since` or later; who left is not among them."""
        found = (self.rows[replica] for replica, ended_at in self.ended_at.items() if ended_at >= since)
        return [member for member in found if member.state is State.DEAD]

    def named(self, node: NodeId) -> Sequence[Replica]:
        """All members of this node id, whatever their state."""
        return self._by_node.get(node, ())

    def namesakes(self, meta: MemberMeta) -> Iterator[Member]:
        """Other members that are here under the same node id at another place.

        One at the same place is the same machine with a new folder; the old member is about to be found dead.
        """
        for replica in self.named(NodeId(meta.node)):
            member = self.rows[replica]
            if replica != meta.replica and member.state.is_here and member.meta.cluster != meta.cluster:
                yield member

    def weigh(self, claim: Claim) -> Verdict:
        """What the claim is worth. News is not believed yet; a confirmation is counted with this."""
        known = self.rows.get(claim.subject)
        if known is None:
            if not isinstance(claim, Alive):
                return Verdict.OLD
            return Verdict.NEWS if self._has_room() else Verdict.FULL
        claimed = claim.incarnation, CLAIMED_STATES[type(claim)]
        if claimed > (known.incarnation, known.state):
            return Verdict.NEWS
        if claimed == (known.incarnation, known.state) and isinstance(claim, Suspect):
            return Verdict.CONFIRMED if self.suspicions[claim.subject].confirm(claim.by) else Verdict.OLD
        return Verdict.OLD

    def believe(self, now: float, claim: Claim) -> Member:
        """Takes over what `weigh` found to be news."""
        meta = claim.meta if isinstance(claim, Alive) else self.rows[claim.subject].meta
        member = Member(meta=meta, incarnation=claim.incarnation, state=CLAIMED_STATES[type(claim)])
        self.put(member)
        self.suspicions.pop(claim.subject, None)
        self.ended_at.pop(claim.subject, None)
        if isinstance(claim, Suspect):
            suspicion = Suspicion(now, claim.by, self.here_count, self._settings)
            self.suspicions[claim.subject] = suspicion
        elif not member.state.is_here:
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
        namesakes = self._by_node[replica.node]
        namesakes.remove(replica)
        if not namesakes:
            del self._by_node[replica.node]

    def overdue(self, now: float) -> list[Member]:
        """Suspects whose time to object has passed."""
        return [self.rows[replica] for replica, each in self.suspicions.items() if each.deadline <= now]

    def _has_room(self) -> bool:
        return len(self.rows) < self._settings.max_members or bool(self.ended_at)
