"""Local health: how much this node doubts itself.

A node that is starved of CPU, or whose own link is bad, sees everybody else fail. Lifeguard's remedy: every sign that
the fault is here (a missed probe whose helpers are silent too, an accusation that had to be refuted, a long sleep)
adds to a score, every probe that succeeds takes from it, and all patience is multiplied by the score plus one.
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
        """A time that is meant for a healthy node, as long as this one needs it."""
        return duration * (self.score + 1)
