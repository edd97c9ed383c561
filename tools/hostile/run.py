"""Runs one scenario: starts nodes, a canary and a probe, lets the attacker loose, and judges what they saw.

A scenario has failed if a node died, did not stop or logged a bug; if an acked record is lost or misplaced; if the node
took more memory than the scenario may cost; if memory or connections remain after it; or if the attacker flooded the
log. How long others had to wait is a figure and no failure: it depends on the machine.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from tools.hostile.attack import Attack, Plan, Stopwatch
from tools.hostile.brokers import MEBIBYTE, Brokers, Usage
from tools.hostile.canary import Canary, CanaryReport
from tools.hostile.log_lines import frequent_kinds
from tools.hostile.probe import Observed, Probe, Watched
from tools.hostile.scenario import Scenario

WARM_UP_SECONDS = 0.3
LINGER_SECONDS = 0.7
"""Some attacks are sent in a moment, and keep the node busy afterwards."""
SETTLE_SECONDS = 20.0
"""How long memory and connections may take to be given back."""
POLL_SECONDS = 0.2
DESCRIPTORS_KEPT = 4
"""Connections between nodes, and of the canary, come and go."""
MOST_LOG_LINES = 500
MOST_PROBLEMS = 20

Tell = Callable[[str], None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one scenario, of its worst node."""

    name: str
    does: str
    seconds: float
    stall_seconds: float
    """The longest that the event loop kept a small request of another client waiting."""
    busy_seconds: float
    """The longest that its thread ran meanwhile: the part of a stall that is not the machine's fault."""
    slow_turns: int
    """How often the node's own watchdog saw its event loop held for over 250 ms."""
    memory_before_bytes: int
    memory_peak_bytes: int
    memory_after_bytes: int
    canary_ack_seconds: float
    canary_delivery_seconds: float
    acked: int
    lost: int
    log_lines: int
    note: str
    details: list[str]
    problems: list[str]


def run_scenario(scenario: Scenario, plan: Plan, tell: Tell) -> Outcome:
    with Brokers(scenario.nodes, scenario.flags, scenario.open_files, scenario.setup) as brokers:
        access = brokers.access
        watched = [Watched(one.node.kafka_port, one.node.pid, access) for one in brokers.nodes]
        with Canary(brokers.bootstrap_servers, access) as canary, Probe(watched) as probe:
            return _Run(scenario, brokers, canary, probe, tell).outcome(plan)


class _Run:
    def __init__(
        self, scenario: Scenario, brokers: Brokers, canary: Canary, probe: Probe, tell: Tell
    ) -> None:
        self._scenario = scenario
        self._brokers = brokers
        self._canary = canary
        self._probe = probe
        self._tell = tell
        self._problems: list[str] = []

    def outcome(self, plan: Plan) -> Outcome:
        attack = Attack(self._brokers, plan)
        self._tell("preparing")
        self._step(attack, self._scenario.prepare)
        attack.close_all()
        time.sleep(WARM_UP_SECONDS)
        before = [one.usage() for one in self._brokers.nodes]
        slow_before = self._slow_turns()
        lines_before = len(self._brokers.log_lines())
        watch = Stopwatch()
        self._canary.begin()
        self._probe.begin()
        self._tell("attacking")
        self._step(attack, self._scenario.attack)
        seconds = watch.seconds
        attack.close_all()
        self._tell("waiting until memory and connections are given back")
        time.sleep(LINGER_SECONDS)
        after = self._settle(before)
        observed = self._probe.observed()
        slow_turns = self._slow_turns() - slow_before
        self._problems += self._brokers.restart_dead()
        self._tell("reading all acked records")
        canary = self._canary.finish()
        log_lines = len(self._brokers.log_lines()) - lines_before
        memory_before = max(one.memory_bytes for one in before if one) if any(before) else 0
        self._judge(observed, canary, memory_before, log_lines)
        return Outcome(
            name=self._scenario.name,
            does=self._scenario.does,
            seconds=seconds,
            stall_seconds=observed.stall_seconds,
            busy_seconds=observed.busy_seconds,
            slow_turns=slow_turns,
            memory_before_bytes=memory_before,
            memory_peak_bytes=observed.memory_bytes,
            memory_after_bytes=max((one.memory_bytes for one in after if one), default=0),
            canary_ack_seconds=canary.ack_seconds,
            canary_delivery_seconds=canary.delivery_seconds,
            acked=canary.acked,
            lost=canary.lost,
            log_lines=log_lines,
            note=attack.note,
            details=[*attack.details, *self._brokers.stalls()],
            problems=[*attack.problems, *self._problems][:MOST_PROBLEMS],
        )

    def _step(self, attack: Attack, step: Callable[[Attack], None]) -> None:
        """Runs a part of the scenario, and ends it when its time is over."""
        watch = Stopwatch()
        timer = threading.Timer(self._scenario.seconds, attack.give_up)
        timer.daemon = True
        timer.start()
        try:
            step(attack)
        except (OSError, AssertionError) as problem:
            if watch.seconds >= self._scenario.seconds:
                self._problems.append(f"it did not end within {self._scenario.seconds:g} s")
            else:
                self._problems.append(f"the attacker got no answer that it expected: {problem!r}")
        finally:
            timer.cancel()

    def _slow_turns(self) -> int:
        return max(one.slow_turns() for one in self._brokers.nodes)

    def _settle(self, before: list[Usage | None]) -> list[Usage | None]:
        """Waits until the nodes have given back what the attack took; problems if they do not."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            after = [one.usage() for one in self._brokers.nodes]
            left = [*self._leaks(before, after)]
            if not left or time.monotonic() > deadline:
                self._problems += left
                return after
            time.sleep(POLL_SECONDS)

    def _leaks(self, before: list[Usage | None], after: list[Usage | None]) -> list[str]:
        leaks = []
        for node, old, new in zip(self._brokers.nodes, before, after, strict=True):
            if old is None or new is None:
                continue  # it died, which is a problem of its own
            if new.descriptors > old.descriptors + DESCRIPTORS_KEPT:
                leaks.append(
                    f"{node.name} leaked: {new.descriptors} sockets are open, {old.descriptors} were before"
                )
            if new.memory_bytes > old.memory_bytes + self._scenario.keeps_bytes:
                more = (new.memory_bytes - old.memory_bytes) // MEBIBYTE
                leaks.append(f"{node.name} leaked: {more} MiB more than before remain")
        return leaks

    def _judge(self, observed: Observed, canary: CanaryReport, memory_before: int, log_lines: int) -> None:
        found: list[str] = []
        more = observed.memory_bytes - memory_before
        if more > self._scenario.memory_bytes:
            most = self._scenario.memory_bytes // MEBIBYTE
            found.append(f"memory: it took {more // MEBIBYTE} MiB more, and its limits allow {most} MiB")
        if canary.lost or canary.misplaced:
            found.append(f"{canary.lost} acked records are lost, {canary.misplaced} are misplaced")
        if canary.refused:
            found.append(f"{canary.refused} records of the canary were refused or not answered")
        if log_lines > MOST_LOG_LINES:
            kinds = frequent_kinds(self._brokers.log_lines())
            found.append(f"{log_lines} lines were logged, {MOST_LOG_LINES} at most are expected: {kinds}")
        self._problems += [*found, *self._brokers.stop(), *self._brokers.new_bugs()]
