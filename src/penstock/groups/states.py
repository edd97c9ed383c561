"""The life of a classic consumer group: five states, and one table of the transitions.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                 ▲   │                                             │        │
      │                 │   └── no member is left ──▶ Empty               │        │ the leader's assignment
      │                 ├───── a member comes, goes or changes ◀──────────┘        │ is durable
      │                 │                                                          ▼
      │                 └───── a member comes, goes or changes ◀──────────────── Stable
      └── offsets outlive members; without either the group is Dead and forgotten

- *Empty*: no members. Offsets may be kept, and may be committed by consumers that assign partitions themselves.
- *PreparingRebalance*: members are collected. Each waits for the answer to its JoinGroup.
- *CompletingRebalance*: the generation has begun; members wait in SyncGroup for the assignments of the leader.
- *Stable*: every member has its assignment or can fetch it with SyncGroup.
- *Dead*: removed. Nothing refers to it but answers that are still under way.
"""

from enum import Enum


class GroupState(Enum):
    """A group's state; the values are the names that DescribeGroups and ListGroups use."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    ASSIGNING = "Assigning"
    """Only of consumer groups (KIP-848), which have no table: the target assignment is not computed yet."""
    RECONCILING = "Reconciling"
    """Only of consumer groups: some members have not reached their target assignment."""


TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""The states that may follow each state. `Group.move_to` asserts it: any other transition is a bug."""
