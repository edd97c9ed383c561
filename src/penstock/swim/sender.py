"""Sending: seals messages, fills packets up with broadcasts, and collects the effects of one input."""

from penstock.swim.broadcasts import Broadcasts, retransmit_limit
from penstock.swim.packets import FIXED_BYTES, Envelope, Message, encode_message, pack
from penstock.swim.seal import Seal
from penstock.swim.settings import SwimSettings
from penstock.swim.table import MemberTable
from penstock.swim.values import Effect, GossipEndpoint, SendPacket, SendReliable
from penstock.types import NodeId, Replica


class PacketSender:
    """Sends for one boot of one node, and numbers its packets."""

    def __init__(
        self, *, me: Replica, epoch: int, seal: Seal, table: MemberTable, settings: SwimSettings
    ) -> None:
        self._me = me
        self.epoch = epoch
        self._sequence = 0
        self._seal = seal
        self._table = table
        self._settings = settings
        self.broadcasts = Broadcasts()
        self._effects: list[Effect] = []
        self._tagged_only: set[NodeId] = set()
        """Nodes of the version before, which do not read encrypted packets."""

    def set_decrypts(self, node: NodeId, decrypts: bool) -> None:
        """Whether a node reads encrypted packets. It said so when it connected; until then it is taken for granted,
        because a packet that is not read does less harm than one that everybody can read."""
        if decrypts:
            self._tagged_only.discard(node)
        else:
            self._tagged_only.add(node)

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def collect(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def send(
        self, where: GossipEndpoint | NodeId, receiver: Replica, *messages: Message, gossip: bool = True
    ) -> None:
        """A packet to an endpoint, or a frame to a node's connection. `gossip`: fill up the packet with broadcasts."""
        encoded = [encode_message(message) for message in messages]
        if isinstance(where, GossipEndpoint):
            if gossip:
                encoded += self._piggyback(sum(map(len, encoded)))
            self.emit(SendPacket(where, self._close(receiver.node, receiver, encoded)))
        else:
            self.send_reliable(where, receiver, *messages)

    def send_reliable(self, where: GossipEndpoint | NodeId, receiver: Replica, *messages: Message) -> None:
        node = receiver.node if isinstance(where, GossipEndpoint) else where
        packet = self._close(node, receiver, [encode_message(each) for each in messages])
        self.emit(SendReliable(where, packet))

    def send_gossip(self, where: GossipEndpoint, receiver: Replica) -> None:
        """Sends a packet of gossip, if there are broadcasts."""
        claims = self._piggyback(0)
        if claims:
            self.emit(SendPacket(where, self._close(receiver.node, receiver, claims)))

    def _piggyback(self, used: int) -> list[bytes]:
        fixed = FIXED_BYTES + len(self._cluster_id.encode())
        limit = retransmit_limit(self._settings.retransmit_multiplier, self._table.present_count)
        return self.broadcasts.take(self._settings.max_packet_bytes - fixed - used, limit)

    def _close(self, node: NodeId, receiver: Replica, messages: list[bytes]) -> bytes:
        envelope = Envelope(self._cluster_id, self._me, receiver, self.epoch, self._sequence, pack(messages))
        self._sequence += 1
        return self._seal.close(envelope, tagged=node in self._tagged_only)

    @property
    def _cluster_id(self) -> str:
        return self._table.rows[self._me].meta.cluster_id
