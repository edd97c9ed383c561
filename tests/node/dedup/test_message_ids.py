"""Message ids in batches: found in every codec, refused if invalid, and records omitted cleanly."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import BatchHeader, Record, build_batch, check_batch, read_records
from penstock.errors import ErrorCode, KafkaError
from penstock.node.dedup.message_ids import MAX_ID_BYTES, emptied, read_ids, without_records

NAME = "penstock-message-id"
PLENTY = 10**6


def opened(batch: bytes) -> tuple[memoryview, BatchHeader]:
    view = memoryview(bytearray(batch))
    return view, check_batch(view)


def digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=16).digest()


def record(offset: int, *headers: tuple[str, bytes | None]) -> Record:
    return Record(offset, 1_000 + offset, b"k", b"v%d" % offset, headers)


HEADERS = st.lists(
    st.tuples(st.sampled_from([NAME, "penstock-message-ix", "other"]), st.binary(min_size=1, max_size=8)),
    max_size=3,
)


@given(rows=st.lists(HEADERS, min_size=1, max_size=8), codec=st.integers(0, 4))
def test_ids_match_those_of_a_record_by_record_read(rows: list[list[tuple[str, bytes]]], codec: int) -> None:
    batch, header = opened(build_batch([record(i, *row) for i, row in enumerate(rows)], compression=codec))
    expected = []
    for delta, row in enumerate(rows):
        values = [value for name, value in row if name == NAME]
        if values:
            expected.append((delta, digest(values[-1])))
    assert read_ids(batch, header, PLENTY).ids == expected


def test_an_id_may_be_any_bytes_up_to_the_limit() -> None:
    longest = bytes(range(256))
    assert len(longest) == MAX_ID_BYTES
    batch, header = opened(build_batch([record(0, (NAME, longest)), record(1, (NAME, b"\0"))]))
    assert [one.digest for one in read_ids(batch, header, PLENTY).ids] == [digest(longest), digest(b"\0")]


@pytest.mark.parametrize("value", [b"x" * (MAX_ID_BYTES + 1), b"", None])
def test_a_too_long_or_empty_id_is_refused_with_its_record(value: bytes | None) -> None:
    batch, header = opened(build_batch([record(0, (NAME, b"fine")), record(1, (NAME, value))]))
    with pytest.raises(
        KafkaError, match=r"record 1: penstock-message-id of \d+ bytes: expected 1 to 256"
    ) as it:
        read_ids(batch, header, PLENTY)
    assert it.value.code is ErrorCode.INVALID_RECORD


def test_more_ids_than_the_limit_are_refused() -> None:
    batch, header = opened(build_batch([record(i, (NAME, b"%d" % i)) for i in range(4)]))
    assert len(read_ids(batch, header, PLENTY, max_ids=4).ids) == 4
    with pytest.raises(KafkaError, match="more than 3 message ids at once") as caught:
        read_ids(batch, header, PLENTY, max_ids=3)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_that_unpacks_to_too_much_is_refused() -> None:
    batch, header = opened(build_batch([Record(0, 1, b"k", b"\0" * 100_000, ())], compression=1))
    with pytest.raises(KafkaError) as caught:
        read_ids(batch, header, 50_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_without_some_records_keeps_its_range_and_its_producer(codec: int) -> None:
    rows = [record(i, (NAME, b"%d" % i)) for i in range(5)]
    batch, header = opened(
        build_batch(rows, compression=codec, producer_id=7, producer_epoch=1, base_sequence=40)
    )
    kept, kept_header = without_records(batch, header, {0, 3}, PLENTY)
    assert check_batch(kept) == kept_header
    assert read_records(kept) == [rows[1], rows[2], rows[4]]
    assert kept_header.compression == codec
    same = ("last_offset_delta", "producer_id", "producer_epoch", "base_sequence", "last_sequence")
    assert [getattr(kept_header, one) for one in same] == [getattr(header, one) for one in same]


def test_a_batch_without_its_records_is_a_valid_header_with_a_timestamp() -> None:
    rows = [record(i) for i in range(3)]
    _, header = opened(build_batch(rows, compression=2, producer_id=7, producer_epoch=1, base_sequence=2))
    empty, empty_header = emptied(header, 999)
    assert check_batch(empty) == empty_header
    assert read_records(empty) == []
    assert (empty_header.record_count, empty_header.last_sequence) == (0, 4)
    assert (empty_header.base_timestamp, empty_header.max_timestamp) == (999, 999)


def test_the_producers_base_offset_does_not_matter() -> None:
    batch, header = opened(build_batch([record(i) for i in range(2)]))
    batch[:8] = (-1).to_bytes(8, "big", signed=True)
    kept, _ = without_records(batch, header._replace(base_offset=-1), {0}, PLENTY)
    assert [row.value for row in read_records(kept)] == [b"v1"]
