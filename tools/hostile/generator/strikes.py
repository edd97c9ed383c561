"""Runs the attacks of one surface, one after the other, and finds out which of them did harm.

Attack number N of a seed is the same in every run: it depends on the seed, the surface and N, never on the clock or on
what happened before. So a finding names a seed and a number, and one command runs that attack again. (The state of the
broker depends on all attacks before. If a finding does not show up alone, run all attacks up to it.)
"""

import heapq
import random
import re
import time
from typing import NamedTuple, Protocol

from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from tools.hostile.attack import Attack, Stopwatch

NUMBERS = re.compile("[0-9]+")
MOST_FINDINGS = 10
SLOWEST_SHOWN = 3
SHOWN_FROM_SECONDS = 0.1
LATE_SECONDS = 0.5
"""Log lines may come after the attack that caused them."""


class Surface(Protocol):
    """One way into a node."""

    name: str

    def strike(self, number: int, chance: random.Random) -> str:
        """Runs one attack and returns what it was. OSError: the node has closed the connection."""
        ...


class Slow(NamedTuple):
    """Another client's wait after an attack."""

    seconds: float
    number: int
    description: str


def strike_all(attack: Attack, surface: Surface) -> None:
    """As many attacks as the plan has, or as there is time for."""
    plan = attack.plan
    deadline = time.monotonic() + plan.seconds
    run = _SurfaceRun(attack, surface)
    number = plan.first
    while time.monotonic() < deadline and (plan.attacks is None or number < plan.first + plan.attacks):
        run.strike(number)
        number += 1
        if len(attack.problems) >= MOST_FINDINGS:
            break
    time.sleep(LATE_SECONDS)
    run.report_bugs(number - 1, "one of the last attacks")
    attack.note = f"{number - plan.first:,} attacks with seed {plan.seed}"
    attack.details += run.waits()


def command(attack: Attack, surface: Surface, number: int) -> str:
    return (
        f"python -m tools.hostile --only {surface.name} --seed {attack.plan.seed} --first {number} --count 1"
    )


class _SurfaceRun:
    def __init__(self, attack: Attack, surface: Surface) -> None:
        self._attack = attack
        self._surface = surface
        self._bystander = attack.kafka()
        self._slowest: list[Slow] = []
        self._bug_kinds: set[str] = set()

    def strike(self, number: int) -> None:
        chance = random.Random(f"{self._attack.plan.seed}/{self._surface.name}/{number}")
        try:
            description = self._surface.strike(number, chance)
        except OSError as closed:
            description = f"the connection was closed: {closed}"
        watch = Stopwatch()
        self._bystander.call(ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        heapq.heappush(self._slowest, Slow(watch.seconds, number, description))
        if len(self._slowest) > SLOWEST_SHOWN:
            heapq.heappop(self._slowest)
        self.report_bugs(number, description)

    def report_bugs(self, number: int, description: str) -> None:
        """One problem for each kind of bug: one mistake in the broker may answer to hundreds of attacks."""
        for bug in self._attack.brokers.new_bugs():
            kind = NUMBERS.sub("", bug.partition(" | ")[2] or bug)
            if kind not in self._bug_kinds:
                self._bug_kinds.add(kind)
                again = command(self._attack, self._surface, number)
                self._attack.fail(
                    f"attack {number} ({description}) or one shortly before it: {bug}. Run it again: {again}"
                )

    def waits(self) -> list[str]:
        return [
            f"another client waited {one.seconds * 1000:.0f} ms after attack {one.number} ({one.description}). "
            f"Run it again: {command(self._attack, self._surface, one.number)}"
            for one in sorted(self._slowest, reverse=True)
            if one.seconds > SHOWN_FROM_SECONDS
        ]
