"""A harness for one core: node 1, with a clock that tests advance. The test plays all other nodes: it
writes their packets and reads node 1's."""

from collections.abc import Iterable
from random import Random
from typing import NamedTuple, TypeVar

from penstock.swim import (
    Conflict,
    Effect,
    GossipEndpoint,
    MemberChanged,
    MemberMeta,
    PacketRefused,
    SaveIncarnation,
    SendPacket,
    SendReliable,
    State,
    Swim,
    SwimSettings,
)
from penstock.swim.packets import (
    MAX_RELIABLE_BYTES,
    Alive,
    Envelope,
    Message,
    Table,
    decode_messages,
    encode_message,
    pack,
)
from penstock.swim.seal import Seal
from penstock.types import NodeId, Replica
from tests.swim.simulated_cluster import KEY, SALT, meta, replica

T = TypeVar("T")
ME = replica(1)
OTHER_ENDPOINT = GossipEndpoint("10.0.0.99", 9192)


class Said(NamedTuple):
    """A packet (to an endpoint) or frame (to a node) of node 1, opened."""

    to: GossipEndpoint | NodeId
    receiver: Replica
    messages: list[Message]


class CoreHarness:
    """Node 1, its clock and the packets of the other nodes."""

    def __init__(
        self,
        *,
        settings: SwimSettings | None = None,
        about: MemberMeta | None = None,
        last_incarnation: int = -1,
        epoch: int = 1,
        key: bytes | None = KEY,
    ) -> None:
        self.now = 100.0
        self.seal = Seal(key, SALT)
        self.core = Swim(
            meta=about or meta(1),
            last_incarnation=last_incarnation,
            epoch=epoch,
            key=key,
            salt=bytes(16),
            settings=settings or SwimSettings(),
            random=Random(7),
            now=self.now,
        )
        self.effects: list[Effect] = []
        self._sequences: dict[Replica, int] = {}
        self.happened(self.core.start(self.now))

    def happened(self, effects: list[Effect]) -> list[Effect]:
        self.effects += effects
        return effects

    # Input from other nodes

    def seal_packet(
        self,
        sender: Replica,
        *messages: Message,
        to: Replica = ME,
        cluster_id: str = "cluster",
        epoch: int = 1,
        sequence: int | None = None,
    ) -> bytes:
        number = self._sequences.get(sender, 0) if sequence is None else sequence
        self._sequences[sender] = number + 1
        encoded = pack([encode_message(message) for message in messages])
        return self.seal.close(Envelope(cluster_id, sender, to, epoch, number, encoded))

    def says(self, node: int, *messages: Message, **about: object) -> list[Said]:
        """Delivers a packet from that node, and returns node 1's immediate responses."""
        data = self.seal_packet(replica(node), *messages, **about)  # type: ignore[arg-type]
        return self.arrives(data, GossipEndpoint(f"10.0.0.{node}", 9192))

    def arrives(self, data: bytes, source: GossipEndpoint = OTHER_ENDPOINT) -> list[Said]:
        return self.opened(self.happened(self.core.step(self.now, source, data)))

    def says_reliably(self, node: int, *messages: Message, **about: object) -> list[Said]:
        data = self.seal_packet(replica(node), *messages, **about)  # type: ignore[arg-type]
        return self.opened(self.happened(self.core.step_reliable(self.now, NodeId(node), data)))

    def knows(self, *nodes: int) -> "CoreHarness":
        """These nodes are alive and have told node 1 so, and node 1 has no gossip left to send."""
        for node in nodes:
            self.says(node, Alive(0, meta(node)))
        if nodes:
            self.says_reliably(nodes[0], Table(True, ()))
        self.has_told_everything()
        self.effects.clear()
        return self

    def has_told_everything(self) -> None:
        """Nothing is left to gossip."""
        while self.core._sender.broadcasts:
            self.core._sender.broadcasts.take(10_000, 1)

    # Time

    def passes(self, duration: float) -> list[Said]:
        """Ticks the core at every deadline on the way."""
        begin, end = len(self.effects), self.now + duration
        while self.core.next_deadline <= end:
            self.now = max(self.now, self.core.next_deadline)
            self.happened(self.core.tick(self.now))
        self.now = end
        return self.opened(self.effects[begin:])

    # Output and beliefs of node 1

    def opened(self, effects: Iterable[Effect]) -> list[Said]:
        said = []
        for effect in effects:
            if isinstance(effect, SendPacket | SendReliable):
                envelope = self.seal.open(effect.data, MAX_RELIABLE_BYTES)
                said.append(Said(effect.to, envelope.receiver, decode_messages(envelope)))
        return said

    def state(self, node: int) -> State | None:
        member = self.core.members.get(replica(node))
        return member.state if member is not None else None

    @property
    def changes(self) -> list[tuple[int, State]]:
        return [(each.member.node, each.state) for each in self.effects if isinstance(each, MemberChanged)]

    @property
    def saved(self) -> list[int]:
        return [each.incarnation for each in self.effects if isinstance(each, SaveIncarnation)]

    @property
    def troubles(self) -> list[PacketRefused | Conflict]:
        return [each for each in self.effects if isinstance(each, PacketRefused | Conflict)]


def only(kind: type[T], said: Iterable[Said]) -> list[T]:
    """The messages of one kind among all that were sent."""
    return [message for each in said for message in each.messages if isinstance(message, kind)]
