"""What was pushed on this node, as numbers for monitoring. Counted per frame; there are none by subscription, of which
there may be any number: their lag is that of the group of their name."""

import msgspec

ENDINGS = ("closed", "unsubscribed", "inactive", "too_slow", "taken_over", "unavailable")
"""Why subscribers go, as far as it is told apart."""
OTHER = "other"


class PushCounts:
    """Counters that only grow."""

    __slots__ = ("acks", "ended", "pushed")

    def __init__(self) -> None:
        self.pushed = 0
        """Messages, as often as each was pushed."""
        self.acks = 0
        """Acks with news; one may stand for many messages."""
        self.ended = dict.fromkeys((*ENDINGS, OTHER), 0)

    def end(self, code: str) -> None:
        self.ended[code if code in self.ended else OTHER] += 1


class PushFigures(msgspec.Struct, frozen=True, kw_only=True):
    """At one moment."""

    subscribers: int
    pushed: int
    acks: int
    ended: dict[str, int]


NO_PUSH = PushFigures(subscribers=0, pushed=0, acks=0, ended=PushCounts().ended)
