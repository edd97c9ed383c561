"""Levelling loads with the fewest steps: the algorithm that balances replicas and preferred leaders.

A load is a number per node. A step moves one item (a replica, a leadership) from one node to another, and not every
step is possible: racks and replica sets forbid some. Where the heaviest node can move nothing to the lightest one, a
chain may help: it moves an item to a third node, and that one moves another item on.

1. A load is level when every node is within one of the mean: between `ceil(mean - 1)` and `floor(mean + 1)`.
2. A chain is worth its steps if its source is at least two above its sink and one of them is off level, or if they are
   three apart (which happens within the level only where racks restrict the load of some nodes).
3. So each chain reduces the sum of squares, and levelling ends.
4. Where every step is possible, each step moves from the heaviest to the lightest node: the number of steps is the
   surplus above the level or the lack below it, whichever is greater, and that is the minimum.
5. Chains are found breadth first, so a node inside a chain is no lighter than its source less one. Carried out from the
   sink's end, no prefix of a chain increases the sum of squares, so stopping in the middle does no harm.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")

Step = tuple[int, int, K]
"""Source node, destination node, item."""

Edge = Callable[[int, int, Collection[K]], K | None]
"""An item that can move from the first node to the second one, other than those that the chain uses already."""


def bounds(load: Mapping[int, int]) -> tuple[int, int]:
    """The least and the greatest load of a level node (1)."""
    total, count = sum(load.values()), len(load)
    return -((count - total) // count), (total + count) // count


def next_chain(load: Mapping[int, int], edge: Edge[K]) -> list[Step[K]] | None:
    """Steps that make the load more even, in the order to carry them out; None if it is as even as possible."""
    if not load:
        return None
    low, high = bounds(load)
    lightest_first = sorted(load, key=lambda node: (load[node], node))
    for source in sorted(load, key=lambda node: (-load[node], node)):

        def worth(sink: int, source: int = source) -> bool:
            apart = load[source] - load[sink]
            return apart >= 3 or (apart == 2 and (load[source] > high or load[sink] < low))

        if worth(lightest_first[0]):
            chain = _shortest(source, lightest_first, worth, edge)
            if chain is not None:
                return chain
    return None


def _shortest(
    source: int, nodes: list[int], worth: Callable[[int], bool], edge: Edge[K]
) -> list[Step[K]] | None:
    """Each entry of `chains` is a chain from its node back to the source: already in the order of (5)."""
    chains: dict[int, list[Step[K]]] = {source: []}
    frontier = [source]
    while frontier:
        reached = []
        for node in frontier:
            used = [thing for _, _, thing in chains[node]]
            for other in nodes:
                thing = None if other in chains else edge(node, other, used)
                if thing is None:
                    continue
                chains[other] = [(node, other, thing), *chains[node]]
                if worth(other):
                    return chains[other]
                reached.append(other)
        frontier = reached
    return None


def level_leaders(replicas: dict[K, tuple[int, ...]], load: dict[int, int]) -> Iterator[tuple[K, int]]:
    """Changes the preferred leaders (first replicas) until they are spread as evenly as possible over the nodes.

    Only the nodes in `load` take part. Changes both arguments; yields each change: the partition and its new leader.
    """
    # By pair of nodes: partitions that the first leads and the second could lead. Dictionaries serve as ordered sets.
    led: dict[tuple[int, int], dict[K, None]] = {}
    for key, nodes in replicas.items():
        for other in nodes[1:]:
            led.setdefault((nodes[0], other), {})[key] = None

    def edge(source: int, destination: int, used: Collection[K]) -> K | None:
        return next((key for key in led.get((source, destination), ()) if key not in used), None)

    while (chain := next_chain(load, edge)) is not None:
        for source, destination, key in chain:
            load[source] -= 1
            load[destination] += 1
            for other in replicas[key][1:]:
                del led[source, other][key]
            replicas[key] = (destination, *(node for node in replicas[key] if node != destination))
            for other in replicas[key][1:]:
                led.setdefault((destination, other), {})[key] = None
            yield key, destination
