"""Options of a reader: contradicting ones are refused when the reader is created."""

import pytest

from penstock.errors import ConfigError
from penstock.spark import options as source_options
from penstock.spark.options import SourceOptions


def parse(*, streaming: bool = False, **options: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders", **options}
    return source_options.parse(given, streaming=streaming)


@pytest.mark.parametrize(
    ("starting", "ending", "words"),
    [
        (
            {"startingOffsets": '{"orders": {"0": 5}}'},
            {"endingOffsets": '{"orders": {"0": 2}}'},
            "endingOffsets='orders-0: 2': expected 5 or more, since startingOffsets",
        ),
        (
            {"startingTimestamp": "9"},
            {"endingTimestamp": "8"},
            "endingTimestamp=8: expected a time not before",
        ),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 9}}'},
            {"endingOffsetsByTimestamp": '{"orders": {"0": 8}}'},
            "endingOffsetsByTimestamp='orders-0: 8'",
        ),
    ],
)
def test_a_batch_that_ends_before_it_begins_is_refused(
    starting: dict[str, str], ending: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(**starting, **ending)


def test_the_bounds_of_a_batch_may_be_equal_or_of_different_kinds() -> None:
    parse(startingOffsets='{"orders": {"0": 5}}', endingOffsets='{"orders": {"0": 5}}')
    parse(startingOffsets='{"orders": {"0": 5}}', endingOffsets='{"orders": {"0": -1}}')
    parse(startingTimestamp="9000", endingOffsets='{"orders": {"0": 5}}')


def test_dead_letters_go_to_one_topic() -> None:
    with pytest.raises(ConfigError, match="deadLetterTopic='a,b': expected one topic"):
        parse(badRecords="deadLetter", deadLetterTopic="a,b")


@pytest.mark.parametrize(("text", "expected_ms"), [("15M", 900_000), ("1 h", 3_600_000), ("250", 250)])
def test_times_are_written_as_spark_takes_them(text: str, expected_ms: int) -> None:
    assert parse(streaming=True, maxTriggerDelay=text).max_trigger_delay_ms == expected_ms
