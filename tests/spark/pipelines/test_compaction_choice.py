"""Which files are merged."""

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.compaction import Compaction, choose
from penstock.spark.pipelines.manifest import DataFile, Range

TODAY = "2026-01-02"


def file(
    first: int, size_bytes: int, *, date: str = TODAY, topic: str = "orders", partition: int = 0
) -> DataFile:
    return DataFile(
        path=f"topic={topic}/date={date}/{partition}-{first}",
        topic=topic,
        date=date,
        size_bytes=size_bytes,
        ranges=(Range(partition=partition, first=first, last=first, rows=1),),
    )


def chosen(files: list[DataFile], *, everything: bool = True) -> list[list[int]]:
    groups = choose(files, target_bytes=100, today=TODAY, everything=everything)
    return [[each.ranges[0].first for each in group] for group in groups]


def test_small_files_of_one_day_are_merged_in_offset_order() -> None:
    assert chosen([file(2, 10), file(0, 10), file(1, 10)]) == [[0, 1, 2]]


def test_large_files_are_not_merged() -> None:
    assert chosen([file(0, 100), file(1, 10), file(2, 10)]) == [[1, 2]]


def test_a_single_file_is_not_merged() -> None:
    assert chosen([file(0, 10)]) == []
    assert chosen([file(0, 10), file(1, 10, date="2026-01-01"), file(2, 10, topic="payments")]) == []


def test_merged_files_do_not_grow_beyond_the_target() -> None:
    assert chosen([file(number, 40) for number in range(5)]) == [[0, 1], [2, 3]]


def test_while_a_day_grows_few_files_are_not_worth_a_merge() -> None:
    files = [file(number, 10) for number in range(3)]
    assert chosen(files, everything=False) == []
    assert chosen([*files, file(3, 10)], everything=False) == [[0, 1, 2, 3]]


def test_while_a_day_grows_a_large_file_waits_for_the_small_ones_to_catch_up() -> None:
    small = [file(number, 1) for number in range(1, 5)]
    assert chosen([file(0, 90), *small], everything=False) == [[1, 2, 3, 4]]
    assert chosen([file(0, 15), *small], everything=False) == [[0, 1, 2, 3, 4]]


def test_a_day_that_is_over_is_merged_whole() -> None:
    files = [file(0, 60, date="2026-01-01"), file(1, 1, date="2026-01-01")]
    assert chosen(files, everything=False) == [[0, 1]]


@pytest.mark.parametrize("wrong", [Compaction(target_bytes=0), Compaction(every_batches=0)])
def test_invalid_compaction_settings_are_refused(wrong: Compaction) -> None:
    with pytest.raises(ConfigError):
        wrong.validate()
