"""The rules of a topic: the work that one request causes is bounded, whether its batches are good or not."""

import struct

import pytest

from penstock.batch import Record, build_batch, check_produced, compress
from penstock.batch.checksum import crc32c
from penstock.batch.compression import LZ4, NONE, ZSTD
from penstock.config import TopicConfig
from penstock.errors import BatchError, ErrorCode, KafkaError, RefusedRecords
from penstock.kafka.handlers import topic_rules
from penstock.kafka.handlers.topic_rules import INFLATED_BYTES_PER_REQUEST, INFLATION_MAX, TopicRules

GZIPPED = TopicConfig(compression_type="gzip")
MOST_PER_BATCH = INFLATION_MAX * GZIPPED.max_message_bytes
NOW_MS = 1_700_000_000_000


def refusal(rules: TopicRules, batch: bytes) -> KafkaError:
    with pytest.raises(KafkaError) as refused:
        rules.apply(memoryview(batch), check_produced(memoryview(batch)), GZIPPED, NOW_MS)
    return refused.value


def test_batches_that_unpack_to_too_much_use_up_what_a_request_may_unpack() -> None:
    bomb = build_batch([Record(0, NOW_MS, None, bytes(2 * MOST_PER_BATCH))], compression=ZSTD)
    rules = TopicRules()
    for _ in range(INFLATED_BYTES_PER_REQUEST // MOST_PER_BATCH + 1):
        assert refusal(rules, bomb).code == ErrorCode.MESSAGE_TOO_LARGE
    assert rules.bytes_left <= 0
    said = refusal(rules, build_batch([Record(0, NOW_MS, None, b"small")]))
    assert "the request unpacks to more" in said.message


def claiming(count: int, records: list[Record], compression: int) -> bytes:
    """A batch whose header says that it has so many records; its checksum is right."""
    batch = bytearray(build_batch(records, compression=compression))
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def apply(batch: bytes, rules: TopicRules) -> None:
    rules.apply(memoryview(batch), check_produced(memoryview(batch)), TopicConfig(), NOW_MS)


ROWS = [Record(index, NOW_MS, b"k", b"v" * 20) for index in range(50)]


@pytest.mark.parametrize(
    ("compression", "claimed"), [(NONE, 51), (NONE, 49), (NONE, 150), (ZSTD, 60_000), (LZ4, 500)]
)
def test_a_batch_that_claims_another_number_of_records_is_refused(
    compression: int, claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_rules, "COUNTS_RECORDS", True)
    with pytest.raises(
        KafkaError, match=f"record_count={claimed}: expected the number of records"
    ) as refused:
        apply(claiming(claimed, ROWS, compression), TopicRules())
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_a_compressed_batch_is_opened_only_if_it_claims_more_records_than_bytes() -> None:
    rules = TopicRules()
    apply(build_batch(ROWS, compression=LZ4), rules)
    assert rules.bytes_left == INFLATED_BYTES_PER_REQUEST
    dense = build_batch([Record(index, NOW_MS) for index in range(50_000)], compression=ZSTD)
    assert len(dense) < 50_000  # only empty records pack so well, and only very many of them
    apply(dense, rules)
    assert INFLATED_BYTES_PER_REQUEST - rules.bytes_left > 50_000 * 7


# --- max.decompressed.message.bytes

SMALL = TopicConfig(max_decompressed_message_bytes=1_000)


def apply_small(batch: bytes, rules: TopicRules) -> None:
    rules.apply(memoryview(batch), check_produced(memoryview(batch)), SMALL, NOW_MS)


@pytest.mark.parametrize("compression", [LZ4, ZSTD])
def test_records_that_are_too_large_when_they_are_unpacked_are_refused_by_name(compression: int) -> None:
    rows = [Record(index, NOW_MS, b"k", b"v" * (2_000 if index == 3 else 20)) for index in range(50)]
    with pytest.raises(RefusedRecords, match=r"1 of 50 records are refused; record 3") as refused:
        apply_small(build_batch(rows, compression=compression), TopicRules())
    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert list(refused.value.reasons) == [3]


def test_the_size_counts_for_each_record_and_not_for_their_batch() -> None:
    rules = TopicRules()
    apply_small(build_batch(ROWS, compression=LZ4), rules)
    assert rules.bytes_left < INFLATED_BYTES_PER_REQUEST, "the batch was opened"


def test_a_batch_that_is_not_compressed_has_only_the_bound_of_its_whole_size() -> None:
    apply_small(build_batch([Record(0, NOW_MS, b"k", b"v" * 2_000)]), TopicRules())


def test_a_request_has_so_many_records_whose_sizes_are_read() -> None:
    rules = TopicRules(sizes_left=60)
    batch = build_batch(ROWS, compression=LZ4)
    apply_small(batch, rules)
    with pytest.raises(KafkaError, match="send smaller requests") as refused:
        apply_small(batch, rules)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_records_that_do_not_parse_are_refused() -> None:
    header = bytearray(build_batch(ROWS, compression=NONE)[:61])
    payload = compress(LZ4, b"\xff" * 2_000)
    batch = bytearray(header + payload)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, LZ4)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    with pytest.raises(BatchError, match="do not parse"):
        apply_small(bytes(batch), TopicRules())
