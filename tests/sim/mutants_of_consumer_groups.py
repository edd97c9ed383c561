"""Seeded bugs of consumer groups of KIP-848."""

from penstock.groups import consumer_groups, consumer_shared
from penstock.sim.seeds import GROUPS
from tests.sim.mutant import Change, Mutant

CONSUMER_GROUP_MUTANTS = (
    Mutant(
        "partitions are given away before they are free",
        "two members read one partition",
        (
            Change(
                consumer_shared.ConsumerShared,
                "advance",
                "lambda each: group.owners.get(each, me) == me",
                "lambda each: True",
            ),
        ),
        level=GROUPS,
        seeds=3,
    ),
    Mutant(
        "revocations need not be confirmed",
        "a partition goes to another member while the old one still reads it",
        (
            Change(
                consumer_shared.ConsumerShared,
                "advance",
                "group.assignment_epoch, owned,",
                "group.assignment_epoch, frozenset(),",
            ),
        ),
        level=GROUPS,
        seeds=40,
    ),
    Mutant(
        "a computation waits for the clock of another node",
        "a group is never assigned again if the coordinator before had a clock that is ahead",
        (
            Change(
                consumer_groups.ConsumerGroups,
                "loaded",
                "min(consumer.assigned_ms, now_ms)",
                "max(consumer.assigned_ms, now_ms + 600_000)",
            ),
        ),
        level=GROUPS,
        seeds=20,
    ),
)
