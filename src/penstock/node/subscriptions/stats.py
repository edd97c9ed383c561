"""Counters of push on this node, for monitoring. Counted per frame, and not by subscription, because their number is
unlimited: the lag of a subscription is that of the group of its name."""

import msgspec

ENDINGS = ("closed", "unsubscribed", "inactive", "too_slow", "taken_over", "unavailable")
"""Why subscribers were disconnected; all other reasons are counted together."""
OTHER = "other"


class PushCounts:
    """Counters that only grow."""

    __slots__ = ("acks", "ended", "pushed")

    def __init__(self) -> None:
        self.pushed = 0
        """Pushed messages; each counts as often as it was pushed."""
        self.acks = 0
        """Acks with an effect; one may cover many messages."""
        self.ended = dict.fromkeys((*ENDINGS, OTHER), 0)

    def end(self, code: str) -> None:
        self.ended[code if code in self.ended else OTHER] += 1


class PushFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The counters at one moment."""

    subscribers: int
    pushed: int
    acks: int
    ended: dict[str, int]


NO_PUSH = PushFigures(subscribers=0, pushed=0, acks=0, ended=PushCounts().ended)
