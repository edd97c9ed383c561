"""AbortedBatches: from the list in a Fetch response, which batches a reader of committed records leaves out."""

import pytest

from penstock.batch import EndMarker, Record, build_batch, build_marker, read_header, stamp
from penstock.batch.fetched_aborts import AbortedBatches

Header = tuple[int, bool, int]
"""A producer id, whether the batch is a marker, and its offset."""


def covered(aborted: list[tuple[int, int]], *batches: Header) -> list[int]:
    left_out = AbortedBatches(aborted)
    return [
        offset for producer_id, marker, offset in batches if covers(left_out, producer_id, marker, offset)
    ]


def covers(left_out: AbortedBatches, producer_id: int, marker: bool, offset: int) -> bool:
    if marker:
        batch = bytearray(
            build_marker(EndMarker(False, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=0)
        )
    else:
        sequence = -1 if producer_id < 0 else 0
        batch = bytearray(
            build_batch(
                [Record(0, 0, None, b"x")],
                producer_id=producer_id,
                producer_epoch=sequence,
                base_sequence=sequence,
                transactional=producer_id >= 0,
            )
        )
    stamp(batch, 0, offset, 0)
    return left_out.covers(read_header(batch))


def test_nothing_is_left_out_without_aborted_transactions() -> None:
    assert covered([], (1, False, 0), (-1, False, 1), (1, True, 2)) == []


def test_a_transaction_ends_at_the_next_marker_of_its_producer() -> None:
    batches = (
        (1, False, 0),
        (2, False, 1),
        (2, True, 2),
        (-1, False, 3),
        (1, False, 4),
        (1, True, 5),
        (1, False, 6),
    )
    assert covered([(1, 0)], *batches) == [0, 4]


def test_records_before_the_first_offset_are_kept() -> None:
    assert covered([(1, 2)], (1, False, 0), (1, True, 1), (1, False, 2), (1, True, 3)) == [2]


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_list_does_not_matter(order: int) -> None:
    aborted = [(1, 0), (2, 1), (1, 4)][::order]
    batches = ((1, False, 0), (2, False, 1), (1, True, 2), (2, True, 3), (1, False, 4), (2, False, 5))
    assert covered(aborted, *batches) == [0, 1, 4]


def test_a_response_may_begin_in_the_middle_of_a_transaction() -> None:
    assert covered([(1, 0)], (1, False, 7), (1, True, 8), (1, False, 9)) == [7]
