"""Tables with the fields of the value as columns."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark import ArchiveError, PipelineError, history, replay
from penstock.spark.pipelines.table_columns import columns_of

from .conftest import Shop

JSON = {"valueFormat": "json", "valueSchema": "id bigint, city string, tags array<string>"}
WIDER = {**JSON, "valueSchema": "id bigint, amount decimal(10,2), city string, tags array<string>"}


def ids(shop: Shop, first: int, count: int, more: str = "") -> None:
    values = [
        f'{{"id": {number}, "city": "Rome", "tags": ["a"]{more}}}' for number in range(first, first + count)
    ]
    shop.produce(shop.topic, [{"value": value, "partition": 0} for value in values])


@pytest.mark.long
def test_fields_are_columns_new_ones_are_added_and_history_decodes_the_tail_alike(
    shop: Shop, tmp_path: Path
) -> None:
    shop = replace(shop, path=str(tmp_path / "lake"))  # Polars finds no files below a folder with a space
    ids(shop, 0, 3)
    shop.produce(shop.topic, [{"value": None, "partition": 1}])
    shop.archive(options=JSON)
    ids(shop, 3, 2, ', "amount": 1.5')
    shop.archive(options=WIDER, compaction=None)
    ids(shop, 5, 1, ', "amount": 2.5')
    shop.archive(options=JSON, compaction=None)  # an older program: its rows have no amount
    ids(shop, 6, 1)
    shop.archive(options=WIDER, compaction=None)
    ids(shop, 7, 1, ', "amount": 4.5')

    whole = history(
        shop.spark, shop.path, shop.topic, bootstrap_servers=shop.bootstrap_servers, with_source=True
    )
    found = whole.where("partition = 0").orderBy("offset").collect()
    amounts = [None, None, None, 1.5, 1.5, None, None, 4.5]
    assert [row.id for row in found] == list(range(8))
    assert [row.amount if row.amount is None else float(row.amount) for row in found] == amounts
    assert [row.source for row in found] == ["archive"] * 7 + ["live"]
    assert {tuple(row.tags) for row in found} == {("a",)}
    [tombstone] = whole.where("partition = 1").collect()
    assert (tombstone.id, tombstone.city) == (None, None)

    table = shop.table()
    rows = table.delta.to_pyarrow_dataset()
    assert duckdb.from_arrow(rows).aggregate("count(*), sum(id), sum(amount)").fetchall() == [(8, 21, 3)]
    frame = pl.read_delta(table.folder)
    assert (frame.height, frame["id"].sum(), frame["city"].n_unique()) == (8, 21, 2)
    assert "value" not in frame.columns


def test_a_conflict_of_columns_is_an_error_and_changes_nothing(shop: Shop) -> None:
    ids(shop, 0, 1)
    shop.archive(options=JSON)
    version = shop.table().version
    for options, said in (
        (
            {**JSON, "valueSchema": "id string"},
            "column id of .* is bigint, and the schema of this run has id string",
        ),
        ({**JSON, "valueSchema": "ID bigint"}, "has ID bigint"),
        ({}, "decoded by valueFormat=json, and this run has them as they are"),
    ):
        with pytest.raises(ArchiveError, match=said):
            shop.archive(options=options)
    assert shop.table().version == version
    with pytest.raises(PipelineError, match="cannot be replayed"):
        replay(shop.spark, shop.path, bootstrap_servers=shop.bootstrap_servers, suffix=".again")


def test_history_reads_topics_of_one_format_at_a_time(shop: Shop, make_topic: Callable[..., str]) -> None:
    ids(shop, 0, 1)
    shop.archive(options=JSON)
    with pytest.raises(ConfigError, match="read them apart"):
        history(
            shop.spark, shop.path, [shop.topic, make_topic("raw")], bootstrap_servers=shop.bootstrap_servers
        )


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("Key string", "fields with other names"),
        ("a int, A int", "fields with other names"),
        ("a struct<b: array<timestamp_ntz>>", r"a\.b timestamp_ntz"),
    ],
)
def test_fields_that_a_table_cannot_have_are_refused(spark: SparkSession, schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        columns_of({"valueFormat": "json", "valueSchema": schema})


def test_a_field_may_be_named_value_and_have_any_characters(spark: SparkSession) -> None:
    columns = columns_of({"VALUEFORMAT": "json", "valueSchema": "value int, `a b` map<string, int>"})
    rows: Any = spark.createDataFrame(
        [(None, (1, {"x": 2}))], "key binary, value struct<value: int, `a b`: map<string, int>>"
    ).selectExpr("*", "timestamp_millis(0) as timestamp")
    [row] = columns.of(rows).collect()
    assert (row["value"], row["a b"], row["date"].isoformat()) == (1, {"x": 2}, "1970-01-01")
