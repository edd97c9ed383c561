"""Messages between members of a clique on a carrier without compare-and-set, in msgpack.

Every message says how its sender is, and some pass on what the sender thinks of others. A message from a later version
may have fields that this one does not know; they are skipped.
"""

from enum import IntEnum

import msgspec

CLAIMS_MAX = 512
"""As many as a clique may have members."""
GOSSIP_BYTES_MAX = 256 * 1024
"""512 claims with the longest names."""
NAME_BYTES_MAX = 249


class PeerState(IntEnum):
    """What a member thinks of another. Of two claims with the same incarnation the higher state wins."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What the sender thinks of a worker."""

    worker: str
    incarnation: int
    state: PeerState


class GossipKind(IntEnum):
    ANNOUNCE = 0
    """To all: the sender is here, or leaves."""
    PING = 1
    """To one: answer."""
    PONG = 2
    MEMBERS = 3
    """To a newcomer: the claims name all members that the sender knows."""


class Gossip(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    kind: GossipKind
    worker: str
    """Of the sender."""
    member_id: str
    incarnation: int
    """Grows when the sender refutes a claim about itself, and from one start of its process to the next."""
    settled: bool
    """Whether the sender knows the clique and takes its share."""
    leaving: bool = False
    claims: tuple[Claim, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Gossip)


def encode_gossip(gossip: Gossip) -> bytes:
    return _encoder.encode(gossip)


def decode_gossip(data: bytes) -> Gossip:
    """ValueError for bytes that are no gossip, or more of it than a clique has."""
    if len(data) > GOSSIP_BYTES_MAX:
        raise ValueError(f"gossip of {len(data)} bytes: expected at most {GOSSIP_BYTES_MAX}")
    try:
        gossip = _decoder.decode(data)
    except msgspec.MsgspecError as wrong:
        raise ValueError(f"not gossip: {wrong}") from None
    if len(gossip.claims) > CLAIMS_MAX:
        raise ValueError(f"{len(gossip.claims)} claims: expected at most {CLAIMS_MAX}")
    for name in (gossip.worker, gossip.member_id, *(claim.worker for claim in gossip.claims)):
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"a name of {len(name.encode())} bytes: expected 1 to {NAME_BYTES_MAX}")
    if any(
        not 0 <= number < 2**63 for number in (gossip.incarnation, *(c.incarnation for c in gossip.claims))
    ):
        raise ValueError("an incarnation is not a number from 0 to 2**63 - 1")
    return gossip
