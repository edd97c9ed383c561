"""A sheet to plan moves on: where every replica will be, changed step by step while a plan is made."""

from collections.abc import Callable, Collection, Sequence
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
        self._taker_racks = list(dict.fromkeys(self._racks[node] for node in self.takers))
        # By node and topic. Dictionaries serve as ordered sets: plans must not depend on the order of a hash.
        self._held: dict[int, dict[UUID, dict[GroupId, None]]] = {node: {} for node in self.takers}
        self._no_edge: dict[tuple[int, int], None] = {}
        self._richest: dict[tuple[int, int], list[UUID]] = {}
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
        return [self.rack(node) for node in replicas].count(rack)

    def held_of_topic(self, node: int, topic_id: UUID) -> int:
        return len(self._held[node].get(topic_id, ()))

    def best_taker(
        self, group: GroupId, instead_of: int, is_busy: Callable[[int], bool] = lambda node: False
    ) -> int | None:
        """Who should hold the partition instead of `instead_of`: on the emptiest rack, not busy, least loaded."""
        others = [node for node in self.replicas[group] if node != instead_of]
        candidates = [node for node in self.takers if node not in others and node != instead_of]
        return min(
            candidates,
            key=lambda node: (
                self.crowd(others, self.rack(node)),
                is_busy(node),
                self.load[node],
                self.held_of_topic(node, group.topic_id),
                node,
            ),
            default=None,
        )

    def edge(self, giver: int, taker: int, used: Collection[GroupId]) -> GroupId | None:
        """A partition that could go from one node to the other without its racks getting worse.

        It is of a topic of which the giver holds the most beyond the taker, so that topics stay spread too. Such topics
        are found for many steps at a time: with thousands of topics, a look at all of them for each step would take
        most of the time that a plan takes.
        """
        if (giver, taker) in self._no_edge:
            return None
        topics = self._richest.setdefault((giver, taker), [])
        while topics:
            group = self._from_topic(topics.pop(), giver, taker, used)
            if group is not None:
                return group
        held = self._held[giver]
        surplus = {topic: len(held[topic]) - self.held_of_topic(taker, topic) for topic in held}
        order = sorted(held, key=lambda topic: -surplus[topic])
        for topic in order:
            group = self._from_topic(topic, giver, taker, used)
            if group is not None:
                topics += [other for other in order if surplus[other] == surplus[topic] and other != topic]
                topics.reverse()
                return group
        if not used or all(self._from_topic(topic, giver, taker, ()) is None for topic in order):
            self._no_edge[giver, taker] = None
        return None

    def _from_topic(
        self, topic_id: UUID, giver: int, taker: int, used: Collection[GroupId]
    ) -> GroupId | None:
        for group in self._held[giver].get(topic_id, ()):
            if group in self.free and group not in used and self._may_go(group, giver, taker):
                return group
        return None

    def rack_relief(self, group: GroupId) -> tuple[int, int] | None:
        """A replica and a node that should hold it instead, if that puts the partition on its racks more evenly."""
        replicas = self.replicas[group]
        racks = [self.rack(node) for node in replicas]
        fullest = max(racks.count(rack) for rack in racks)
        if fullest == 1 or all(racks.count(rack) + 1 >= fullest for rack in self._taker_racks):
            return None
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
        if old == new:
            return True
        racks = [self.rack(node) for node in replicas]
        # The sum of squares of replicas per rack must not grow.
        return racks.count(new) + 1 <= racks.count(old)

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
