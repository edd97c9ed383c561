"""Small files into large ones."""

import pytest

from penstock.spark import Compaction, Schedule, compact_archive
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.reading import committed
from penstock.spark.pipelines.staging import Stage

from .conftest import Shop, all_places, only, plain, topic_partitions


def test_merging_keeps_every_row_in_offset_order(shop: Shop) -> None:
    shop.sell(0, 30)
    shop.archive(options={"maxOffsetsPerTrigger": "6"}, compaction=None)
    before, rows = shop.state(), plain(shop.archived())
    assert len(before.files) > 2

    fewer = compact_archive(shop.spark, shop.path)

    after = shop.state()
    assert fewer == len(before.files) - len(after.files)
    assert sorted(file.date for file in after.files.values()) == ["2025-12-31", "2026-01-01"]
    assert plain(shop.archived()) == rows
    assert shop.data_files() == set(after.files)
    assert after.through == before.through
    assert after.sequence == before.sequence + 2  # a claim, and one change for both days
    for file in after.files.values():
        found = committed(shop.spark, Files(shop.spark, shop.path), [file])
        order = [(row.partition, row.offset) for row in found.select("partition", "offset").collect()]
        assert order == sorted(order)
        assert len(order) == file.rows


def test_a_running_stream_merges_files(shop: Shop) -> None:
    shop.sell(0, 30)
    seen: list[object] = []
    done = shop.archive(
        options={"maxOffsetsPerTrigger": "6"},
        compaction=Compaction(every_batches=2),
        schedule=Schedule(every="50ms", on_batch=seen.append, stop=lambda: len(seen) >= 5),
    )
    assert done.files_merged_away > 0
    assert topic_partitions(shop.archived()) == all_places(30)


def test_leftovers_of_a_merge_that_crashed_after_its_commit_are_removed_by_the_next_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sell(0, 6)
    shop.archive(compaction=None)

    def gone(*arguments: object) -> None:
        raise RuntimeError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "clear", gone)
        with pytest.raises(RuntimeError):
            compact_archive(shop.spark, shop.path)
    assert topic_partitions(shop.archived()) == all_places(6)
    assert len(shop.data_files()) > len(shop.state().files)  # the merged files still exist

    compact_archive(shop.spark, shop.path)

    assert shop.data_files() == set(shop.state().files)
    assert topic_partitions(shop.archived()) == all_places(6)
    assert only({file.date for file in shop.state().files.values()}) == "2025-12-31"
