"""Seeded bugs of consumer groups and their coordinators."""

from penstock.groups import coordinator, rebalancing
from penstock.node.coordination import core_host
from penstock.sim.seeds import NODE
from tests.sim.mutant import Change, Mutant

GROUP_MUTANTS = (
    Mutant(
        "commits answered at once",
        "a coordinator tells of what it has only appended",
        (Change(core_host.CoreHost, "_report_committed", "if committed is None:", "if True:"),),
        level=NODE,
        seeds=80,
    ),
    Mutant(
        "generations are not counted",
        "members of one rebalance cannot be told from those of the next",
        (
            Change(
                rebalancing.Rebalancing,
                "_complete",
                "group.generation += 1",
                "group.generation = max(group.generation, 1)",
            ),
        ),
        level=NODE,
        seeds=50,
    ),
    Mutant(
        "sessions never end",
        "a group waits for ever for members that have gone",
        (
            Change(
                rebalancing.Rebalancing,
                "touch",
                "self._shared.timers.set(session_timer(group, member.member_id), now_ms + timeout_ms)",
                "pass",
            ),
        ),
        level=NODE,
        seeds=80,
    ),
    Mutant(
        "sessions end with their coordinator",
        "the next one waits for ever for members that have gone",
        (
            Change(
                coordinator.Coordinator,
                "loaded",
                "self._rebalancing.touch(now_ms, group, member)",
                "pass",
            ),
        ),
        level=NODE,
        seeds=200,
    ),
)
