"""Options for partitions and offset ranges."""

import pytest

from penstock.errors import ConfigError
from penstock.spark.read_bounds import Subscription, parse_assign, parse_offsets, parse_pattern, parse_topics
from penstock.types import TopicPartition

THERE = {"orders": (0, 1), "orders.eu": (0,), "logs": (0,)}


def test_a_list_of_topics_selects_all_their_partitions() -> None:
    chosen = Subscription(topics=parse_topics("subscribe", " orders , logs,orders")).select(THERE)
    assert chosen == [("logs", 0), ("orders", 0), ("orders", 1)]


def test_a_pattern_matches_whole_names() -> None:
    assert Subscription(pattern="orders").select(THERE) == [("orders", 0), ("orders", 1)]
    assert Subscription(pattern="orders.*").select(THERE)[-1] == ("orders.eu", 0)
    assert Subscription(pattern="nothing").select(THERE) == []


def test_assigned_partitions_are_read_and_no_others() -> None:
    subscription = Subscription(partitions=parse_assign("assign", '{"orders": [1, 7]}'))
    assert subscription.select(THERE) == [("orders", 1)]
    assert subscription.missing(THERE) == ["orders-7"]


def test_a_named_topic_may_be_missing_but_a_pattern_misses_nothing() -> None:
    assert Subscription(topics=("orders", "bills")).missing(THERE) == ["bills"]
    assert Subscription(pattern="bills").missing(THERE) == []


def test_offsets_are_read_by_topic_and_partition() -> None:
    found = parse_offsets("startingOffsets", '{"orders": {"0": 23, "1": -2}}', least=-2)
    assert found == {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '{"orders": 3}', '{"orders": {"x": 1}}', '{"orders": {"0": "1"}}', "{}"]
)
def test_invalid_json_offsets_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r'startingOffsets=.*expected JSON such as \{"orders"'):
        parse_offsets("startingOffsets", text, least=-2)


def test_an_offset_below_the_least_is_refused_and_names_its_partition() -> None:
    with pytest.raises(ConfigError, match="numbers from -1 on, and orders-0 has -2"):
        parse_offsets("endingOffsets", '{"orders": {"0": -2}}', least=-1)


@pytest.mark.parametrize("text", ["", " , ", "a b", "x" * 250, ".."])
def test_topic_names_that_cannot_exist_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="subscribe="):
        parse_topics("subscribe", text)


@pytest.mark.parametrize("text", ["", "(", "*"])
def test_an_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a regular expression"):
        parse_pattern("subscribePattern", text)


@pytest.mark.parametrize("text", ["{}", "[1]", '{"a": 1}', '{"a": [-1]}', '{"a": [true]}', '{"a": []}'])
def test_an_invalid_assignment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"assign=.*\[0, 1\]"):
        parse_assign("assign", text)
