"""Packets decode to what was encoded, and all other bytes are refused."""

from contextlib import suppress
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.swim import GossipEndpoint, MemberMeta, PacketError, PacketRefusal, State
from penstock.swim.packets import (
    ANY_RECEIVER,
    FIXED_BYTES,
    MAX_ALIVE_BYTES,
    MAX_MESSAGES,
    Ack,
    Alive,
    Dead,
    Envelope,
    IndirectPing,
    Left,
    Message,
    Nack,
    Ping,
    Row,
    Suspect,
    Table,
    decode_messages,
    encode_message,
    pack,
)
from penstock.swim.seal import Seal
from penstock.swim.values import MAX_INCARNATION, MAX_META_BYTES
from penstock.types import NodeId, Replica
from tests.swim.simulated_cluster import KEY, SALT, meta, replica

MAX_BYTES = 1400

numbers = st.integers(0, 2**63 - 1)
incarnations = st.integers(0, MAX_INCARNATION - 1)
replicas = st.builds(Replica, st.integers(0, 2**31 - 1).map(NodeId), numbers)
hosts = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=40)
endpoints = st.builds(GossipEndpoint, hosts, st.integers(0, 65535))
metas = st.builds(
    MemberMeta,
    node=st.integers(0, 2**31 - 1),
    folder_incarnation=numbers,
    cluster_id=st.text(max_size=22),
    cluster=endpoints,
    kafka=st.none() | endpoints,
    http=st.none() | endpoints,
    rack=st.text(max_size=20),
    version=st.text(max_size=10),
    payload_version=numbers,
)
messages = st.one_of(
    st.builds(Ping, numbers),
    st.builds(IndirectPing, numbers, replicas),
    st.builds(Ack, numbers),
    st.builds(Nack, numbers),
    st.builds(Alive, incarnations, metas),
    st.builds(Suspect, incarnations, replicas, st.integers(0, 2**31 - 1).map(NodeId)),
    st.builds(Dead, incarnations, replicas),
    st.builds(Left, incarnations, replicas),
    st.builds(
        Table, st.booleans(), st.lists(st.builds(Row, st.sampled_from(State), incarnations, metas)).map(tuple)
    ),
)


def envelope(*told: Message, cluster_id: str = "cluster") -> Envelope:
    return Envelope(cluster_id, replica(2), replica(1), 5, 17, pack([encode_message(each) for each in told]))


@given(st.lists(messages, max_size=5), replicas, replicas, numbers, numbers, st.sampled_from([KEY, None]))
def test_a_sealed_packet_opens_unchanged(
    told: list[Message], sender: Replica, receiver: Replica, epoch: int, sequence: int, key: bytes | None
) -> None:
    encoded = pack([encode_message(message) for message in told])
    sealed = Seal(key, SALT).close(Envelope("cluster", sender, receiver, epoch, sequence, encoded))
    opened = Seal(key, SALT).open(sealed, 10**6)
    assert (opened.sender, opened.receiver, opened.epoch, opened.sequence) == (
        sender,
        receiver,
        epoch,
        sequence,
    )
    assert decode_messages(opened) == told


@given(st.binary(max_size=200), st.sampled_from([KEY, None]))
def test_random_bytes_raise_one_kind_of_error(data: bytes, key: bytes | None) -> None:
    """Rule 1."""
    with pytest.raises(PacketError):
        decode_messages(Seal(key, SALT).open(data, MAX_BYTES))


@settings(max_examples=300)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_garbage_body_sealed_with_the_key_raises_the_same_error(body: bytes, message: bytes) -> None:
    for content in (body, _raw_envelope(message)):
        with suppress(PacketError):
            decode_messages(Seal(None, SALT).open(b"\x01\x00" + content, MAX_BYTES))


def _raw_envelope(message: bytes) -> bytes:
    whole = msgspec.msgpack.encode(["cluster", [2, 1002], [1, 1001], 5, 17, [0]])
    return whole[:-1] + message


def test_any_change_of_any_byte_is_detected() -> None:
    """Rule 2."""
    sealed = Seal(KEY, SALT).close(envelope(Ping(1), Alive(3, meta(2))))
    for position in range(len(sealed)):
        forged = bytearray(sealed)
        forged[position] ^= 1 << (position % 8)
        with pytest.raises(PacketError):
            Seal(KEY, SALT).open(bytes(forged), MAX_BYTES)


def test_every_shorter_and_longer_packet_is_refused() -> None:
    sealed = Seal(KEY, SALT).close(envelope(Ping(1)))
    for length in range(len(sealed)):
        with pytest.raises(PacketError):
            Seal(KEY, SALT).open(sealed[:length], MAX_BYTES)
    with pytest.raises(PacketError):
        Seal(KEY, SALT).open(sealed + b"\0", MAX_BYTES)


def test_randomly_changed_packets_raise_no_unexpected_error() -> None:
    random = Random(3)
    whole = Seal(None, SALT).close(
        envelope(Ping(1), Alive(3, meta(2)), Table(False, (Row(State.DEAD, 1, meta(3)),)))
    )
    for _ in range(5000):
        bent = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            bent[random.randrange(2, len(bent))] = random.randrange(256)
        with suppress(PacketError):
            decode_messages(Seal(None, SALT).open(bytes(bent), MAX_BYTES))


@pytest.mark.parametrize(
    ("sealed_with", "opened_with"), [(b"one key", b"another"), (None, b"a key"), (b"a key", None)]
)
def test_a_packet_of_another_key_is_refused_as_such(
    sealed_with: bytes | None, opened_with: bytes | None
) -> None:
    """Rule 3."""
    with pytest.raises(PacketError) as refused:
        Seal(opened_with, SALT).open(Seal(sealed_with, SALT).close(envelope(Ping(1))), MAX_BYTES)
    assert refused.value.reason is PacketRefusal.KEY


def test_a_packet_of_another_version_is_refused_as_such() -> None:
    sealed = Seal(KEY, SALT).close(envelope(Ping(1)))
    with pytest.raises(PacketError, match="version 2") as refused:
        Seal(KEY, SALT).open(b"\x02" + sealed[1:], MAX_BYTES)
    assert refused.value.reason is PacketRefusal.VERSION


def test_a_packet_above_the_limit_is_refused_before_it_is_read() -> None:
    sealed = Seal(KEY, SALT).close(envelope(*[Ping(number) for number in range(400)]))
    assert len(sealed) > MAX_BYTES
    with pytest.raises(PacketError):
        Seal(KEY, SALT).open(sealed, MAX_BYTES)


def test_a_packet_of_too_many_messages_is_refused() -> None:
    Seal(None, SALT).open(Seal(None, SALT).close(envelope(*[Ping(1)] * MAX_MESSAGES)), 10**6)
    with pytest.raises(PacketError):
        Seal(None, SALT).open(Seal(None, SALT).close(envelope(*[Ping(1)] * (MAX_MESSAGES + 1))), 10**6)


def test_an_array_nested_without_end_is_refused() -> None:
    with pytest.raises(PacketError):
        Seal(None, SALT).open(b"\x01\x00" + b"\x91" * 1300, MAX_BYTES)


@pytest.mark.parametrize(
    "message",
    [
        [4, MAX_INCARNATION, [2, 1002, "cluster", ["10.0.0.2", 9192], None, None, "", "", 0]],
        [4, -1, [2, 1002, "cluster", ["10.0.0.2", 9192], None, None, "", "", 0]],
        [4, 1, [-2, 1002, "cluster", ["10.0.0.2", 9192], None, None, "", "", 0]],
        [4, 1, [2, 1002, "v" * 65, ["10.0.0.2", 9192], None, None, "", "", 0]],
        [4, 1, [2, 1002, "cluster", ["h" * 254, 9192], None, None, "", "", 0]],
        [4, 1, [2, 1002, "cluster", ["", 9192], None, None, "", "", 0]],
        [4, 1, [2, 1002, "cluster", ["10.0.0.2", 65536], None, None, "", "", 0]],
        [8, True, [[4, 1, [2, 1002, "cluster", ["10.0.0.2", 9192], None, None, "", "", 0]]]],
        [0, 2**63],
        [9],
        [],
    ],
)
def test_numbers_and_texts_out_of_bounds_are_refused(message: object) -> None:
    """Rule 4."""
    raw = Envelope("cluster", replica(2), replica(1), 5, 17, pack([msgspec.msgpack.encode(message)]))
    with pytest.raises(PacketError):
        decode_messages(raw)


def test_the_envelope_never_takes_more_than_is_set_aside_for_it() -> None:
    greatest = Replica(NodeId(2**31 - 1), 2**63 - 1)
    widest = Envelope(
        "c" * 64, greatest, greatest, 2**63 - 1, 2**63 - 1, pack([encode_message(Ping(1))] * 100)
    )
    used = len(Seal(KEY, SALT).close(widest)) - 100 * len(encode_message(Ping(1))) - 64
    assert used <= FIXED_BYTES
    assert len(Seal(KEY, SALT).close(msgspec.structs.replace(widest, receiver=ANY_RECEIVER))) <= MAX_BYTES


def test_metadata_at_its_limit_fits_and_one_byte_more_does_not() -> None:
    def of_size(size: int) -> MemberMeta:
        hosts = {"kafka": GossipEndpoint("k" * 200, 9092), "http": GossipEndpoint("h" * 150, 8080)}
        candidates = (meta(2, rack="r" * length, **hosts) for length in range(129))
        return next(each for each in candidates if len(msgspec.msgpack.encode(each)) == size)

    biggest = of_size(MAX_META_BYTES)
    assert len(msgspec.msgpack.encode(biggest)) == MAX_META_BYTES
    biggest.validate()
    assert len(encode_message(Alive(MAX_INCARNATION - 1, biggest))) <= MAX_ALIVE_BYTES
    with pytest.raises(ConfigError, match="512 bytes"):
        of_size(MAX_META_BYTES + 1).validate()


def test_metadata_that_peers_could_not_decode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ConfigError):
        meta(2, cluster=GossipEndpoint("10.0.0.2", 70_000)).validate()


# --- encryption


def test_nothing_of_a_packet_can_be_read_without_the_key() -> None:
    about = meta(2)
    sealed = Seal(KEY, SALT).close(envelope(Alive(3, about), cluster_id="the-cluster-id"))
    for text in (b"the-cluster-id", about.cluster.host.encode()):
        assert text not in sealed
        assert text in Seal(None).close(envelope(Alive(3, about), cluster_id="the-cluster-id"))


def test_no_two_packets_have_the_same_nonce_and_key() -> None:
    """Equal packets of one run differ by their number, those of two runs by the salt."""
    one, two = Seal(KEY, SALT), Seal(KEY, bytes(16))
    sealed = [seal.close(envelope(Ping(1))) for seal in (one, one, two, two)]
    assert len({packet[:26] for packet in sealed}) == 4
    assert len({packet[26:] for packet in sealed}) == 4


def test_a_node_with_a_key_cannot_seal_without_a_salt() -> None:
    with pytest.raises(AssertionError, match="salt"):
        Seal(KEY).close(envelope(Ping(1)))


def test_the_tagged_packets_of_the_version_before_are_still_accepted() -> None:
    tagged = Seal(KEY).close(envelope(Ping(7)), tagged=True)
    assert tagged[:2] == b"\x01\x01"
    assert decode_messages(Seal(KEY).open(tagged, MAX_BYTES)) == [Ping(7)]
    for position in range(len(tagged)):
        forged = bytearray(tagged)
        forged[position] ^= 1 << (position % 8)
        with pytest.raises(PacketError):
            Seal(KEY).open(bytes(forged), MAX_BYTES)


def test_forged_packets_do_not_fill_the_table_of_ciphers() -> None:
    reader = Seal(KEY)
    reader.open(Seal(KEY, SALT).close(envelope(Ping(1))), MAX_BYTES)
    for number in range(100):
        forged = b"\x01\x02" + number.to_bytes(16, "big") + bytes(40)
        with pytest.raises(PacketError):
            reader.open(forged, MAX_BYTES)
    assert list(reader._ciphers) == [SALT]


def test_the_table_of_ciphers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.swim.seal.MAX_SALTS", 3)
    reader = Seal(KEY)
    for number in range(10):
        reader.open(Seal(KEY, number.to_bytes(16, "big")).close(envelope(Ping(1))), MAX_BYTES)
    assert len(reader._ciphers) == 3
