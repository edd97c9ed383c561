"""Columns become batches that every reader reads back, and keys go to the partitions that Kafka's clients choose."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import pack

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from penstock import Broker
from penstock.batch import Record, check_produced, read_records
from penstock.batch.outgoing import pack_batch, renumber
from penstock.batch.producing import (
    Column,
    HeaderColumn,
    RowColumns,
    encode_columns,
    group_rows,
    murmur2,
    partition_of_keys,
)
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.batch.batch_strategies import codecs, header_lists, nullable_bytes, timestamps
from tests.kafka.raw import RawClient

NOW_MS = 1_700_000_000_000
UNTIMED = settings(deadline=None)
UNBOUNDED = 1 << 30


def int32s(numbers: Sequence[int]) -> bytes:
    return pack(f"<{len(numbers)}i", *numbers)


def column(fields: Sequence[bytes | None], *, base: int = 0, first_bit: int = 0) -> Column:
    """As Arrow keeps them, seen through a slice that starts at byte `base` and bit `first_bit`."""
    offsets = [base]
    bits = 0
    for row, item in enumerate(fields):
        offsets.append(offsets[-1] + len(item or b""))
        bits |= (item is not None) << (first_bit + row)
    validity = bits.to_bytes((first_bit + len(fields)) // 8 + 1, "little") if None in fields else b""
    return Column(int32s(offsets), b"".join(item or b"" for item in fields), base, validity, first_bit)


def header_column(rows: Sequence[tuple[tuple[str, bytes | None], ...]], *, base: int = 0) -> HeaderColumn:
    ends = [base]
    for row in rows:
        ends.append(ends[-1] + len(row))
    entries = [entry for row in rows for entry in row]
    names = column([name.encode() for name, _ in entries])
    return HeaderColumn(int32s(ends), base, names, column([value for _, value in entries]))


@dataclass
class Rows:
    """Rows as Python objects and the same as columns."""

    records: list[Record]
    columns: RowColumns = field(init=False)
    shift: int = 0

    def __post_init__(self) -> None:
        shift = self.shift
        self.columns = RowColumns(
            len(self.records),
            column([row.key for row in self.records], base=shift * 9, first_bit=shift),
            column([row.value for row in self.records], base=shift, first_bit=shift),
            header_column([row.headers for row in self.records], base=shift * 3),
            pack(f"<{len(self.records)}q", *(row.timestamp for row in self.records)),
        )


@st.composite
def some_rows(draw: st.DrawFn) -> Rows:
    long_value = st.binary(min_size=50, max_size=90)
    row = st.builds(Record, st.just(0), timestamps, nullable_bytes, nullable_bytes | long_value, header_lists)
    return Rows(draw(st.lists(row, min_size=1, max_size=12)), shift=draw(st.integers(0, 9)))


@UNTIMED
@given(rows=some_rows(), codec=codecs)
def test_encoded_rows_are_read_back(rows: Rows, codec: int) -> None:
    encoded = encode_columns(rows.columns, b"", 0, UNBOUNDED, NOW_MS)
    batch = pack_batch(encoded, compression=codec)
    assert check_produced(batch).max_timestamp == max(row.timestamp for row in rows.records)
    assert read_records(batch) == [row._replace(offset=place) for place, row in enumerate(rows.records)]


@UNTIMED
@given(rows=some_rows(), data=st.data())
def test_a_selection_of_rows_is_encoded_in_its_order(rows: Rows, data: st.DataObject) -> None:
    numbers = st.integers(0, len(rows.records) - 1)
    chosen = data.draw(st.lists(numbers, min_size=1, max_size=20))
    encoded = encode_columns(rows.columns, int32s(chosen), 0, UNBOUNDED, NOW_MS)
    expected = [rows.records[number]._replace(offset=place) for place, number in enumerate(chosen)]
    assert read_records(pack_batch(encoded)) == expected


@UNTIMED
@given(rows=some_rows(), max_bytes=st.integers(1, 300))
def test_batches_of_bounded_size_hold_every_row_once(rows: Rows, max_bytes: int) -> None:
    start, found = 0, []
    while start < len(rows.records):
        encoded = encode_columns(rows.columns, b"", start, max_bytes, NOW_MS)
        assert encoded.rows == 1 or len(encoded.payload) <= max_bytes
        found += read_records(pack_batch(encoded))
        start += encoded.rows
    assert [row._replace(offset=0) for row in found] == rows.records


def test_rows_without_times_get_the_time_that_is_given() -> None:
    columns = RowColumns(3, Column(), column([b"a", None, b"ccc"]))
    records = read_records(pack_batch(encode_columns(columns, b"", 0, UNBOUNDED, NOW_MS)))
    assert [(row.timestamp, row.key, row.value) for row in records] == [
        (NOW_MS, None, b"a"),
        (NOW_MS, None, None),
        (NOW_MS, None, b"ccc"),
    ]


def test_a_time_before_1970_is_refused_by_row() -> None:
    columns = RowColumns(2, Column(), column([b"a", b"b"]), None, pack("<2q", 5, -7))
    with pytest.raises(ValueError, match="row 1: timestamp=-7"):
        encode_columns(columns, b"", 0, UNBOUNDED, NOW_MS)


@pytest.mark.parametrize("start", [-1, 2])
def test_a_start_outside_the_rows_is_refused(start: int) -> None:
    columns = RowColumns(2, Column(), column([b"a", b"b"]))
    with pytest.raises(ValueError, match=r"expected 0 \.\. 1"):
        encode_columns(columns, b"", start, UNBOUNDED, NOW_MS)


def test_a_renumbered_batch_differs_in_its_producer_alone() -> None:
    encoded = encode_columns(RowColumns(2, Column(), column([b"a", b"b"])), b"", 0, UNBOUNDED, NOW_MS)
    batch = pack_batch(encoded, producer_id=1, producer_epoch=0, base_sequence=0)
    changed = renumber(batch, producer_id=9, producer_epoch=3, base_sequence=77)
    header = check_produced(changed)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 77)
    assert read_records(changed) == read_records(batch)


@UNTIMED
@given(key=st.binary(max_size=70))
def test_murmur2_is_the_one_of_other_clients(key: bytes) -> None:
    assert murmur2(key) & 0x7FFFFFFF == murmur2_of_kafka_python(key) & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_numbers_of_the_java_client(key: bytes, hashed: int) -> None:
    """The vectors of org.apache.kafka.common.utils.UtilsTest."""
    assert murmur2(key) == hashed & 0xFFFFFFFF


@UNTIMED
@given(
    keys=st.lists(nullable_bytes, min_size=1, max_size=20), count=st.integers(1, 9), shift=st.integers(0, 9)
)
def test_keys_choose_partitions_and_rows_without_one_use_the_given_partition(
    keys: list[bytes | None], count: int, shift: int
) -> None:
    found = partition_of_keys(column(keys, base=shift, first_bit=shift), b"", len(keys), count, 7)
    expected = [7 if key is None else (murmur2_of_kafka_python(key) & 0x7FFFFFFF) % count for key in keys]
    assert found == int32s(expected)
    backwards = int32s(range(len(keys))[::-1])
    selected = partition_of_keys(column(keys, base=shift, first_bit=shift), backwards, 0, count, 7)
    assert selected == int32s(expected[::-1])


@UNTIMED
@given(groups=st.lists(st.integers(0, 4), max_size=30))
def test_groups_keep_the_order_of_their_rows(groups: list[int]) -> None:
    found = group_rows(int32s(groups), b"", 5)
    assert found == [int32s([row for row, mine in enumerate(groups) if mine == group]) for group in range(5)]
    rows = [100 - row for row in range(len(groups))]
    found = group_rows(int32s(groups), int32s(rows), 5)
    assert found == [
        int32s([row for row, mine in zip(rows, groups, strict=True) if mine == group]) for group in range(5)
    ]


def test_a_missing_group_is_refused() -> None:
    with pytest.raises(ValueError, match=r"group=3: expected 0 \.\. 2"):
        group_rows(int32s([0, 3]), b"", 3)


def test_librdkafka_chooses_the_same_partitions() -> None:
    keys = [f"key-{number}".encode() * (number % 4 + 1) for number in range(300)]
    expected = partition_of_keys(column(keys), b"", len(keys), 7, -1)
    chosen: dict[bytes, int] = {}
    with Broker(num_partitions=7) as broker:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
            }
        )
        for key in keys:
            producer.produce(
                "keys", key=key, on_delivery=lambda _, sent: chosen.update({sent.key(): sent.partition()})
            )
        assert producer.flush(30) == 0
    assert int32s([chosen[key] for key in keys]) == expected


def test_librdkafka_reads_encoded_batches(broker: Broker, unique: Callable[[str], str]) -> None:
    """The bytes go through a broker that checks and stores them, and out to another client."""
    topic = unique("rows")
    headers = (("h", b"1"), ("none", None))
    rows = Rows([Record(0, NOW_MS + n, b"k%d" % n, b"v" * n, headers[: n % 3]) for n in range(100)])
    batch = pack_batch(encode_columns(rows.columns, b"", 0, UNBOUNDED, NOW_MS), compression=4)
    Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True}).list_topics(
        topic, 30
    )  # creates it
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    with RawClient(broker) as client:
        client.call(ApiKey.PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=9000, topic_data=[data]))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(100, 30)
    consumer.close()
    found = [
        Record(0, each.timestamp()[1], each.key(), each.value(), tuple(each.headers() or ()))
        for each in messages
    ]
    assert found == rows.records
