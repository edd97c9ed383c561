"""Checks what the members of a consumer group were told.

1  In one generation a partition has one owner, whichever coordinator assigned it.
2  A committed offset that was acknowledged, or returned to a member, never goes back: every later fetch returns that
   offset or a later one, also after a failover of the coordinator.
3  After the faults the group becomes stable: one generation with exactly the live members, in which every partition has
   an owner.
"""

from collections.abc import Iterable, Mapping

from penstock.sim.outcome import Violation

NOTHING = -1
"""No offset was committed yet."""


class GroupChecks:
    """The checks of one group. Its partitions are those of one topic, by index."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.commits = 0
        self.generations: dict[int, None] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self._reached: dict[int, int] = {}
        """The greatest offset of each partition that was acknowledged or returned."""

    def assigned(self, owner: str, generation: int, partitions: Iterable[int]) -> None:
        """A member received its assignment."""
        self.generations[generation] = None
        for partition in partitions:
            holder = self._owners.setdefault((generation, partition), owner)
            if holder != owner:
                raise Violation(
                    "a partition has one owner in a generation",
                    f"partition {partition} in generation {generation} of {self.group_id}: {holder} and {owner}",
                )

    def acknowledged(self, offsets: Mapping[int, int]) -> None:
        """Commits were acknowledged."""
        self.commits += 1
        for partition, offset in offsets.items():
            self._reached[partition] = max(self._reached.get(partition, NOTHING), offset)

    def reached(self, partition: int) -> int:
        return self._reached.get(partition, NOTHING)

    def shown(self, who: str, partition: int, offset: int, *, reached: int) -> None:
        """A member fetched a committed offset; `reached` was known to be committed when it asked."""
        if offset < reached:
            raise Violation(
                "a committed offset never goes back",
                f"{who} is told {offset} for partition {partition} of {self.group_id}, and {reached} was committed",
            )
        self._reached[partition] = max(self.reached(partition), offset)
