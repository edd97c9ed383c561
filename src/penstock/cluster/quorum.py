"""The voters of the metadata group.

Few enough that a commit is quick, enough that two may fail: an odd number, at most five. Voters stay as long as they
are available, since every change of voters is a risk; one that is fenced or leaves is replaced by another.

1. The number depends on the nodes that belong to the cluster, not on those that are alive: three nodes of which one is
   down remain three voters, because one voter alone would be no safer than the two that are left.
2. An unseen voter is not dropped if no node can replace it.
3. Voters are added only if their number becomes odd in the end: two voters are worse than one.
4. One voter changes at a time.
5. Voters are on different machines, so their number depends on the machines (nodes that name none count as their own):
   if the processes of one machine had two votes of three, its loss would be that of the majority.
"""

from collections.abc import Collection, Sequence

from penstock.cluster.nodes import Machine, machine_of, rack_of
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
    for voter in voters:
        if candidates.is_replaceable(voter) or candidates.shares_machine(voter):
            newcomer = candidates.best(instead_of=voter)
            if newcomer is not None:
                return _exchanged(voters, voter, newcomer)
    newcomer = candidates.best() if len(voters) < size else None
    return tuple(voters) if newcomer is None else _exchanged(voters, None, newcomer)


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
        """On how many machines nodes could vote: present voters that stay, also unseen ones (2), and available others
        (3). A voter that has not registered yet is one of the cluster's founders."""
        staying = [voter.node for voter in self._voters if not self._leaves(voter)]
        return len({self._machine(node) for node in [*staying, *self._newcomers()]})

    def is_wiped(self, voter: Replica) -> bool:
        info = self._state.nodes.get(voter.node)
        return info is not None and info.usable and info.incarnation != voter.incarnation

    def is_replaceable(self, voter: Replica) -> bool:
        info = self._state.nodes.get(voter.node)
        return info is not None and not info.usable

    def shares_machine(self, voter: Replica) -> bool:
        """With a voter of a lower number, which stays."""
        others = [node for node in self._voting if node < voter.node]
        return self._machine(voter.node) in {self._machine(node) for node in others}

    def best(self, instead_of: Replica | None = None) -> Replica | None:
        """The next voter: on a machine that has none (5), and from a rack with the fewest."""
        voting = [node for node in self._voting if instead_of is None or node != instead_of.node]
        taken = {self._machine(node) for node in voting}
        node = min(
            (node for node in self._newcomers() if self._machine(node) not in taken),
            key=lambda node: (self._count_on_rack(node, voting), node),
            default=None,
        )
        return None if node is None else self._state.nodes[node].replica

    def least_wanted(self) -> Replica:
        """The voter to drop: one that leaves, then one that is not available, then one of a machine that has two, then
        one of the rack with the most voters."""
        return min(
            self._voters,
            key=lambda voter: (
                not self._leaves(voter),
                self._state.is_available(voter),
                not self.shares_machine(voter),
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

    def _machine(self, node: int) -> Machine:
        return machine_of(node, self._state.nodes.get(node))

    def _count_on_rack(self, node: int, others: Sequence[int]) -> int:
        racks = [rack_of(other, self._state.nodes.get(other)) for other in others]
        return racks.count(rack_of(node, self._state.nodes.get(node)))
