"""The records of the transaction topic, byte by byte: Kafka's own layout, so that tools which read that topic
understand it. `penstock.record_fields` says how fields are encoded.

    key     int16 0 | string transactional id
    value   int16 1 | int64 producer id | int16 epoch | int32 timeout (ms) | int8 state | topics
            | int64 time of the last change (ms) | int64 start (ms), -1 without a transaction | tagged fields
    topics  varint number plus one, 0 for null (in state Empty) | for each: compact string topic
            | varint number of partitions plus one | int32 partitions | varint 0 (no tagged fields)
    tags       0   int64: the previous producer id
               1   int64: the next producer id
               2   int16: the dialect of the client (its transaction version)
               3   int16: the next epoch of a two-phase commit (KIP-939), which is kept and not used, like all others
            1000   int16: the last epoch. This one and the next are our own: Kafka's tools step over tags that they do
                   not know
            1001   the owner of an attempt: its transactional id in UTF-8
            1002   int64: the version for which an attempt is lent; of others, the last version that was committed

A tagged field with its default (-1, the dialect 0) is left out. Kafka's older version of the value is read, too:

    value   int16 0 | the same fields, with int32 numbers of topics (-1 for null) and of partitions, string topics, and
            no tagged fields

A null value deletes the id. The topic is compacted, so a reader applies records in order and the last one of each key
wins. Other bytes were written by a later version: UnknownFormat, never a silent skip.
"""

import struct
from collections.abc import Iterator

from penstock.record_fields import FieldReader, compact_string, string, tagged_fields, varint
from penstock.transactions.states import EMPTY, STORED, TransactionState
from penstock.transactions.transaction import NO_VERSION, Transaction
from penstock.transactions.values import NO_EPOCH, NO_PRODUCER_ID, Dialect
from penstock.types import TopicPartition

KEY_VERSION = 0
VALUE_VERSION = 1
INFLEXIBLE_VALUE_VERSION = 0

PREVIOUS_PRODUCER_ID_TAG = 0
NEXT_PRODUCER_ID_TAG = 1
DIALECT_TAG = 2
LAST_EPOCH_TAG = 1000
OWNER_TAG = 1001
VERSION_TAG = 1002

_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_INT16 = struct.Struct(">h")
_INT64 = struct.Struct(">q")


def encode_key(transactional_id: str) -> bytes:
    return _INT16.pack(KEY_VERSION) + string(transactional_id)


def decode_key(data: bytes) -> str:
    reader = _reader(data)
    version = reader.int16()
    if version != KEY_VERSION:
        raise reader.unknown(f"key version {version}")
    transactional_id = reader.string()
    reader.finish()
    return transactional_id


def encode_value(value: Transaction) -> bytes:
    assert value.state in STORED
    head = _HEAD.pack(VALUE_VERSION, value.producer_id, value.epoch, value.timeout_ms, value.state)
    times = _TIMES.pack(value.updated_ms, value.start_ms)
    return b"".join((head, *_topics(value), times, tagged_fields(_tags(value))))


def _topics(value: Transaction) -> Iterator[bytes]:
    if value.state is EMPTY:
        yield varint(0)
        return
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(value.partitions):
        by_topic.setdefault(topic, []).append(partition)
    yield varint(len(by_topic) + 1)
    for topic, partitions in by_topic.items():
        yield compact_string(topic) + varint(len(partitions) + 1)
        yield struct.pack(f">{len(partitions)}i", *partitions) + tagged_fields({})


def _tags(value: Transaction) -> dict[int, bytes]:
    tags = dict(value.other_tags)
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags[PREVIOUS_PRODUCER_ID_TAG] = _INT64.pack(value.previous_producer_id)
    if value.next_producer_id != NO_PRODUCER_ID:
        tags[NEXT_PRODUCER_ID_TAG] = _INT64.pack(value.next_producer_id)
    if value.dialect != Dialect.V1:
        tags[DIALECT_TAG] = _INT16.pack(value.dialect)
    if value.last_epoch != NO_EPOCH:
        tags[LAST_EPOCH_TAG] = _INT16.pack(value.last_epoch)
    if value.owner:
        tags[OWNER_TAG] = value.owner.encode()
    if value.version != NO_VERSION:
        tags[VERSION_TAG] = _INT64.pack(value.version)
    return dict(sorted(tags.items()))


def decode_value(data: bytes) -> Transaction:
    reader = _reader(data)
    version = reader.int16()
    if version not in (INFLEXIBLE_VALUE_VERSION, VALUE_VERSION):
        raise reader.unknown(f"value version {version}")
    flexible = version == VALUE_VERSION
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = _state(reader)
    partitions = frozenset(_read_partitions(reader, flexible))
    updated_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tags() if flexible else {}
    reader.finish()
    return Transaction(
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        updated_ms=updated_ms,
        start_ms=start_ms,
        previous_producer_id=_take_int64(tags, PREVIOUS_PRODUCER_ID_TAG),
        next_producer_id=_take_int64(tags, NEXT_PRODUCER_ID_TAG),
        dialect=_take_int16(tags, DIALECT_TAG, Dialect.V1),
        last_epoch=_take_int16(tags, LAST_EPOCH_TAG, NO_EPOCH),
        owner=_reader(tags.pop(OWNER_TAG, b"")).whole_text(),
        version=_take_int64(tags, VERSION_TAG),
        other_tags=tuple(sorted(tags.items())),
    )


def _state(reader: FieldReader) -> TransactionState:
    number = reader.int8()
    if number not in STORED:
        raise reader.unknown(f"the state {number}")
    return TransactionState(number)


def _read_partitions(reader: FieldReader, flexible: bool) -> Iterator[TopicPartition]:
    def count() -> int:
        return reader.varint() - 1 if flexible else reader.int32()

    for _ in range(count()):
        topic = reader.compact_string() if flexible else reader.string()
        for _ in range(count()):
            yield TopicPartition(topic, reader.int32())
        if flexible:
            reader.tags()


def _take_int64(tags: dict[int, bytes], tag: int) -> int:
    data = tags.pop(tag, None)
    return NO_PRODUCER_ID if data is None else _reader(data).whole_int64()


def _take_int16(tags: dict[int, bytes], tag: int, default: int) -> int:
    data = tags.pop(tag, None)
    return default if data is None else _reader(data).whole_int16()


def _reader(data: bytes) -> FieldReader:
    return FieldReader(data, "the transaction topic")
