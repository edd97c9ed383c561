"""A sheet to plan moves on: where every replica will be, changed step by step while a plan is made."""

from collections.abc import Collection, Sequence
from uuid import UUID

from penstock.cluster.nodes import Rack, rack_of
from penstock.cluster.state import ClusterState
from penstock.types import GroupId


class Layout:
    """`load` counts the replicas of each node that may get some; `free` are the partitions that may be moved for the
    sake of balance."""

    def __init__(self, state: ClusterState, takers: Collection[int]) -> None:
        self.takers = sorted(takers)
        self.load: dict[int, int] = dict.fromkeys(self.takers, 0)
        self.replicas: dict[GroupId, tuple[int, ...]] = {}
        self.names: dict[GroupId, str] = {}
        self.free: dict[GroupId, None] = {}
        self._racks: dict[int, Rack] = {node: rack_of(node, info) for node, info in state.nodes.items()}
        # By node and topic. Dictionaries serve as ordered sets: plans must not depend on the order of a hash.
        self._held: dict[int, dict[UUID, dict[GroupId, None]]] = {node: {} for node in self.takers}
        self._no_edge: dict[tuple[int, int], None] = {}
        for topic, group, assignment in state.groups():
            self.replicas[group] = assignment.future
            self.names[group] = topic.name
            for node in assignment.future:
                self._hold(node, group)

    def exchange(self, group: GroupId, old: int, new: int) -> tuple[int, ...]:
        """`new` takes the place of `old`, also as preferred leader. Returns the replicas that result."""
        if old != new:
            self._release(old, group)
            self._hold(new, group)
            self._no_edge.clear()
        self.replicas[group] = tuple(new if node == old else node for node in self.replicas[group])
        return self.replicas[group]

    def rack(self, node: int) -> Rack:
        return self._racks.get(node) or rack_of(node, None)

    def crowd(self, replicas: Sequence[int], rack: Rack) -> int:
        return sum(self.rack(node) == rack for node in replicas)

    def held_of_topic(self, node: int, topic_id: UUID) -> int:
        return len(self._held[node].get(topic_id, ()))

    def best_taker(self, group: GroupId, instead_of: int) -> int | None:
        """Who should hold the partition instead of `instead_of`: on the emptiest rack, with the least load."""
        others = [node for node in self.replicas[group] if node != instead_of]
        candidates = [node for node in self.takers if node not in others and node != instead_of]
        return min(
            candidates,
            key=lambda node: (
                self.crowd(others, self.rack(node)),
                self.load[node],
                self.held_of_topic(node, group.topic_id),
                node,
            ),
            default=None,
        )

    def edge(self, giver: int, taker: int, used: Collection[GroupId]) -> GroupId | None:
        """A partition that could go from one node to the other without its racks getting worse.

        Of the topic of which the giver holds the most beyond the taker, so that topics stay spread too.
        """
        if (giver, taker) in self._no_edge:
            return None
        held = self._held[giver]
        none = True
        for topic_id in sorted(held, key=lambda topic: self.held_of_topic(taker, topic) - len(held[topic])):
            for group in held[topic_id]:
                if group in self.free and self._may_go(group, giver, taker):
                    none = False
                    if group not in used:
                        return group
        if none:
            self._no_edge[giver, taker] = None
        return None

    def rack_relief(self, group: GroupId) -> tuple[int, int] | None:
        """A replica and a node that should hold it instead, if that puts the partition on its racks more evenly."""
        replicas = self.replicas[group]
        givers = sorted(
            (node for node in replicas if node in self.load),
            key=lambda node: (-self.crowd(replicas, self.rack(node)), -self.load[node], node),
        )
        for giver in givers:
            taker = self.best_taker(group, giver)
            if taker is None:
                return None
            if self.crowd(replicas, self.rack(taker)) + 1 < self.crowd(replicas, self.rack(giver)):
                return giver, taker
        return None

    def _may_go(self, group: GroupId, giver: int, taker: int) -> bool:
        replicas = self.replicas[group]
        if taker in replicas:
            return False
        old, new = self.rack(giver), self.rack(taker)
        # The sum of squares of replicas per rack must not grow.
        return old == new or self.crowd(replicas, new) + 1 <= self.crowd(replicas, old)

    def _hold(self, node: int, group: GroupId) -> None:
        if node in self.load:
            self.load[node] += 1
            self._held[node].setdefault(group.topic_id, {})[group] = None

    def _release(self, node: int, group: GroupId) -> None:
        if node in self.load:
            self.load[node] -= 1
            of_topic = self._held[node][group.topic_id]
            del of_topic[group]
            if not of_topic:
                del self._held[node][group.topic_id]
