"""The rules of a topic: the work that one request causes is bounded, whether its batches are good or not."""

import struct

import pytest

from penstock.batch import Record, build_batch, check_produced
from penstock.batch.checksum import crc32c
from penstock.batch.compression import LZ4, NONE, ZSTD
from penstock.config import TopicConfig
from penstock.errors import ErrorCode, KafkaError
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
