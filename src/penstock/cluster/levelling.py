"""Evening out loads with the fewest steps: the one algorithm behind rebalancing replicas and preferred leaders.

A load is a number per node. A step takes one thing (a replica, a leadership) from one node to another, and not every
step is possible: racks and replica sets forbid some. Where the heaviest node can give nothing to the lightest one, a
chain may help: it gives to a third node, and that one passes something else on.

1. A load is level when every node is within one of the mean: between `ceil(mean - 1)` and `floor(mean + 1)`.
2. A chain is worth its steps if its source is at least two above its sink and one of them is off level, or if they are
   three apart (which happens within the level only where racks bind some nodes to a load of their own).
3. So each chain makes the sum of squares smaller, and levelling ends.
4. Where every step is possible, each step takes from the heaviest and gives to the lightest: the steps are as many as
   the surplus above the level or the lack below it, whichever is greater, and fewer would not do.
5. Chains are found breadth first, so a node inside of one is no lighter than its source less one; carried out from the
   sink's end, no prefix of a chain makes the sum of squares greater, and whoever stops in the middle has lost nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")

Step = tuple[int, int, K]
"""From which node, to which, and what."""

Edge = Callable[[int, int, Collection[K]], K | None]
"""What the first node could give to the second one, leaving out what the chain has used already."""


def bounds(load: Mapping[int, int]) -> tuple[int, int]:
    """The least and the most that a level node has (1)."""
    total, count = sum(load.values()), len(load)
    return -((count - total) // count), (total + count) // count


def next_chain(load: Mapping[int, int], edge: Edge[K]) -> list[Step[K]] | None:
    """Steps that make the load more even, in the order to carry them out; None when it is as even as it can be."""
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
    """Puts other replicas first until as many partitions as possible have their leaders evenly over the nodes.

    Only the nodes in `load` take part. Changes both arguments; yields each change: the partition and its new leader.
    """
    # What each node leads that each other one could lead instead. Dictionaries serve as ordered sets.
    led: dict[tuple[int, int], dict[K, None]] = {}
    for key, nodes in replicas.items():
        for other in nodes[1:]:
            led.setdefault((nodes[0], other), {})[key] = None

    def edge(giver: int, taker: int, used: Collection[K]) -> K | None:
        return next((key for key in led.get((giver, taker), ()) if key not in used), None)

    while (chain := next_chain(load, edge)) is not None:
        for giver, taker, key in chain:
            load[giver] -= 1
            load[taker] += 1
            for other in replicas[key][1:]:
                del led[giver, other][key]
            replicas[key] = (taker, *(node for node in replicas[key] if node != taker))
            for other in replicas[key][1:]:
                led.setdefault((taker, other), {})[key] = None
            yield key, taker
