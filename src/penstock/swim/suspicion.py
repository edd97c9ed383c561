"""Suspicion: the time that a suspected member has to refute the claim.

It begins with `longest` and falls to `shortest` as other members confirm the suspicion, steeply at first:

    longest - (longest - shortest) * log(confirmations + 1) / log(expected + 1)

Other members soon confirm a real failure, so it is detected as fast as by plain SWIM. If a node suspects all others
because it is slow itself, no other member confirms it, and the suspected members have time to refute it.
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
        # Two of the members are the accuser and the suspect. In a small cluster the others can never be enough to
        # confirm; waiting for them would only delay detection.
        self.expected = settings.suspicion_multiplier - 2
        if members - 2 < self.expected:
            self.expected = 0
        self._range = longest - self.shortest if self.expected else 0.0
        self._accusers: dict[NodeId, None] = {accuser: None}

    def confirm(self, accuser: NodeId) -> bool:
        """Whether it is another accuser, and still counts."""
        if accuser in self._accusers or len(self._accusers) > self.expected:
            return False
        self._accusers[accuser] = None
        return True

    def extend(self, duration: float) -> None:
        """This node was paused for so long; it may have missed the refutation."""
        self.started += duration

    @property
    def deadline(self) -> float:
        confirmations = len(self._accusers) - 1
        share = log(confirmations + 1) / log(self.expected + 1) if self.expected else 1.0
        return self.started + self.shortest + self._range * (1 - share)
