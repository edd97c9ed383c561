"""Seeded bugs of consumer groups and their coordinators."""

from penstock.groups import coordinator, membership, rebalancing
from penstock.node import coordinating
from penstock.sim.mutant import Change, Mutant
from penstock.sim.seeds import NODE

GROUP_MUTANTS = (
    Mutant(
        "commits answered at once",
        "a coordinator tells of what it has only appended",
        (Change(coordinating.CoordinatorDriver, "_persist", "if committed is None:", "if True:"),),
        level=NODE,
        seeds=80,
    ),
    Mutant(
        "assignments told at once",
        "members work in a generation that the next coordinator does not know",
        (
            Change(
                membership.Membership,
                "_store_assignments",
                "self._desk.persist((record,), stored)",
                "self._desk.persist((record,), lambda now_ms, ok: None)\n"
                "    stored(group.state_timestamp_ms, True)",
            ),
        ),
        level=NODE,
        seeds=200,
    ),
    Mutant(
        "coordinator without a lease",
        "a coordinator that was replaced shows the offsets that it knew",
        (Change(coordinating.CoordinatorDriver, "has_lease", "self._partition.has_lease", "True"),),
        level=NODE,
        seeds=400,
    ),
    Mutant(
        "sessions never end",
        "a group waits for ever for members that have gone",
        (
            Change(
                rebalancing.Rebalancing,
                "touch",
                "self._desk.timers.set(session_timer(group, member.member_id), now_ms + timeout_ms)",
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
