"""The inter-node port, TCP and UDP, from a stranger that does not have the cluster's key."""

import random
import socket
from contextlib import suppress
from typing import Any

import msgspec

from penstock.config import Address
from penstock.node.peers.frames import INTRODUCTION, REFUSAL
from penstock.node.peers.handshake import KEYED, MAGIC, NEWEST_VERSION, NONCE_SIZE, frame
from penstock.node.peers.hello import Introduction, PeerHello, encode
from penstock.swim import GossipEndpoint, MemberMeta
from penstock.swim.packets import (
    ANY_RECEIVER,
    Ack,
    Alive,
    Dead,
    Envelope,
    Left,
    Message,
    Nack,
    Ping,
    Suspect,
    encode_message,
    pack,
)
from penstock.swim.seal import SALT_BYTES, Seal
from penstock.types import NodeId, Replica
from tools.hostile.attack import HOST, Attack
from tools.hostile.generator.strikes import strike_all
from tools.hostile.generator.values import hostile_integer, hostile_string

ANSWER_SECONDS = 0.1
READ_BYTES = 65_536
PACKETS = 20
LARGEST_DATAGRAM = 60_000
OTHER_KEY = b"f" * 64


def attack_peers(attack: Attack) -> None:
    strike_all(attack, PeerBytes(attack))


def attack_gossip(attack: Attack) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        strike_all(attack, GossipPackets(attack, sender))


class PeerBytes:
    """Handshakes that are wrong, and bytes that are none."""

    name = "inter-node-bytes"

    def __init__(self, attack: Attack) -> None:
        self._attack = attack

    def strike(self, number: int, chance: random.Random) -> str:
        node = self._attack.brokers.nodes[number % len(self._attack.brokers.nodes)]
        one = self._attack.connect(node.node.cluster_port)
        one.settimeout(ANSWER_SECONDS)
        opening = preamble(chance)
        try:
            with suppress(OSError):
                one.sendall(opening)
                one.recv(READ_BYTES)
                one.sendall(introduction(chance))
                one.recv(READ_BYTES)
        finally:
            self._attack.close(one, reset=chance.random() < 0.3)
        return f"{node.name}, {opening[:8]!r}"


def preamble(chance: random.Random) -> bytes:
    """The first bytes of a node, mostly as they should be."""
    wish = chance.randrange(8)
    if wish == 0:
        return chance.randbytes(chance.choice((1, 40, 100_000)))
    versions = (1, 255) if wish == 1 else (255, 255) if wish == 2 else (NEWEST_VERSION, NEWEST_VERSION)
    flags = chance.choice((0, 255)) if wish == 3 else KEYED
    whole = MAGIC + bytes([*versions, flags, 0]) + chance.randbytes(NONCE_SIZE)
    return whole[: chance.randrange(1, len(whole))] if wish == 4 else whole


def introduction(chance: random.Random) -> bytes:
    """The frame after the preamble, with a proof that is none."""
    wish = chance.randrange(6)
    if wish == 0:
        length = chance.choice((0, 1, 2**31 - 1, 2**32 - 1))
        return length.to_bytes(4, "big") + bytes([INTRODUCTION]) + chance.randbytes(1_000)
    if wish == 1:
        return frame(
            chance.choice((REFUSAL, 3, 16, 19, 255)), chance.randbytes(chance.choice((0, 10, 10_000)))
        )
    body: bytes = encode(Introduction(_hello(chance)))
    if wish == 2:
        body = msgspec.msgpack.encode(_damaged(chance, msgspec.msgpack.decode(body)))
    return frame(INTRODUCTION, chance.randbytes(32) + body)


def _hello(chance: random.Random) -> PeerHello:
    address = Address(HOST, chance.randrange(1, 65_536))
    return PeerHello(
        node=NodeId(chance.choice((1, 2, 3, 2**31 - 1))),
        incarnation=abs(hostile_integer(chance, 63)),
        run=abs(hostile_integer(chance, 63)),
        cluster=address,
        kafka=address,
        version=hostile_string(chance)[:255],
    )


def _damaged(chance: random.Random, value: Any) -> Any:
    """The same structure with some other values in it."""
    if isinstance(value, dict):
        return {name: _damaged(chance, one) for name, one in value.items()}
    if isinstance(value, list):
        return [_damaged(chance, one) for one in value]
    if chance.random() < 0.7:
        return value
    return chance.choice((None, -1, [], hostile_string(chance), hostile_integer(chance, 64), [[]] * 1_000))


class GossipPackets:
    """Packets of a node that is not in the cluster, and bytes that are none."""

    name = "gossip-packets"

    def __init__(self, attack: Attack, sender: socket.socket) -> None:
        self._attack = attack
        self._sender = sender

    def strike(self, number: int, chance: random.Random) -> str:
        node = self._attack.brokers.nodes[number % len(self._attack.brokers.nodes)]
        packet = gossip_packet(chance)
        for _ in range(PACKETS):  # the same again and again: a replay
            self._sender.sendto(packet, (HOST, node.node.cluster_port))
        return f"{node.name}, {len(packet)} bytes, {packet[:16]!r}"


def gossip_packet(chance: random.Random) -> bytes:
    wish = chance.randrange(6)
    if wish == 0:
        return chance.randbytes(chance.choice((0, 1, 2, 18, 1_200, LARGEST_DATAGRAM)))
    sender = Replica(NodeId(chance.choice((1, 2, 3, 9))), abs(hostile_integer(chance, 63)))
    messages = [encode_message(_gossip(chance)) for _ in range(chance.choice((0, 1, 3, 300)))]
    epoch, sequence = abs(hostile_integer(chance, 63)), abs(hostile_integer(chance, 63))
    envelope = Envelope("", sender, ANY_RECEIVER, epoch, sequence, pack(messages))
    packet = bytearray(
        Seal(chance.choice((None, OTHER_KEY)), chance.randbytes(SALT_BYTES)).close(envelope)[
            :LARGEST_DATAGRAM
        ]
    )
    if wish == 1:
        packet[chance.randrange(len(packet))] ^= 1 << chance.randrange(8)
    if wish == 2:
        del packet[chance.randrange(len(packet)) :]
    return bytes(packet)


def _gossip(chance: random.Random) -> Message:
    subject = Replica(NodeId(chance.choice((1, 2, 3))), abs(hostile_integer(chance, 63)))
    incarnation, elsewhere = (
        chance.choice((0, 7, 2**48 - 1)),
        GossipEndpoint(HOST, chance.randrange(1, 65_536)),
    )
    meta = MemberMeta(node=subject.node, folder_incarnation=7, cluster=elsewhere, kafka=elsewhere)
    return chance.choice(
        (
            Ping(chance.getrandbits(62)),
            Ack(chance.getrandbits(62)),
            Nack(chance.getrandbits(62)),
            Alive(incarnation, meta),
            Suspect(incarnation, subject, NodeId(2)),
            Dead(incarnation, subject),
            Left(incarnation, subject),
        )
    )
