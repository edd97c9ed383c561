"""How a leader sends its log to its peers (invariants 7 to 9). progress.py has the three states of a peer."""

from typing import TYPE_CHECKING

from penstock.errors import CorruptLog
from penstock.raft.effects import Send, SendPrefix, SuspectEntries
from penstock.raft.messages import Append, AppendReply, InstallPrefix
from penstock.raft.progress import Peer, PeerState
from penstock.types import Replica

if TYPE_CHECKING:
    from penstock.raft.core import Raft


class Replication:
    """The peers of a leader, without itself, and the messages under way to each."""

    def __init__(self, core: "Raft") -> None:
        self.core = core
        self.peers: dict[Replica, Peer] = {}

    def take_members(self, now: float, others: list[Replica]) -> None:
        old, end_index = self.peers, self.core.log.end_index
        self.peers = {replica: old.get(replica) or Peer(replica, end_index, now) for replica in others}
        self.core.wake_at(now + self.core.settings.resend_timeout_s)

    # ---- sending

    def feed_all(self, now: float) -> None:
        shared: Append | None = None
        for peer in self.peers.values():
            shared = self.feed(now, peer, shared)

    def feed(self, now: float, peer: Peer, shared: Append | None = None) -> Append | None:
        """Sends all that may be sent. `shared` is an append made for the peer before: most peers need the same one."""
        core = self.core
        if now < peer.damage_pause_until:
            return shared
        if peer.state is not PeerState.REPLICATE:
            if peer.state is PeerState.PROBE and not peer.probe_sent:
                self._probe(now, peer)
            return shared
        end_index = core.log.end_index
        while peer.next_index < end_index and peer.has_room(core.settings):
            if shared is None or shared.prev_index != peer.next_index:
                shared = self._read(now, peer)
                if shared is None:
                    return None
            if not peer.inflight:
                peer.progress_at = now
                core.wake_at(now + core.settings.resend_timeout_s)
            peer.sent(shared.end_index, len(shared.entries))
            core.out.append(Send(peer.replica, shared))
        return shared

    def _probe(self, now: float, peer: Peer) -> None:
        message = self._read(now, peer)
        if message is not None:
            self._ask(now, peer, message)

    def _ask(self, now: float, peer: Peer, message: Append) -> None:
        peer.probe_sent = True
        peer.progress_at = now
        self.core.wake_at(now + self.core.settings.resend_timeout_s)
        self.core.out.append(Send(peer.replica, message))

    def _read(self, now: float, peer: Peer) -> Append | None:
        """An append with the entries that the peer needs next; None if they are deleted, or cannot be read."""
        core = self.core
        log = core.log
        index = peer.next_index
        prev_term = self._term_before(index)
        if prev_term is None:
            self._need_prefix(now, peer)
            return None
        try:
            entries, end_index = log.read_entries(index, core.settings.max_append_bytes)
        except CorruptLog:
            self._pause_for_damage(now, peer, index)
            return None
        return Append(core.term, index, prev_term, end_index, core.commit_index, log.start_offset, entries)

    def _without_entries(self, index: int) -> Append | None:
        """An append without entries: it asks how far the peer is, and tells what is committed."""
        core = self.core
        prev_term = self._term_before(index)
        if prev_term is None:
            return None
        return Append(core.term, index, prev_term, index, core.commit_index, core.log.start_offset)

    def _term_before(self, index: int) -> int | None:
        """None where the log has been deleted, also at 0: the term there is known, but no entry can be read."""
        log = self.core.log
        return log.term_before(index) if index >= log.first_index else None

    def _pause_for_damage(self, now: float, peer: Peer, index: int) -> None:
        """Pauses the peer: the entries behind this boundary cannot be read or stored as written (see progress.py)."""
        peer.probe_at(peer.next_index)
        peer.probe_sent = True
        peer.pause_for_damage(now)
        self.core.wake_at(peer.damage_pause_until)
        self.core.out.append(SuspectEntries(index, peer.replica))

    def _need_prefix(self, now: float, peer: Peer) -> None:
        peer.await_prefix(now)
        self.core.wake_at(now + self.core.settings.prefix_timeout_s)
        self.core.out.append(SendPrefix(peer.replica))

    def install_prefix(self, prefix: bytes) -> InstallPrefix:
        core = self.core
        first_index = core.log.first_index
        term = core.log.term_before(first_index)
        # A replica that joined later never knew the founding configuration. The oldest one that it knows is committed
        # by the time it leads.
        config = core.configs.at(first_index) or core.configs.oldest
        assert term is not None
        assert config is not None
        return InstallPrefix(core.term, first_index, term, config, prefix)

    def prefix_deleted(self, now: float) -> None:
        for peer in self.peers.values():
            if peer.state is not PeerState.PREFIX and peer.next_index < self.core.log.first_index:
                self._need_prefix(now, peer)

    def tell_commit(self) -> None:
        """Tells the peers that lack nothing; the others learn it with the entries that they lack."""
        end_index = self.core.log.end_index
        for peer in self.peers.values():
            if peer.state is PeerState.REPLICATE and peer.next_index == end_index:
                self.tell(peer, end_index)

    def tell(self, peer: Peer, index: int) -> None:
        message = self._without_entries(index)
        if message is not None:
            self.core.out.append(Send(peer.replica, message))

    # ---- replies

    def accepted(self, now: float, peer: Peer, reply: AppendReply) -> bool:
        """True if the peer has flushed more than was known."""
        received = reply.received_index
        if received < peer.match_index or (not received and peer.next_index):
            # A later reply overtook this one, or the follower does not know yet what matches, perhaps because it has
            # restarted. At 0 there is nothing to tell it: a message under way, or the next retry, brings it on.
            if peer.matched and peer.match_index:
                self.tell(peer, peer.match_index)
            self.core.wake_at(now)
            return False
        if peer.state is PeerState.REPLICATE:
            if peer.received(received):
                peer.progress_at = now
        elif received >= self.core.log.first_index:
            peer.matched = True
            peer.replicate_from(received)
        if reply.match_index <= peer.match_index:
            return False
        peer.match_index = reply.match_index
        peer.progress_at = now
        if now >= peer.damage_pause_until:
            peer.damage_pause_s = 0.0
        return True

    def rejected(self, now: float, peer: Peer, reply: AppendReply) -> None:
        """Goes back to where the logs may agree, by the follower's hint and the leader's own terms."""
        if now < peer.damage_pause_until:
            return
        if peer.state is PeerState.PREFIX or (peer.matched and reply.rejected_index <= peer.match_index):
            return
        if peer.state is PeerState.PROBE and reply.rejected_index != peer.next_index:
            return
        log = self.core.log
        index = min(reply.hint_index, reply.rejected_index - 1, log.end_of_term_index(reply.hint_term))
        index = max(index, peer.match_index)
        if index < log.first_index:
            self._need_prefix(now, peer)
            return
        peer.probe_at(log.floor(index))
        self._probe(now, peer)

    def refused(self, now: float, peer: Peer, index: int) -> None:
        """The peer could not store the entries behind `index`, up to which it has matched: they may be damaged here."""
        log = self.core.log
        if now < peer.damage_pause_until or peer.state is PeerState.PREFIX:
            return
        if max(peer.match_index, log.first_index) <= index < log.end_index:
            peer.probe_at(log.floor(index))
            self._pause_for_damage(now, peer, index)

    # ---- time

    def retry_stuck(self, now: float) -> None:
        for peer in self.peers.values():
            if self._is_stuck(now, peer):
                self._retry(now, peer)

    def deadline(self) -> float:
        """When the first peer that is behind will be stuck."""
        behind = [peer for peer in self.peers.values() if not peer.paused and self._is_behind(peer)]
        return min(map(self._stuck_at, behind), default=float("inf"))

    def _stuck_at(self, peer: Peer) -> float:
        return max(peer.progress_at + self._timeout_s(peer), peer.damage_pause_until)

    def _is_behind(self, peer: Peer) -> bool:
        return peer.state is not PeerState.REPLICATE or peer.match_index < self.core.log.end_index

    def _timeout_s(self, peer: Peer) -> float:
        settings = self.core.settings
        return settings.prefix_timeout_s if peer.state is PeerState.PREFIX else settings.resend_timeout_s

    def _is_stuck(self, now: float, peer: Peer) -> bool:
        """Whether a peer is behind and makes no progress (8)."""
        if not self._is_behind(peer):
            return False
        if peer.paused:
            return now - peer.contact_at < self.core.settings.election_timeout_s
        return now >= self._stuck_at(peer)

    def _retry(self, now: float, peer: Peer) -> None:
        """A message was lost, or the peer is slow. An append without entries, at an index that matches, asks how far
        the peer is."""
        if now - peer.contact_at >= self.core.settings.election_timeout_s:
            # The answer to a heartbeat ends the pause. Probing a dead node, which has many groups, would be useless
            # work.
            peer.probe_at(peer.match_index if peer.matched else peer.next_index)
            peer.paused = peer.probe_sent = True
            return
        peer.paused = False
        if peer.state is PeerState.PREFIX:
            self._need_prefix(now, peer)
            return
        question = self._without_entries(peer.match_index) if peer.matched else None
        if question is None:
            peer.probe_at(peer.next_index)
            self._probe(now, peer)
        else:
            peer.probe_at(peer.match_index)
            self._ask(now, peer, question)
