"""Conversion of Spark's progress, times and errors."""

from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.progress import from_spark
from penstock.spark.pipelines.running import Schedule, reason, spark_interval


def progress(**more: Any) -> dict[str, Any]:
    return {
        "batchId": 3,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "numInputRows": 50,
        "durationMs": {"triggerExecution": 500, "addBatch": 400},
        **more,
    }


def test_a_rate_is_rows_divided_by_the_duration_of_the_batch() -> None:
    found = from_spark(progress())
    assert (found.batch_id, found.rows, found.rows_per_second, found.duration_ms) == (3, 50, 100.0, 500)
    assert found.steps_ms == {"addBatch": 400}


def test_lag_counts_the_records_after_the_batch() -> None:
    source = {
        "endOffset": '{"version": 1, "topics": {"orders": {"0": 10, "1": 5}}}',
        "latestOffset": '{"version": 1, "topics": {"orders": {"0": 15, "1": 5, "2": 7}}}',
    }
    assert from_spark(progress(sources=[source])).lag == 12


def test_lag_is_unknown_if_the_source_does_not_report_it() -> None:
    assert from_spark(progress(sources=[{"endOffset": "-", "latestOffset": None}])).lag is None


def test_late_rows_are_those_dropped_by_the_watermark() -> None:
    assert from_spark(progress(stateOperators=[{"numRowsDroppedByWatermark": 4}])).late_rows == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10s", "10 seconds"), ("500ms", "500 milliseconds"), ("2m", "2 minutes"), ("1 hour", "1 hour")],
)
def test_times_are_written_short_or_as_spark_has_them(text: str, expected: str) -> None:
    assert spark_interval(text) == expected


@pytest.mark.parametrize("text", ["", "10", "soon", "-1s", "1.5s"])
def test_an_invalid_time_is_refused_before_a_pipeline_begins(text: str) -> None:
    with pytest.raises(ConfigError, match="every"):
        Schedule(every=text)


def test_java_errors_are_shown_as_their_message_without_the_call() -> None:
    text = "An error occurred while calling o43.mkdirs.\n: java.io.IOException: No space left\n\tat x.Y.z(Y.java:1)"
    assert reason(RuntimeError(text)) == "No space left"
    assert (
        reason(RuntimeError("An error occurred while calling o1.x.\n: java.lang.Error\n\tat x"))
        == "java.lang.Error"
    )


def test_spark_errors_are_shown_as_our_own_message() -> None:
    text = "[STREAM_FAILED] Query ended\nTraceback\npenstock.errors.ConfigError: topic='x': expected y\n at"
    assert reason(RuntimeError(text)) == "topic='x': expected y"
    assert reason(RuntimeError("[A] first\nsecond")) == "[A] first"
