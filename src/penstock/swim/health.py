"""Local health: the evidence that this node itself is slow or badly connected.

A node that is starved of CPU, or whose own link is bad, sees all others fail. Lifeguard's remedy: every sign of a local
fault (a missed probe whose helpers are silent too, an accusation that had to be refuted, a long pause) adds to a score,
every probe that succeeds subtracts from it, and all timeouts are multiplied by the score plus one.
"""


class LocalHealth:
    """0 is healthy."""

    def __init__(self, max_score: int) -> None:
        self._max_score = max_score
        self.score = 0

    def worsen(self, by: int = 1) -> None:
        self.score = min(self._max_score, self.score + by)

    def improve(self) -> None:
        self.score = max(0, self.score - 1)

    def stretch(self, duration: float) -> float:
        """A timeout of a healthy node, scaled for this one."""
        return duration * (self.score + 1)
