"""Suspicion: the time that an accused member has to object.

It begins with `longest` and falls to `shortest` as other members confirm what the first accuser said, steeply at first:

    longest - (longest - shortest) * log(confirmations + 1) / log(expected + 1)

A healthy accuser is soon joined by others, so real failures are found as fast as by plain SWIM. A node that suspects
everybody because it is slow itself finds nobody to agree, and the accused have time to object.
"""

from math import log, log10

from penstock.swim.settings import SwimSettings
from penstock.types import NodeId


class Suspicion:
    """One member under suspicion. Times in seconds."""

    def __init__(self, now: float, accuser: NodeId, members: int, settings: SwimSettings) -> None:
        self.started = now
        self.shortest = (
            settings.suspicion_multiplier * max(1.0, log10(members)) * settings.probe_interval_ms / 1000
        )
        longest = settings.suspicion_max_multiplier * self.shortest
        # Two of the members are the accuser and the accused. Where the rest could never be enough to confirm,
        # waiting for them would only make small clusters slow.
        self.expected = settings.suspicion_multiplier - 2
        if members - 2 < self.expected:
            self.expected = 0
        self._range = longest - self.shortest if self.expected else 0.0
        self._accusers: dict[NodeId, None] = {accuser: None}

    def confirm(self, accuser: NodeId) -> bool:
        """Whether that is news: another accuser, and one who still counts."""
        if accuser in self._accusers or len(self._accusers) > self.expected:
            return False
        self._accusers[accuser] = None
        return True

    def excuse(self, duration: float) -> None:
        """This node slept for so long; the accused may have objected in vain."""
        self.started += duration

    @property
    def deadline(self) -> float:
        confirmations = len(self._accusers) - 1
        share = log(confirmations + 1) / log(self.expected + 1) if self.expected else 1.0
        return self.started + self.shortest + self._range * (1 - share)
