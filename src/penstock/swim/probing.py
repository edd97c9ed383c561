"""Probing: the order of probes, the running probe, and pings that other members asked for.

Every member is probed once in each round, in an order that is shuffled for each round: so a failure is detected within
two rounds at worst, and no two nodes probe in step. The timeline of one probe, with health score h (default times, in
milliseconds):

    0              ping
    500 (h+1)      no ack: `indirect_probes` others are asked to ping, and the ping also goes over the reliable channel
    800 (h+1)      a helper that got no answer says so (nack)
    1000 (h+1)     no ack at all: the member is suspected; each helper that did not answer counts against this node's
                   own health
"""

from collections.abc import Iterator

from penstock.swim.health import LocalHealth
from penstock.swim.packets import Ack, Dead, IndirectPing, Left, Message, Nack, Ping, Suspect
from penstock.swim.randomness import Randomness
from penstock.swim.sender import PacketSender
from penstock.swim.settings import SwimSettings
from penstock.swim.table import MemberTable
from penstock.swim.values import GossipEndpoint, Member, State
from penstock.types import NodeId, Replica

NACK_SHARE = 0.6
"""The share of the probe timeout that a helper waits for an ack. Its nack then arrives before the asker's deadline."""
MAX_RELAYS = 256
"""Pings under way for others: far more than a thousand members need in one interval."""


class ProbeOrder:
    """Every member once per round."""

    def __init__(self, me: Replica, random: Randomness) -> None:
        self._me = me
        self._random = random
        self._order: list[Replica] = []
        self._next = 0

    def add(self, replica: Replica) -> None:
        """A new member gets a random position in the rest of the round."""
        remaining = len(self._order) - self._next
        self._order.insert(self._next + self._random.randrange(remaining + 1), replica)

    def next(self, table: MemberTable) -> Replica | None:
        """The next present member; None if there is none."""
        found = self._rest_of_round(table)
        if found is None:
            self._order = [member.replica for member in table.present(but=self._me)]
            self._random.shuffle(self._order)
            self._next = 0
            found = self._rest_of_round(table)
        return found

    def _rest_of_round(self, table: MemberTable) -> Replica | None:
        while self._next < len(self._order):
            self._next += 1
            if table.is_present(self._order[self._next - 1]):
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
        """How much a failure counts against this node's own health."""
        return len(self.silent_helpers) if self.helper_count else 1

    def extend(self, duration: float) -> None:
        self.ask_at += duration
        self.deadline += duration


class Relay:
    """A ping that another member asked for."""

    def __init__(
        self, number: int, asker: Replica, source: GossipEndpoint | NodeId, *, nack_at: float, ends_at: float
    ) -> None:
        self.number = number
        """The asker's."""
        self.asker = asker
        self.source = source
        self.nack_at = nack_at
        self.ends_at = ends_at
        """Until then, an ack that comes after the nack is still forwarded."""
        self.nacked = False

    @property
    def next_deadline(self) -> float:
        return self.ends_at if self.nacked else self.nack_at


class Prober:
    """Sends the probes of this node, and those that others ask for."""

    def __init__(
        self,
        *,
        me: Replica,
        table: MemberTable,
        sender: PacketSender,
        health: LocalHealth,
        settings: SwimSettings,
        random: Randomness,
        now: float,
    ) -> None:
        self._me = me
        self._table = table
        self._sender = sender
        self._health = health
        self._settings = settings
        self._random = random
        self.order = ProbeOrder(me, random)
        self._probe: Probe | None = None
        self._relays: dict[int, Relay] = {}
        # Numbers begin at random, so that an ack of an earlier run is not taken for one of this run.
        self._last_number = random.randrange(2**32)
        # Otherwise all nodes of a cluster that starts at once would always probe in step.
        self._start_at = now + random.random() * settings.probe_interval_ms / 1000

    def new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    @property
    def next_start(self) -> float:
        """When the next probe may begin: one is under way at a time."""
        return self._probe.next_deadline if self._probe is not None else self._start_at

    def deadlines(self) -> Iterator[float]:
        """The deadlines of others' probes, which hold also while this node leaves."""
        return (relay.next_deadline for relay in self._relays.values())

    def extend(self, duration: float) -> None:
        """This node was paused for so long: the ack may be in its receive buffer."""
        if self._probe is not None:
            self._probe.extend(duration)

    # --- own probes

    def take_failed(self, now: float) -> Replica | None:
        """The member whose probe has just failed; each failure is returned once."""
        probe = self._probe
        if probe is None or now < probe.deadline:
            return None
        self._probe = None
        if not self._table.is_present(probe.target):  # it was found dead meanwhile, or has left
            return None
        self._health.worsen(probe.own_fault)
        return probe.target

    def advance(self, now: float, *, may_start: bool) -> None:
        """Starts and continues probes that are due."""
        self._advance_relays(now)
        probe = self._probe
        if probe is not None and not probe.asked and now >= probe.ask_at:
            self._ask_others(probe)
        if probe is None and now >= self._start_at and may_start:
            self._start(now)

    def _start(self, now: float) -> None:
        interval = self._health.stretch(self._settings.probe_interval_ms / 1000)
        timeout = self._health.stretch(self._settings.probe_timeout_ms / 1000)
        self._start_at = now + interval
        target = self.order.next(self._table)
        if target is not None:
            self._probe = Probe(self.new_number(), target, ask_at=now + timeout, deadline=now + interval)
            self._ping(self._table.rows[target], self._probe.number)

    def _ping(self, member: Member, number: int) -> None:
        claims = accusation(member, self._me.node)
        self._sender.send(member.meta.cluster, member.replica, Ping(number), *claims)

    def _ask_others(self, probe: Probe) -> None:
        others = [each for each in self._table.present(but=self._me) if each.replica != probe.target]
        # A suspect is unlikely to answer.
        helpers = [each for each in others if each.state is State.ALIVE]
        helpers = self._random.sample(helpers, min(self._settings.indirect_probes, len(helpers)))
        probe.asks([helper.replica for helper in helpers])
        for helper in helpers:
            request = IndirectPing(probe.number, probe.target)
            self._sender.send(helper.meta.cluster, helper.replica, request)
        if self._settings.reliable_ping:
            self._sender.send_reliable(probe.target.node, probe.target, Ping(probe.number))

    def heard_ack(self, ack: Ack) -> bool:
        """Whether it answers a probe or relay of this node."""
        relay = self._relays.pop(ack.number, None)
        if relay is not None:
            self._sender.send(relay.source, relay.asker, Ack(relay.number))
        elif self._probe is not None and ack.number == self._probe.number:
            self._probe = None
            self._health.improve()
        else:
            return False
        return True

    def heard_nack(self, helper: Replica, nack: Nack) -> None:
        if self._probe is not None and nack.number == self._probe.number:
            self._probe.heard_nack(helper)

    # --- others' probes

    def help(
        self, now: float, source: GossipEndpoint | NodeId, asker: Replica, request: IndirectPing
    ) -> None:
        target = self._table.rows.get(request.target)
        if target is None or len(self._relays) >= MAX_RELAYS:
            return
        number = self.new_number()
        self._relays[number] = Relay(
            request.number,
            asker,
            source,
            nack_at=now + NACK_SHARE * self._settings.probe_timeout_ms / 1000,
            ends_at=now + self._settings.probe_interval_ms / 1000,
        )
        self._ping(target, number)

    def _advance_relays(self, now: float) -> None:
        for number, relay in list(self._relays.items()):
            if now >= relay.ends_at:
                del self._relays[number]
            elif not relay.nacked and now >= relay.nack_at:
                relay.nacked = True
                self._sender.send(relay.source, relay.asker, Nack(relay.number))


def accusation(member: Member, accuser: NodeId) -> tuple[Message, ...]:
    """The claim against a member, sent to the member itself: so it can refute it soonest (Lifeguard's buddy system)."""
    match member.state:
        case State.SUSPECT:
            return (Suspect(member.incarnation, member.replica, accuser),)
        case State.DEAD:
            return (Dead(member.incarnation, member.replica),)
        case State.LEFT:
            return (Left(member.incarnation, member.replica),)
        case State.ALIVE:
            return ()
