"""Every packet counts once: a sliding window of sequences for each sender.

A sender numbers its packets from 0 in each boot, and each boot has a greater epoch than the one before. Of each sender
the newest epoch is known, the highest sequence in it, and which of the WINDOW sequences below that one have come.

1. A packet of an older epoch is refused; one of a newer epoch begins a new window.
2. A sequence that has come is refused, and so is one below the window: nobody knows whether it has come.
3. Only packets with a valid tag get here, so a stranger can neither move a window nor fill the table.

A receiver that restarts has forgotten all this. What can then be shown to it once more are claims, whose incarnations
make them idempotent, and acks to pings that it has never sent.
"""

from penstock.types import Replica

WINDOW = 1024
"""Sequences. A node sends some 20 packets a second to everybody together, so one may come 50 s late and still count:
longer than anything here waits for an answer."""


class _Window:
    __slots__ = ("epoch", "highest", "seen")

    def __init__(self, epoch: int, sequence: int) -> None:
        self.epoch = epoch
        self.highest = sequence
        self.seen = 1
        """Bit i: sequence highest - i has come."""

    def accept(self, sequence: int) -> bool:
        ahead = sequence - self.highest
        if ahead > 0:
            # A jump by more than the window leaves nothing of it; shifting that far would only take memory.
            kept = self.seen << ahead if ahead < WINDOW else 0
            self.seen = (kept | 1) & ((1 << WINDOW) - 1)
            self.highest = sequence
            return True
        if -ahead >= WINDOW or self.seen >> -ahead & 1:
            return False
        self.seen |= 1 << -ahead
        return True


class ReplayGuard:
    """The windows of all senders, the one that was heard last at the end."""

    def __init__(self, max_senders: int) -> None:
        self._max_senders = max_senders
        self._windows: dict[Replica, _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def accept(self, sender: Replica, epoch: int, sequence: int) -> bool:
        """Whether this is the first time; from then on it is not."""
        window = self._windows.pop(sender, None)
        fresh = window is None or epoch > window.epoch
        if window is None or epoch > window.epoch:
            window = _Window(epoch, sequence)
        elif epoch == window.epoch:
            fresh = window.accept(sequence)
        self._windows[sender] = window
        if len(self._windows) > self._max_senders:
            del self._windows[next(iter(self._windows))]
        return fresh
