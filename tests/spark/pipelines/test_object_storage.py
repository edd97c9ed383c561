"""An archive in a bucket, written and read by Spark without a JAR."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.spark import Selection, history, optimize_archive

from .conftest import Shop, all_places, plain, topic_partitions
from .test_archive import STAGES, crash


@pytest.fixture
def shop_on_s3(shop: Shop, s3_path: str) -> Shop:
    return replace(shop, path=s3_path)


def test_history_is_the_archive_in_a_bucket_and_the_live_tail(
    shop_on_s3: Shop, read: Callable[..., Any]
) -> None:
    shop = shop_on_s3
    for first in (0, 6):
        shop.sell(first, 6)
        assert shop.archive(compaction=None).rows == 6
    assert optimize_archive(shop.path) > 0  # the files that delta-rs writes lack the date
    shop.sell(12, 3)
    whole = history(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers, with_source=True)
    assert plain(whole) == plain(read(shop.topic, includeHeaders="true"))
    counts = {row.source: row["count"] for row in whole.groupBy("source").count().collect()}
    assert counts == {"archive": 12, "live": 3}
    dates = {row.date.isoformat() for row in shop.archived().select("date").collect()}
    assert dates == {"2025-12-31", "2026-01-01"}
    later = history(
        shop.spark,
        shop.path,
        bootstrap_servers=shop.bootstrap_servers,
        selection=Selection(from_offset=3, to_offset=4),
    )
    assert topic_partitions(later) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.long
def test_runs_to_a_bucket_that_crash_at_any_stage_lose_nothing_and_write_nothing_twice(
    shop_on_s3: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_on_s3
    for number, stage in enumerate(STAGES.values()):
        shop.sell(number * 6, 6)
        with monkeypatch.context() as patch:
            crash(patch, *stage)
            with pytest.raises(RuntimeError, match="the machine is gone"):
                shop.archive(compaction=None)
    sold = len(STAGES) * 6
    assert topic_partitions(shop.archived()) == all_places(sold)  # the last one crashed after its commit
    shop.sell(sold, 3)
    assert shop.archive().rows == 3
    assert topic_partitions(shop.archived()) == all_places(sold + 3)


@pytest.mark.long
def test_iceberg_tables_in_a_bucket_have_a_history_too(
    shop_on_s3: Shop, read: Callable[..., Any], tmp_path: Path
) -> None:
    shop, catalog = shop_on_s3, f"sqlite:///{tmp_path}/catalog.db"
    shop.sell(0, 6)
    assert shop.archive(table_format="iceberg", catalog=catalog).rows == 6
    shop.sell(6, 3)
    whole = history(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers, catalog=catalog)
    assert plain(whole) == plain(read(shop.topic, includeHeaders="true"))
