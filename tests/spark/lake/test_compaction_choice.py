"""Which dates of a table are merged."""

import pytest

from penstock.errors import ConfigError
from penstock.spark.lake.maintenance import Compaction, choose_dates
from penstock.spark.lake.topic_table import TableFile

TODAY = "2026-01-02"
YESTERDAY = "2026-01-01"


def chosen(*sizes: int, date: str = TODAY, everything: bool = False) -> bool:
    files = [
        TableFile(path=f"{date}/{number}", date=date, size_bytes=size, rows=1, offsets=None, times=None)
        for number, size in enumerate(sizes)
    ]
    return choose_dates(files, target_bytes=100, today=TODAY, everything=everything) == [date]


def test_large_files_and_single_files_are_not_merged() -> None:
    assert not chosen(100, 100, 100, 100, everything=True)
    assert not chosen(10, 100, everything=True)
    assert chosen(10, 10, 100, everything=True)


def test_while_a_day_grows_few_files_are_not_worth_a_merge() -> None:
    assert not chosen(10, 10, 10)
    assert chosen(10, 10, 10, 10)


def test_while_a_day_grows_a_large_file_waits_for_the_small_ones_to_catch_up() -> None:
    assert not chosen(90, 1, 1, 1, 1)
    assert chosen(15, 1, 1, 1, 1)


def test_a_day_that_is_over_is_merged_whole() -> None:
    assert chosen(60, 1, date=YESTERDAY)


@pytest.mark.parametrize("wrong", [Compaction(target_bytes=0), Compaction(every_batches=0)])
def test_invalid_compaction_settings_are_refused(wrong: Compaction) -> None:
    with pytest.raises(ConfigError):
        wrong.validate()
