"""The voters of the metadata group.

Few enough that a commit is quick, enough that two may fail: an odd number, at most five. Voters stay as long as they
are available, since every change of voters is a risk; one that is fenced or leaves is replaced by another.

1. The number depends on the nodes that belong to the cluster, not on those that are alive: three nodes of which one is
   down remain three voters, because one voter alone would be no safer than the two that are left.
2. An unseen voter is not dropped if no node can replace it.
3. Voters are added only if their number becomes odd in the end: two voters are worse than one.
4. One voter changes at a time.
"""

from collections.abc import Collection, Sequence

from penstock.cluster.nodes import rack_of
from penstock.cluster.state import ClusterState
from penstock.types import Replica

VOTERS_MAX = 5


def metadata_voters(
    state: ClusterState, current: Sequence[Replica], alive: Collection[int]
) -> tuple[Replica, ...]:
    """The next step towards the right voters; `current` (sorted) if these are right."""
    voters = sorted(current)
    candidates = _Candidates(state, voters, alive)
    if not state.nodes or not voters:
        return tuple(voters)
    for voter in voters:
        if candidates.is_wiped(voter):
            return _exchanged(voters, voter, state.nodes[voter.node].replica)
    size = _odd(candidates.members())
    if len(voters) > size:
        return _exchanged(voters, candidates.least_wanted(), None)
    newcomer = candidates.best()
    if newcomer is None:
        return tuple(voters)
    lost = next((voter for voter in voters if candidates.is_replaceable(voter)), None)
    if lost is not None:
        return _exchanged(voters, lost, newcomer)
    return tuple(voters) if len(voters) >= size else _exchanged(voters, None, newcomer)


def _odd(count: int) -> int:
    """The greatest odd number that is neither above `count` nor above the limit."""
    most = min(count, VOTERS_MAX)
    return max(1, most - 1 + most % 2)


def _exchanged(voters: list[Replica], old: Replica | None, new: Replica | None) -> tuple[Replica, ...]:
    kept = [voter for voter in voters if voter != old]
    return tuple(sorted(kept if new is None else [*kept, new]))


class _Candidates:
    def __init__(self, state: ClusterState, voters: list[Replica], alive: Collection[int]) -> None:
        self._state = state
        self._voters = voters
        self._alive = alive
        self._voting = [voter.node for voter in voters]

    def members(self) -> int:
        """How many nodes could vote: present voters that stay, also unseen ones (2), and available others (3). A voter
        that has not registered yet is one of the cluster's founders."""
        staying = sum(not self._leaves(voter) for voter in self._voters)
        return staying + len(self._newcomers())

    def is_wiped(self, voter: Replica) -> bool:
        info = self._state.nodes.get(voter.node)
        return info is not None and info.usable and info.incarnation != voter.incarnation

    def is_replaceable(self, voter: Replica) -> bool:
        info = self._state.nodes.get(voter.node)
        return info is not None and not info.usable

    def best(self) -> Replica | None:
        """The next voter: from a rack with the fewest voters."""
        node = min(
            self._newcomers(), key=lambda node: (self._count_on_rack(node, self._voting), node), default=None
        )
        return None if node is None else self._state.nodes[node].replica

    def least_wanted(self) -> Replica:
        """The voter to drop: one that leaves, then one that is not available, then one of the rack with the most
        voters."""
        return min(
            self._voters,
            key=lambda voter: (
                not self._leaves(voter),
                self._state.is_available(voter),
                -self._count_on_rack(voter.node, self._voting),
                -voter.node,
            ),
        )

    def _leaves(self, voter: Replica) -> bool:
        info = self._state.nodes.get(voter.node)
        return info is not None and info.decommissioning

    def _newcomers(self) -> list[int]:
        return [
            node for node in self._state.usable_nodes() if node in self._alive and node not in self._voting
        ]

    def _count_on_rack(self, node: int, others: Sequence[int]) -> int:
        racks = [rack_of(other, self._state.nodes.get(other)) for other in others]
        return racks.count(rack_of(node, self._state.nodes.get(node)))
