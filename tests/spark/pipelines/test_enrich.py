"""A stream joined with a topic as a table."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Broker
from penstock.errors import ConfigError
from penstock.spark import Enrichment, PipelineError, enrich

Make = Callable[..., str]


@pytest.fixture
def run(spark: SparkSession, broker: Broker, checkpoint: str) -> Callable[..., Any]:
    def start(source: str, enrichment: Enrichment, target: str, **more: Any) -> Any:
        given = {"checkpoint": checkpoint, **more}
        return enrich(
            spark, source, enrichment, bootstrap_servers=broker.bootstrap_servers, to_topic=target, **given
        )

    return start


def test_each_record_gets_the_newest_row_of_its_key(
    run: Callable[..., Any],
    make_topic: Make,
    produce: Callable[..., None],
    read: Callable[..., Any],
    unique: Callable[[str], str],
) -> None:
    orders, customers, target = (
        make_topic("orders"),
        make_topic("customers", cleanup_policy="compact"),
        unique("full"),
    )
    produce(
        customers,
        [
            {"key": "ann", "value": '{"city": "old"}'},
            {"key": "ann", "value": '{"city": "Oslo", "n": 1.50}'},
            {"key": "bob", "value": 'plain "text"'},
            {"key": "cid", "value": "{}"},
            {"key": "cid", "value": None},
        ],
    )
    values = [
        '{"id": 1, "who": {"name": "ann"}, "sum": 10.00}',
        '{"id": 2, "who": {"name": "bob"}} ',
        '{"id": 3, "who": {"name": "cid"}}',
        "{}",
        "no json",
        '{"who": {"name": "ann"}} trailing',
    ]
    produce(orders, [{"key": f"k{at}", "value": value} for at, value in enumerate(values)])
    by_name = Enrichment(table=customers, key="who.name", field="customer")
    assert run(orders, by_name, target).rows == 6
    found = read(target).orderBy("offset").collect()
    assert [row.key.decode() for row in found] == [f"k{at}" for at in range(6)], "in order"
    assert [bytes(row.value).decode() for row in found] == [
        '{"id": 1, "who": {"name": "ann"}, "sum": 10.00,"customer":{"city": "Oslo", "n": 1.50}}',
        '{"id": 2, "who": {"name": "bob"},"customer":"plain \\"text\\""}',
        '{"id": 3, "who": {"name": "cid"},"customer":null}',
        '{"customer":null}',
        "no json",
        '{"who": {"name": "ann"}} trailing',
    ]
    produce(customers, [{"key": "cid", "value": '{"city": "Bern"}'}])
    produce(orders, [{"key": "later", "value": values[2]}])
    run(orders, by_name, target)
    last = read(target).orderBy("offset").collect()[-1]
    assert json.loads(last.value)["customer"] == {"city": "Bern"}, "the table has moved on"


def test_records_without_a_row_are_left_out_on_request(
    run: Callable[..., Any],
    make_topic: Make,
    produce: Callable[..., None],
    read: Callable[..., Any],
    unique: Callable[[str], str],
) -> None:
    orders, table, target = make_topic("orders"), make_topic("table"), unique("full")
    produce(table, [{"key": "a", "value": "1"}])
    produce(orders, [{"key": "a", "value": "{}"}, {"key": "b", "value": "{}"}, {"value": "{}"}])
    run(orders, Enrichment(table=table, required=True, field="n"), target)
    assert [bytes(row.value) for row in read(target).collect()] == [b'{"n":1}']


def test_what_cannot_be_meant_is_refused(run: Callable[..., Any], make_topic: Make) -> None:
    orders = make_topic("orders")
    for enrichment, target, said in (
        (Enrichment(table="not a name"), "t", "table"),
        (Enrichment(table="t", key="a*"), "x", "key="),
        (Enrichment(table="t", field='a"b'), "x", "field="),
        (Enrichment(table="t"), "t", "another topic than the table"),
        (Enrichment(table="t"), orders, "does not read"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(orders, enrichment, target)
    with pytest.raises(PipelineError, match="does not exist"):
        run(orders, Enrichment(table="no-such-table"), "x")
