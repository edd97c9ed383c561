"""What the members of a consumer group were told, and whether it fits together.

1  In one generation a partition has one owner, whichever coordinator said so.
2  A committed offset that was acknowledged, or that somebody was shown, never goes back: each member goes on from where
   the last one got to, so whoever asks later is told that offset or a later one. Also when the coordinator has failed
   over in between.
3  When the faults are over the group comes to rest: one generation that all members are in and nobody else, in which
   every partition has an owner.
"""

from collections.abc import Iterable, Mapping

from penstock.sim.outcome import Violation

NOTHING = -1
"""No offset was committed yet."""


class Ledger:
    """Of one group. Partitions are those of one topic, by number."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.commits = 0
        self.generations: dict[int, None] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self._reached: dict[int, int] = {}
        """The greatest offset of each partition that was acknowledged or shown."""

    def assigned(self, owner: str, generation: int, partitions: Iterable[int]) -> None:
        """A member was told what it has to work on."""
        self.generations[generation] = None
        for partition in partitions:
            holder = self._owners.setdefault((generation, partition), owner)
            if holder != owner:
                raise Violation(
                    "a partition has one owner in a generation",
                    f"partition {partition} in generation {generation} of {self.group_id}: {holder} and {owner}",
                )

    def acknowledged(self, offsets: Mapping[int, int]) -> None:
        """Commits were answered."""
        self.commits += 1
        for partition, offset in offsets.items():
            self._reached[partition] = max(self._reached.get(partition, NOTHING), offset)

    def reached(self, partition: int) -> int:
        return self._reached.get(partition, NOTHING)

    def shown(self, who: str, partition: int, offset: int, *, reached: int) -> None:
        """Somebody asked for a committed offset, when so much had been `reached`."""
        if offset < reached:
            raise Violation(
                "a committed offset never goes back",
                f"{who} is told {offset} for partition {partition} of {self.group_id}, and {reached} was committed",
            )
        self._reached[partition] = max(self.reached(partition), offset)
