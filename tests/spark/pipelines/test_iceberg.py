"""An archive of Iceberg tables: written and read by Spark without a JAR."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock.errors import ConfigError
from penstock.spark import history
from penstock.spark.lake.folder import Lake
from penstock.spark.lake.iceberg_table import IcebergTopicTable

from .conftest import Shop, all_places, plain, topic_partitions
from .test_archive import STAGES, crash


def table_of(shop: Shop) -> IcebergTopicTable:
    table = Lake(shop.path).table(shop.topic)
    assert isinstance(table, IcebergTopicTable)
    return table


def test_history_is_the_iceberg_table_and_the_live_tail(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 6)
    assert shop.archive(table_format="iceberg").rows == 6
    shop.sell(6, 6)
    assert shop.archive().rows == 6  # the format is that of the tables that are there
    shop.sell(12, 3)
    whole = history(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers)
    assert plain(whole) == plain(read(shop.topic, includeHeaders="true"))
    assert topic_partitions(shop.archived()) == all_places(12)
    frame = pl.scan_iceberg(table_of(shop).iceberg.metadata_location).collect()
    assert sorted(frame.select("partition", "offset").rows()) == all_places(12)
    assert {date.isoformat() for date in frame["date"]} == {"2025-12-31", "2026-01-01"}


def test_fields_of_the_value_become_columns_and_new_ones_are_added(shop: Shop) -> None:
    def archive(schema: str) -> int:
        options = {"valueFormat": "json", "valueSchema": schema}
        return shop.archive(table_format="iceberg", options=options).rows

    shop.produce(shop.topic, [b'{"id": 1, "at": "2026-01-31T08:00:00Z"}'])
    assert archive("id bigint, at timestamp") == 1
    shop.produce(shop.topic, [b'{"id": 2, "city": "Bern", "parts": [{"n": 3}]}'])
    assert archive("id bigint, at timestamp, city string, parts array<struct<n: int>>") == 1
    frame = pl.scan_iceberg(table_of(shop).iceberg.metadata_location).collect().sort("id")
    assert frame.select("id", "city").rows() == [(1, None), (2, "Bern")]
    assert [each.isoformat() for each in frame["at"].drop_nulls()] == ["2026-01-31T08:00:00+00:00"]
    shop.produce(shop.topic, [b'{"id": 3}'])
    whole = history(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers).orderBy("id")
    assert [(row.id, row.city, row.parts) for row in whole.select("id", "city", "parts").collect()] == [
        (1, None, None),
        (2, "Bern", [(3,)]),
        (3, None, None),
    ]


def test_types_that_iceberg_does_not_have_are_refused(shop: Shop, tmp_path: Path) -> None:
    for schema in ("a tinyint", "a array<struct<b: smallint>>"):
        with pytest.raises(ConfigError, match="which Iceberg has"):
            shop.archive(table_format="iceberg", options={"valueFormat": "json", "valueSchema": schema})


@pytest.mark.long
def test_runs_that_crash_at_any_stage_lose_nothing_and_write_nothing_twice(
    shop: Shop, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"table_format": "iceberg", "checkpoint": checkpoint}
    for number, (owner, method, works_first) in enumerate(STAGES.values()):
        shop.sell(number * 6, 6)
        with monkeypatch.context() as patch:
            crash(patch, owner if method == "write" else IcebergTopicTable, method, works_first)
            with pytest.raises(RuntimeError, match="the machine is gone"):
                shop.archive(**settings)
    shop.sell(len(STAGES) * 6, 3)
    shop.archive(**settings)
    assert topic_partitions(shop.archived()) == all_places(len(STAGES) * 6 + 3)
