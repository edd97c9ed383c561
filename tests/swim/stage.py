"""A stage for one core: node 1, with a clock that is turned by hand. Everybody else on it is played by the test, which
writes their packets and reads node 1's."""

from collections.abc import Iterable
from random import Random
from typing import NamedTuple, TypeVar

from penstock.swim import (
    Conflict,
    Effect,
    Endpoint,
    MemberChanged,
    MemberMeta,
    Refused,
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
    Seal,
    Table,
    decode_messages,
    encode_message,
    pack,
)
from penstock.types import NodeId, Replica
from tests.swim.village import KEY, meta, replica

T = TypeVar("T")
ME = replica(1)
SOMEWHERE = Endpoint("10.0.0.99", 9192)


class Said(NamedTuple):
    """A packet (to an endpoint) or frame (to a node) of node 1, opened."""

    to: Endpoint | NodeId
    receiver: Replica
    messages: list[Message]


class Stage:
    """Node 1 and the world around it."""

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
        self.seal = Seal(key)
        self.core = Swim(
            meta=about or meta(1),
            last_incarnation=last_incarnation,
            epoch=epoch,
            key=key,
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

    # What the others do

    def letter(
        self,
        sender: Replica,
        *messages: Message,
        to: Replica = ME,
        cluster_id: str = "village",
        epoch: int = 1,
        sequence: int | None = None,
    ) -> bytes:
        number = self._sequences.get(sender, 0) if sequence is None else sequence
        self._sequences[sender] = number + 1
        encoded = pack([encode_message(message) for message in messages])
        return self.seal.close(Envelope(cluster_id, sender, to, epoch, number, encoded))

    def says(self, node: int, *messages: Message, **about: object) -> list[Said]:
        """A packet from that node; what node 1 answers at once."""
        data = self.letter(replica(node), *messages, **about)  # type: ignore[arg-type]
        return self.arrives(data, Endpoint(f"10.0.0.{node}", 9192))

    def arrives(self, data: bytes, source: Endpoint = SOMEWHERE) -> list[Said]:
        return self.opened(self.happened(self.core.step(self.now, source, data)))

    def says_reliably(self, node: int, *messages: Message, **about: object) -> list[Said]:
        data = self.letter(replica(node), *messages, **about)  # type: ignore[arg-type]
        return self.opened(self.happened(self.core.step_reliable(self.now, NodeId(node), data)))

    def knows(self, *nodes: int) -> "Stage":
        """These are alive, have told node 1 so, and it has told everybody what it had to tell."""
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

    # What time does

    def passes(self, duration: float) -> list[Said]:
        """Every deadline on the way is kept."""
        begin, end = len(self.effects), self.now + duration
        while self.core.next_deadline <= end:
            self.now = max(self.now, self.core.next_deadline)
            self.happened(self.core.tick(self.now))
        self.now = end
        return self.opened(self.effects[begin:])

    # What node 1 does and believes

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
    def troubles(self) -> list[Refused | Conflict]:
        return [each for each in self.effects if isinstance(each, Refused | Conflict)]


def only(kind: type[T], said: Iterable[Said]) -> list[T]:
    """The messages of one kind in what was said."""
    return [message for each in said for message in each.messages if isinstance(message, kind)]
