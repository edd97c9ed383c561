"""An archive through a function into a new topic."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame

from penstock.errors import ConfigError
from penstock.spark import BatchProgress, PipelineError, Replayed, Schedule, Selection, reprocess

from .conftest import Shop, plain


def shouted(records: DataFrame) -> DataFrame:
    """Leaves out records without a value."""
    return records.where("value is not null").selectExpr(
        "key", "upper(string(value)) AS value", "partition", "timestamp", "headers", "'other' AS topic"
    )


def values_only(records: DataFrame) -> DataFrame:
    return records.selectExpr("coalesce(string(value), 'none') AS value")


def run(shop: Shop, function: Any = shouted, **settings: Any) -> Replayed:
    given = {"to_topic": shop.topic + ".new", **settings}
    return reprocess(shop.spark, shop.path, function, bootstrap_servers=shop.bootstrap_servers, **given)


def test_the_results_of_a_function_are_written_in_order_and_counted(
    shop: Shop, read: Callable[..., Any]
) -> None:
    shop.sell(0, 60)
    shop.archive()
    seen: list[BatchProgress] = []
    stopped = Schedule(on_batch=seen.append, stop=lambda: bool(seen))
    first = run(shop, step_offsets=8, schedule=stopped)
    assert (first.finished, first.rows, first.created) == (False, seen[0].rows, (shop.topic + ".new",))
    done = run(shop)
    columns = ("partition", "key", "value", "timestamp", "headers")
    expected = [
        (partition, key, value.upper(), *rest)
        for partition, key, value, *rest in plain(read(shop.topic, includeHeaders="true"), *columns)
        if value is not None
    ]
    committed = read(shop.topic + ".new", includeHeaders="true", kafka__isolation__level="read_committed")
    assert plain(committed, *columns) == expected
    assert (done.rows, done.resumed, done.finished) == (len(expected), True, True)


def test_a_function_may_give_values_alone(shop: Shop, read: Callable[..., Any]) -> None:
    shop.sell(0, 9)
    shop.archive()
    assert run(shop, values_only, selection=Selection(to_offset=2)).rows == 6
    assert {row.key for row in read(shop.topic + ".new").collect()} == {None}


def test_what_cannot_be_reprocessed_is_refused(shop: Shop) -> None:
    shop.sell(0, 3)
    shop.archive()
    for function in (lambda records: records, "shouted", None):
        with pytest.raises(ConfigError, match="a function with a name"):
            run(shop, function)
    with pytest.raises(ConfigError, match="to_topic"):
        run(shop, to_topic="not a name")
    with pytest.raises(PipelineError, match="already has records"):
        run(shop, to_topic=shop.topic)
