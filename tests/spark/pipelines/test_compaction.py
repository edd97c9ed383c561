"""Small files into large ones while an archive runs."""

from penstock.spark import Compaction, Schedule, optimize_archive

from .conftest import Shop, all_places, plain, topic_partitions


def test_merging_keeps_every_row_and_the_end_of_the_archive(shop: Shop) -> None:
    shop.sell(0, 30)
    shop.archive(options={"maxOffsetsPerTrigger": "6"}, compaction=None)
    before, rows, state = shop.committed_files(), plain(shop.archived()), shop.state()
    old = shop.archived()

    fewer = optimize_archive(shop.path)

    after = shop.table().files()
    assert fewer == len(before) - len(after) > 0
    assert sorted(file.date for file in after) == ["2025-12-31", "2026-01-01"]
    assert plain(shop.archived()) == rows
    assert shop.state() == state
    assert plain(old) == rows  # a DataFrame from before the merge reads the files that it began with
    shop.sell(30, 3)
    shop.archive()
    assert topic_partitions(shop.archived()) == all_places(33)


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
