"""Every packet counts once: a sliding window of sequences for each sender.

A sender numbers its packets from 0 in each boot, and each boot has a greater epoch than the one before. Of each sender
the newest epoch is known, the highest sequence in it, and which of the WINDOW sequences below that one have come.

1. A packet of an older epoch is refused; one of a newer epoch begins a new window.
2. A sequence that has come is refused, and so is one below the window: nobody knows whether it has come.
3. Only packets with a valid tag get here, so a stranger can neither move a window nor fill the table.
4. While a node is connected, only the session counts that its handshake named: no other epoch, whichever is greater,
   and no other folder under the same node id. A copy of a data folder has the key and a later epoch; by rule 1 alone a
   few seconds of it would silence the original for as long as it runs.
5. A session that a handshake names counts again although a later one was heard meanwhile, with the window that it had:
   what came of it before is still refused. A nonce makes the handshake fresh, so nobody can replay that.

A receiver that restarts has forgotten all this. What can then be shown to it once more are claims, whose incarnations
make them idempotent, and acks to pings that it has never sent.
"""

from penstock.swim.values import Session
from penstock.types import NodeId, Replica

WINDOW = 1024
"""Sequences. A node sends some 20 packets a second to everybody together, so one may come 50 s late and still count:
longer than anything here waits for an answer."""
SESSIONS_PER_SENDER = 4
"""Windows kept of one sender: its own, and those of a few copies or earlier boots (rule 5)."""


class _Window:
    __slots__ = ("highest", "seen")

    def __init__(self) -> None:
        self.highest = -1
        self.seen = 0
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


class _Sender:
    __slots__ = ("epoch", "windows")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        """The session that counts."""
        self.windows: dict[int, _Window] = {}
        """By epoch, the one that was used last at the end."""

    def window(self) -> _Window:
        """Of the session that counts."""
        window = self.windows.pop(self.epoch, None) or _Window()
        self.windows[self.epoch] = window
        if len(self.windows) > SESSIONS_PER_SENDER:
            del self.windows[next(iter(self.windows))]
        return window


class ReplayGuard:
    """The windows of all senders, the one that was heard last at the end."""

    def __init__(self, max_senders: int) -> None:
        self._max_senders = max_senders
        self._senders: dict[Replica, _Sender] = {}
        self._connected: dict[NodeId, Session] = {}

    def __len__(self) -> int:
        return len(self._senders)

    def connected(self, session: Session) -> None:
        """A handshake has just shown that this is the node's running session (rules 4 and 5)."""
        self._connected[session.replica.node] = session
        self._sender(session.replica, session.epoch).epoch = session.epoch

    def disconnected(self, node: NodeId) -> None:
        self._connected.pop(node, None)

    def rival(self, sender: Replica, epoch: int) -> Session | None:
        """The session of the same node that is connected, if this is another one."""
        session = self._connected.get(sender.node)
        return None if session is None or session == (sender, epoch) else session

    def accept(self, sender: Replica, epoch: int, sequence: int) -> bool:
        """Whether this is the first time; from then on it is not."""
        if self.rival(sender, epoch) is not None:
            return False
        known = self._sender(sender, epoch)
        if epoch < known.epoch:
            return False
        known.epoch = epoch
        return known.window().accept(sequence)

    def _sender(self, replica: Replica, epoch: int) -> _Sender:
        sender = self._senders.pop(replica, None) or _Sender(epoch)
        self._senders[replica] = sender
        if len(self._senders) > self._max_senders:
            del self._senders[next(iter(self._senders))]
        return sender
