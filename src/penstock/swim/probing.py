"""Probing: whose turn it is, what the running probe waits for, and what others asked this node to try for them.

Every member is probed once in each round, in an order that is shuffled anew each round: so a failure is looked at within two
rounds at worst, and no two nodes probe in step. The timeline of one probe, with health h (times in milliseconds by default):

    0              ping
    500 (h+1)      no ack: `indirect_probes` others are asked to ping, and the ping goes over the reliable channel too
    800 (h+1)      a helper without an answer of its own says so (nack)
    1000 (h+1)     no ack from anywhere: the member is suspected; each helper that said nothing at all speaks against
                   this node's own health
"""

from penstock.swim.chance import Chance
from penstock.swim.table import MemberTable
from penstock.swim.values import Endpoint
from penstock.types import NodeId, Replica

NACK_SHARE = 0.6
"""Of the probe timeout: how long a helper waits for an ack. The nack then still arrives before the asker's probe ends."""
MAX_RELAYS = 256
"""Pings that are under way for others: far more than a thousand members have a use for in one interval."""


class ProbeOrder:
    """Round after round, everybody once."""

    def __init__(self, me: Replica, chance: Chance) -> None:
        self._me = me
        self._chance = chance
        self._order: list[Replica] = []
        self._next = 0

    def add(self, replica: Replica) -> None:
        """A newcomer gets a random place in what remains of the round."""
        remaining = len(self._order) - self._next
        self._order.insert(self._next + self._chance.randrange(remaining + 1), replica)

    def next(self, table: MemberTable) -> Replica | None:
        """The next member that is here; None when nobody is."""
        found = self._rest_of_round(table)
        if found is None:
            self._order = [member.replica for member in table.here(but=self._me)]
            self._chance.shuffle(self._order)
            self._next = 0
            found = self._rest_of_round(table)
        return found

    def _rest_of_round(self, table: MemberTable) -> Replica | None:
        while self._next < len(self._order):
            self._next += 1
            if table.is_here(self._order[self._next - 1]):
                return self._order[self._next - 1]
        return None


class Probe:
    """A probe that is under way. Times in seconds."""

    def __init__(self, number: int, target: Replica, *, ask_at: float, deadline: float) -> None:
        self.number = number
        self.target = target
        self.ask_at = ask_at
        self.deadline = deadline
        self.asked = False
        self.silent_helpers: dict[Replica, None] = {}
        self.helper_count = 0

    @property
    def next_deadline(self) -> float:
        return self.deadline if self.asked else self.ask_at

    def asks(self, helpers: list[Replica]) -> None:
        self.asked = True
        self.silent_helpers = dict.fromkeys(helpers)
        self.helper_count = len(helpers)

    def heard_nack(self, helper: Replica) -> None:
        self.silent_helpers.pop(helper, None)

    @property
    def own_fault(self) -> int:
        """How much a failure speaks against this node itself."""
        return len(self.silent_helpers) if self.helper_count else 1

    def excuse(self, duration: float) -> None:
        self.ask_at += duration
        self.deadline += duration


class Relay:
    """A ping that somebody else asked for."""

    def __init__(
        self, number: int, asker: Replica, source: Endpoint | NodeId, *, nack_at: float, ends_at: float
    ) -> None:
        self.number = number
        """The asker's."""
        self.asker = asker
        self.source = source
        self.nack_at = nack_at
        self.ends_at = ends_at
        """An ack that comes after the nack is still passed on, until then."""
        self.nacked = False

    @property
    def next_deadline(self) -> float:
        return self.ends_at if self.nacked else self.nack_at
