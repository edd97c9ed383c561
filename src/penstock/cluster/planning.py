"""The planner of moves: repairs first, then racks, then balance, then preferred leaders.

Plans are based on the layout after all moves that are under way, on the state, and on which nodes are *gone*: fenced
for so long that their replicas are to be rebuilt elsewhere.

1. A plan is a sequence of moves of one replica each. Moves of one partition follow each other, and never run together:
   a group that changes two members at once depends on both copies.
2. Moves under way are not changed, unless they lead to a node that can no longer take the replica.
3. Repairs: a replica whose node lost its data is rebuilt there, and so is a damaged one, if the others can continue
   without it (see `damage`). A replica on a node that is gone or leaves goes to the node with the emptiest rack and the
   least load. Partitions with the fewest sound replicas come first.
4. For racks or balance only sound partitions are moved: all replicas available, and no move under way. A node that is
   fenced, but not gone yet, keeps its replicas: it will most likely be back before its data could be copied.
5. Balance never makes the racks of a partition worse, and is reached with the fewest moves (see `levelling`).
6. Preferred leaders are levelled last, when no data is to move: that changes the order of replicas and copies nothing.

The planner keeps no state of its own: a plan may be dropped at any point and made again.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from penstock.cluster.assignments import Assignment
from penstock.cluster.damage import may_rebuild
from penstock.cluster.layout import Layout
from penstock.cluster.levelling import level_leaders, next_chain
from penstock.cluster.moves import Move, MoveLimits, MoveReason
from penstock.cluster.state import ClusterState
from penstock.types import GroupId, Replica

LOOKAHEAD = 200
"""Planned moves that are examined for some that may begin now. When a node joins, most of a plan goes to it, and it
takes only a few at once; computing the rest of the plan would be wasted."""


def plan_rebalance(state: ClusterState, *, gone: Collection[int] = ()) -> list[Move]:
    """The whole plan, in order, for display."""
    planner = _Planner(state, gone)
    moves = list(planner.data_moves())
    return moves + list(planner.leader_moves())


def next_moves(
    state: ClusterState,
    limits: MoveLimits = MoveLimits(),  # noqa: B008 - frozen
    *,
    gone: Collection[int] = (),
    away: Collection[int] = (),
    balance: bool = True,
) -> list[Move]:
    """The moves to begin now, in addition to those under way. Without `balance` only repairs. `away`: nodes that are
    not seen at this moment, fenced or not."""
    budget = _Budget(state, limits, gone)
    planner = _Planner(state, gone, budget.is_busy, away)
    chosen: list[Move] = []
    number = 0
    for number, move in enumerate(planner.data_moves(balance=balance), 1):
        if number > LOOKAHEAD or (budget.empty and not budget.is_redirect(move)):
            break
        if budget.take(move):
            chosen.append(move)
    if number == 0 and balance and not budget.under_way:
        return list(planner.leader_moves())
    return chosen


class _Budget:
    """How many more moves may begin: in total, and per node that sends or receives."""

    def __init__(self, state: ClusterState, limits: MoveLimits, gone: Collection[int]) -> None:
        self._left = limits.at_once
        self._per_node = limits.per_node
        self._gone = gone
        self._busy: dict[int, int] = {}
        self._begun: dict[GroupId, None] = {}
        self.under_way: dict[GroupId, None] = {}
        for _, group, assignment in state.groups():
            if assignment.target is not None:
                self.under_way[group] = None
                self._begin(assignment.adding + assignment.removing + assignment.renewing)

    @property
    def empty(self) -> bool:
        return self._left <= 0

    def is_redirect(self, move: Move) -> bool:
        """A change of a move under way. It was counted when it began, and need not wait for others, which may all be
        stuck."""
        return move.group in self.under_way

    def is_busy(self, node: int) -> bool:
        """Whether the node has as many moves as it may. A node that is gone has no limit."""
        return node not in self._gone and self._busy.get(node, 0) >= self._per_node

    def take(self, move: Move) -> bool:
        if move.group in self._begun:
            return False
        nodes = move.copies + move.removing
        if not self.is_redirect(move):
            if any(self.is_busy(node) for node in nodes):
                return False
            self._begin(nodes)
        self._begun[move.group] = None
        return True

    def _begin(self, nodes: Collection[int]) -> None:
        self._left -= 1
        for node in nodes:
            self._busy[node] = self._busy.get(node, 0) + 1


class _Repair(NamedTuple):
    """One partition and its broken replicas."""

    group: GroupId
    broken: Sequence[tuple[int, MoveReason]]
    moving: bool
    sound: int
    waiting: bool

    @property
    def urgency(self) -> tuple[bool, int]:
        """Moves that cannot succeed come first: they use up the budget that others wait for."""
        return not self.moving, self.sound


class _Planner:
    """`is_busy` is used when a repair chooses a node: repairs are urgent and should not wait for a busy node if there
    is another."""

    def __init__(
        self,
        state: ClusterState,
        gone: Collection[int],
        is_busy: Callable[[int], bool] = lambda node: False,
        away: Collection[int] = (),
    ) -> None:
        self._state = state
        self._away = dict.fromkeys(sorted(away))
        self._is_busy = is_busy
        self._gone = dict.fromkeys(sorted(gone))
        destinations = [node for node in state.usable_nodes() if node not in self._gone]
        self._layout = Layout(state, destinations)
        self._sound = {node: state.nodes[node].replica for node in destinations}
        self._repairs: list[_Repair] = []
        for _, group, assignment in state.groups():
            self._inspect(group, assignment)

    def data_moves(self, *, balance: bool = True) -> Iterator[Move]:
        if not self._state.nodes:
            return
        yield from self._repair_all()
        if balance:
            yield from self._improve_racks()
            yield from self._level()

    def leader_moves(self) -> Iterator[Move]:
        """To be called after all data moves were generated: it starts from the resulting layout."""
        layout = self._layout
        whole = {group: layout.replicas[group] for group in layout.free}
        load = dict.fromkeys(layout.destinations, 0)
        for replicas in layout.replicas.values():
            if replicas[0] in load:
                load[replicas[0]] += 1
        before = dict(whole)
        changed = dict.fromkeys(group for group, _ in level_leaders(whole, load))
        for group in changed:
            if before[group][0] != whole[group][0]:
                yield self._move(group, before[group], whole[group], MoveReason.LEADERS)

    # --- repairs

    def _inspect(self, group: GroupId, assignment: Assignment) -> None:
        """Classifies a partition: to be repaired, free to be moved, or neither."""
        moving = assignment.target is not None
        if not moving and not assignment.damaged and all(map(self._is_sound, assignment.members)):
            self._layout.free[group] = None
            return
        members = assignment.target_members if moving else assignment.members
        faults = [(member, self._fault(member, assignment)) for member in members]
        sound = sum(
            fault is None and self._state.is_available(member) and assignment.damage_of(member) is None
            for member, fault in faults
        )
        broken = [
            (member.node, fault)
            for member, fault in faults
            if fault is not None and (not moving or member not in assignment.members)
        ]
        waiting = sound + sum(fault is not None for _, fault in faults) < len(members)
        if waiting:
            # A node is fenced and may be back soon: until then only lost replicas are repaired.
            broken = [(node, fault) for node, fault in broken if fault is not MoveReason.LEAVING]
        if broken:
            self._repairs.append(_Repair(group, broken, moving, sound, waiting))
        elif not moving and sound == len(members):
            self._layout.free[group] = None

    def _is_sound(self, member: Replica) -> bool:
        node = self._sound.get(member.node)
        return node is not None and member.life_of(node) is not None

    def _fault(self, member: Replica, assignment: Assignment) -> MoveReason | None:
        """Why this replica must be moved or rebuilt; None also where that is not possible."""
        info = self._state.nodes.get(member.node)
        if member.node in self._gone:
            return MoveReason.GONE
        if info is None:
            return None
        if info.fenced:
            # It may be back soon. But a replica that it was only going to get need not wait if the node leaves in any
            # case.
            is_new = member not in assignment.members
            return MoveReason.LEAVING if info.decommissioning and is_new else None
        if member.life_of(info.replica) is None:
            return MoveReason.WIPED
        is_damaged = assignment.damage_of(member) is not None
        if is_damaged and may_rebuild(self._state, assignment, member, self._away):
            return MoveReason.DAMAGED
        return MoveReason.LEAVING if info.decommissioning else None

    def _repair_all(self) -> Iterator[Move]:
        for repair in sorted(self._repairs, key=lambda repair: repair.urgency):
            moves = [self._repair(repair.group, node, reason) for node, reason in repair.broken]
            yield from (move for move in moves if move is not None)
            if None not in moves and not repair.moving and not repair.waiting:
                self._layout.free[repair.group] = None

    def _repair(self, group: GroupId, node: int, reason: MoveReason) -> Move | None:
        destination = self._destination(group, node, reason)
        if destination is None:
            return None
        before = self._origin(group)
        target = self._layout.exchange(group, node, destination)
        return self._move(group, before, target, reason, renewed=node if destination == node else None)

    def _destination(self, group: GroupId, node: int, reason: MoveReason) -> int | None:
        if reason not in (MoveReason.WIPED, MoveReason.DAMAGED):
            return self._layout.best_destination(group, node, self._is_busy)
        if node in self._layout.load:
            return node
        # The node is leaving. But if no other node can hold the replica, one there is better than none.
        other = self._layout.best_destination(group, node, self._is_busy)
        return node if other is None else other

    def _origin(self, group: GroupId) -> tuple[int, ...]:
        """The replicas before the move; for a move whose target changes, those before it began."""
        assignment = self._state.assignment(group)
        assert assignment is not None
        return self._layout.replicas[group] if assignment.target is None else assignment.replicas

    # --- racks and balance

    def _improve_racks(self) -> Iterator[Move]:
        for group in list(self._layout.free):
            while (improvement := self._layout.rack_improvement(group)) is not None:
                yield self._exchange(group, *improvement, MoveReason.RACKS)

    def _level(self) -> Iterator[Move]:
        while (chain := next_chain(self._layout.load, self._layout.edge)) is not None:
            for source, destination, group in chain:
                yield self._exchange(group, source, destination, MoveReason.BALANCE)

    def _exchange(self, group: GroupId, source: int, destination: int, reason: MoveReason) -> Move:
        before = self._layout.replicas[group]
        return self._move(group, before, self._layout.exchange(group, source, destination), reason)

    def _move(
        self,
        group: GroupId,
        before: tuple[int, ...],
        target: tuple[int, ...],
        reason: MoveReason,
        renewed: int | None = None,
    ) -> Move:
        return Move(
            topic=self._layout.names[group],
            group=group,
            replicas=before,
            target=target,
            reason=reason,
            renewed=renewed,
        )
