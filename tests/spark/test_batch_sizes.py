"""How the source cuts records into Arrow batches: by rows, and by bytes where records are large."""

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from penstock.spark.columns import Block
from penstock.spark.task import MOST_BYTES, MOST_ROWS, TARGET_BYTES, TARGET_ROWS, TaskReader, _cut


class Scanned(TaskReader):
    """A reader whose records have been fetched and scanned."""

    def __init__(self, blocks: list[Block]) -> None:
        object.__setattr__(self, "blocks", blocks)

    def _scanned(self, *_: object) -> Iterator[Block]:
        return iter(self.__dict__["blocks"])

    def yielded(self) -> list[Block]:
        unused = cast(Any, None)
        return list(self._blocks(unused, unused, frozenset()))


def block(first: int, rows: int, size_bytes: int) -> Block:
    return Block(rows, size_bytes, {"offset": pa.array(range(first, first + rows), pa.int64())})


@pytest.mark.parametrize(
    ("rows", "size_bytes", "expected"),
    [
        pytest.param(100, 10_000, 1, id="few small records are one batch"),
        pytest.param(100, TARGET_BYTES, 4, id="large records: each fetch is a batch"),
        pytest.param(TARGET_ROWS, 10_000, 4, id="many records: each fetch is a batch"),
    ],
)
def test_what_is_fetched_is_joined_up_to_enough_rows_or_bytes(
    rows: int, size_bytes: int, expected: int
) -> None:
    found = Scanned([block(number * rows, rows, size_bytes) for number in range(4)]).yielded()
    assert len(found) == expected
    assert [offset for each in found for offset in each.columns["offset"].to_pylist()] == [*range(4 * rows)]


@pytest.mark.parametrize(("rows", "size_bytes"), [(100, 3 * MOST_BYTES), (3 * MOST_ROWS, 1000)])
def test_a_batch_has_bounded_rows_and_bytes(rows: int, size_bytes: int) -> None:
    found = list(_cut(block(0, rows, size_bytes)))
    assert len(found) > 1
    assert all(each.rows <= MOST_ROWS and each.size_bytes <= MOST_BYTES for each in found)
    assert [offset for each in found for offset in each.columns["offset"].to_pylist()] == [*range(rows)]
