"""The layout that the planner works on: where every replica will be after the moves planned so far."""

from collections.abc import Callable, Collection, Sequence
from uuid import UUID

from penstock.cluster.nodes import Machine, Rack, machine_of, rack_of
from penstock.cluster.state import ClusterState
from penstock.types import GroupId


class Layout:
    """`destinations` are the nodes that may get replicas, and `load` counts the replicas of each; `free` are the
    partitions that may be moved for balance."""

    def __init__(self, state: ClusterState, destinations: Collection[int]) -> None:
        self.destinations = sorted(destinations)
        self.load: dict[int, int] = dict.fromkeys(self.destinations, 0)
        self.replicas: dict[GroupId, tuple[int, ...]] = {}
        self.names: dict[GroupId, str] = {}
        self.free: dict[GroupId, None] = {}
        self._racks: dict[int, Rack] = {node: rack_of(node, info) for node, info in state.nodes.items()}
        self._machines: dict[int, Machine] = {
            node: machine_of(node, info) for node, info in state.nodes.items()
        }
        self._destination_racks = list(dict.fromkeys(self._racks[node] for node in self.destinations))
        # By node and topic. Dictionaries serve as ordered sets: plans must not depend on hash order.
        self._held: dict[int, dict[UUID, dict[GroupId, None]]] = {node: {} for node in self.destinations}
        self._no_edge: dict[tuple[int, int], None] = {}
        self._topics_to_move: dict[tuple[int, int], list[UUID]] = {}
        for topic, group, assignment in state.groups():
            self.replicas[group] = assignment.future
            self.names[group] = topic.name
            for node in assignment.future:
                self._hold(node, group)

    def exchange(self, group: GroupId, old: int, new: int) -> tuple[int, ...]:
        """Replaces `old` by `new`, also as preferred leader. Returns the resulting replicas."""
        if old != new:
            self._release(old, group)
            self._hold(new, group)
            self._no_edge.clear()
        self.replicas[group] = tuple(new if node == old else node for node in self.replicas[group])
        return self.replicas[group]

    def rack(self, node: int) -> Rack:
        return self._racks.get(node) or rack_of(node, None)

    def machine(self, node: int) -> Machine:
        return self._machines.get(node) or machine_of(node, None)

    def count_on_rack(self, replicas: Sequence[int], rack: Rack) -> int:
        return [self.rack(node) for node in replicas].count(rack)

    def held_of_topic(self, node: int, topic_id: UUID) -> int:
        return len(self._held[node].get(topic_id, ()))

    def best_destination(
        self, group: GroupId, instead_of: int, is_busy: Callable[[int], bool] = lambda node: False
    ) -> int | None:
        """The node to hold the partition instead of `instead_of`: on a machine without a replica of it, on the emptiest
        rack, not busy, least loaded."""
        others = [node for node in self.replicas[group] if node != instead_of]
        taken = {self.machine(node) for node in others}
        candidates = [
            node for node in self.destinations if node != instead_of and self.machine(node) not in taken
        ]
        return min(
            candidates,
            key=lambda node: (
                self.count_on_rack(others, self.rack(node)),
                is_busy(node),
                self.load[node],
                self.held_of_topic(node, group.topic_id),
                node,
            ),
            default=None,
        )

    def edge(self, source: int, destination: int, used: Collection[GroupId]) -> GroupId | None:
        """A partition that could go from one node to the other without its racks getting worse.

        It belongs to a topic of which the source holds the most more than the destination, so that topics stay spread
        too. Such topics are computed for many steps at a time: with thousands of topics, comparing all of them for each
        step would take most of the planning time.
        """
        if (source, destination) in self._no_edge:
            return None
        topics = self._topics_to_move.setdefault((source, destination), [])
        while topics:
            group = self._from_topic(topics.pop(), source, destination, used)
            if group is not None:
                return group
        held = self._held[source]
        surplus = {topic: len(held[topic]) - self.held_of_topic(destination, topic) for topic in held}
        order = sorted(held, key=lambda topic: -surplus[topic])
        for topic in order:
            group = self._from_topic(topic, source, destination, used)
            if group is not None:
                topics += [other for other in order if surplus[other] == surplus[topic] and other != topic]
                topics.reverse()
                return group
        if not used or all(self._from_topic(topic, source, destination, ()) is None for topic in order):
            self._no_edge[source, destination] = None
        return None

    def _from_topic(
        self, topic_id: UUID, source: int, destination: int, used: Collection[GroupId]
    ) -> GroupId | None:
        for group in self._held[source].get(topic_id, ()):
            if group in self.free and group not in used and self._may_go(group, source, destination):
                return group
        return None

    def rack_improvement(self, group: GroupId) -> tuple[int, int] | None:
        """A node and another that should hold its replica instead, if that spreads the partition better over machines
        (nodes may name theirs late) or racks."""
        replicas = self.replicas[group]
        apart = self._machine_improvement(group, replicas)
        if apart is not None:
            return apart
        racks = [self.rack(node) for node in replicas]
        fullest = max(racks.count(rack) for rack in racks)
        if fullest == 1 or all(racks.count(rack) + 1 >= fullest for rack in self._destination_racks):
            return None
        sources = sorted(
            (node for node in replicas if node in self.load),
            key=lambda node: (-self.count_on_rack(replicas, self.rack(node)), -self.load[node], node),
        )
        for source in sources:
            destination = self.best_destination(group, source)
            if destination is None:
                return None
            on_destination = self.count_on_rack(replicas, self.rack(destination))
            if on_destination + 1 < self.count_on_rack(replicas, self.rack(source)):
                return source, destination
        return None

    def _machine_improvement(self, group: GroupId, replicas: Sequence[int]) -> tuple[int, int] | None:
        machines = [self.machine(node) for node in replicas]
        if len(set(machines)) == len(machines):
            return None
        for source in reversed(replicas):  # the preferred leader stays
            if machines.count(self.machine(source)) > 1 and source in self.load:
                destination = self.best_destination(group, source)
                if destination is not None:
                    return source, destination
        return None

    def _may_go(self, group: GroupId, source: int, destination: int) -> bool:
        replicas = self.replicas[group]
        machine = self.machine(destination)
        if destination in replicas or any(
            self.machine(node) == machine for node in replicas if node != source
        ):
            return False
        old, new = self.rack(source), self.rack(destination)
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
