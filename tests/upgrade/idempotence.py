"""Batches of an idempotent producer, byte by byte: real clients do not send a batch again after a restart of their own.

The protocol versions are old ones without flexible encodings; every broker since Kafka 2.1 and up to 4.x serves them.
"""

import socket
import struct
from typing import NamedTuple

import crc32c

PRODUCE, INIT_PRODUCER_ID = (0, 7), (22, 0)
"""API key and version."""
SECONDS = 20.0


class ProducerId(NamedTuple):
    id: int
    epoch: int


class Produced(NamedTuple):
    error: int
    offset: int


def batch(producer: ProducerId, sequence: int, timestamp_ms: int, values: list[bytes]) -> bytes:
    """Record batch v2, uncompressed; all records have the same timestamp and no key."""
    records = b"".join(_record(index, value) for index, value in enumerate(values))
    last = len(values) - 1
    checked = struct.pack(
        ">hiqqqhii", 0, last, timestamp_ms, timestamp_ms, producer.id, producer.epoch, sequence, len(values)
    )
    checked += records
    head = struct.pack(">ibI", -1, 2, crc32c.crc32c(checked))
    return struct.pack(">qi", 0, len(head) + len(checked)) + head + checked


def new_producer_id(address: str) -> ProducerId:
    answer = _call(address, INIT_PRODUCER_ID, struct.pack(">hi", -1, 60_000))
    _, error, producer_id, epoch = struct.unpack(">ihqh", answer)
    assert error == 0
    return ProducerId(producer_id, epoch)


def produce(address: str, topic: str, partition: int, records: bytes) -> Produced:
    """Sends a batch with acks=all to this node, which must lead the partition."""
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, int(SECONDS * 1000), 1, len(name)) + name
    body += struct.pack(">iii", 1, partition, len(records)) + records
    answer = _call(address, PRODUCE, body)
    error, offset = struct.unpack_from(">hq", answer, 4 + 2 + len(name) + 4 + 4)
    return Produced(error, offset)


def _record(index: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(index) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _call(address: str, api: tuple[int, int], body: bytes) -> bytes:
    """The answer without its correlation id."""
    host, port = address.rsplit(":", 1)
    frame = struct.pack(">hhih", *api, 1, -1) + body
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        with connection.makefile("rb") as stream:
            (length,) = struct.unpack(">i", stream.read(4))
            return stream.read(length)[4:]
