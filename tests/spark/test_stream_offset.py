"""A stream's offset in its checkpoint, with the pinned start of its first batch."""

import json

import pytest

from penstock.errors import ConfigError
from penstock.spark import stream_offset
from penstock.spark.stream_offset import StreamOffset
from penstock.types import TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 10)


def test_an_offset_survives_the_checkpoint() -> None:
    tp = StreamOffset(positions={B: 7, A: 3}, group="g", topic_ids={"orders": "id"}, since={B: 0})
    assert stream_offset.from_json(json.loads(json.dumps(tp.to_json()))) == tp


def test_equal_offsets_have_equal_text_in_any_order() -> None:
    one = StreamOffset(positions={A: 1, B: 2}, group="g", topic_ids={"b": "1", "a": "2"})
    other = StreamOffset(positions={B: 2, A: 1}, group="g", topic_ids={"a": "2", "b": "1"})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_a_batch_begins_where_its_persisted_end_says_and_not_where_the_start_has_moved_to() -> None:
    moved = StreamOffset(positions={A: 50}, group="g", since={A: 50})
    end = StreamOffset(positions={A: 60}, group="g", since={A: 40})
    assert stream_offset.starts(moved, end) == {A: 40}


def test_later_batches_begin_where_the_last_one_ended() -> None:
    start = StreamOffset(positions={A: 60}, group="g", since={A: 40})
    end = StreamOffset(positions={A: 80, B: 5}, group="g", since={B: 0})
    assert stream_offset.starts(start, end) == {A: 60, B: 0}


def test_an_unknown_start_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(ConfigError, match="orders-10"):
        stream_offset.starts(
            StreamOffset(positions={A: 1}, group="g"), StreamOffset(positions={A: 2, B: 2}, group="g")
        )


def test_an_offset_of_the_kafka_connector_is_read() -> None:
    assert stream_offset.from_json({"orders": {"0": 3, "10": 7}}).positions == {A: 3, B: 7}


@pytest.mark.parametrize(
    "text",
    [
        {},
        {"orders": 5},
        {"orders": {"x": 1}},
        {"version": 9, "topics": {}},
        {"logOffset": 3},
        5,
        [1],
        "x",
        None,
    ],
)
def test_any_other_offset_is_refused_with_what_to_do(text: object) -> None:
    with pytest.raises(ConfigError, match="Start with a new checkpoint"):
        stream_offset.from_json(text)


def test_a_first_batch_that_another_source_left_undone_is_not_guessed_at() -> None:
    ours = StreamOffset(positions={A: 50}, group="g", since={A: 50})
    theirs = stream_offset.from_json({"orders": {"0": 60}})
    with pytest.raises(ConfigError, match="Let that source finish it"):
        stream_offset.starts(ours, theirs)
