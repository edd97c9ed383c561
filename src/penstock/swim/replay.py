"""Replay protection: a sliding window of sequences for each sender; every packet is accepted once.

A sender numbers its packets from 0 in each boot, and each boot has a greater epoch than the one before. Of each sender
the guard keeps the newest epoch, the highest sequence in it, and which of the WINDOW sequences below were received.

1. A packet of an older epoch is refused; one of a newer epoch begins a new window.
2. A sequence that was received is refused, and so is one below the window: it is unknown whether it was received.
3. Only packets with a valid tag get here, so a sender without the key can neither move a window nor fill the table.
4. While a node is connected, only the session that its handshake named is accepted: no other epoch, even a greater
   one, and no other folder under the same node id. A copy of a data folder has the key and a later epoch; with rule 1
   alone, a copy that runs for a few seconds would silence the original for as long as it runs.
5. If a handshake names a session, it is accepted again although a later one was heard meanwhile, with its old window:
   packets received before are still refused. The handshake has a nonce, so it cannot be replayed.

A receiver that restarts has forgotten all this. An attacker can then replay claims, which are idempotent because of
their incarnations, and acks to pings that it has never sent.
"""

from penstock.swim.values import Session
from penstock.types import NodeId, Replica

WINDOW = 1024
"""Sequences. A node sends some 20 packets a second in total, so a packet may come 50 s late and is still accepted:
longer than anything here waits for an answer."""
SESSIONS_PER_SENDER = 4
"""Windows kept per sender: that of its session, and those of a few copies or earlier boots (rule 5)."""


class _Window:
    __slots__ = ("highest", "seen")

    def __init__(self) -> None:
        self.highest = -1
        self.seen = 0
        """Bit i: sequence highest - i was received."""

    def accept(self, sequence: int) -> bool:
        ahead = sequence - self.highest
        if ahead > 0:
            # A jump by more than the window clears it; shifting that far would only take memory.
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
        """The session that is accepted."""
        self.windows: dict[int, _Window] = {}
        """By epoch, the last used at the end."""

    def window(self) -> _Window:
        """The window of the session that is accepted."""
        window = self.windows.pop(self.epoch, None) or _Window()
        self.windows[self.epoch] = window
        if len(self.windows) > SESSIONS_PER_SENDER:
            del self.windows[next(iter(self.windows))]
        return window


class ReplayGuard:
    """The windows of all senders, the last heard at the end."""

    def __init__(self, max_senders: int) -> None:
        self._max_senders = max_senders
        self._senders: dict[Replica, _Sender] = {}
        self._connected: dict[NodeId, Session] = {}

    def __len__(self) -> int:
        return len(self._senders)

    def connected(self, session: Session) -> None:
        """A handshake has just proved that this is the node's running session (rules 4 and 5)."""
        self._connected[session.replica.node] = session
        self._sender(session.replica, session.epoch).epoch = session.epoch

    def disconnected(self, node: NodeId) -> None:
        self._connected.pop(node, None)

    def rival(self, sender: Replica, epoch: int) -> Session | None:
        """The session of the same node that is connected, if this is another one."""
        session = self._connected.get(sender.node)
        return None if session is None or session == (sender, epoch) else session

    def accept(self, sender: Replica, epoch: int, sequence: int) -> bool:
        """Whether the packet was not received before; records it."""
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
