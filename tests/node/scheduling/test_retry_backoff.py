"""Retries come less and less often, and each reason is logged once."""

import logging

import pytest

from penstock.node.scheduling.retry_backoff import LONGEST_SECONDS, RetryBackoff

LOG = logging.getLogger("penstock.test")


def test_pauses_grow_to_half_a_minute() -> None:
    backoff = RetryBackoff("dead letters of jobs-0 wait", LOG)
    pauses = [backoff.after(ValueError("full")) for _ in range(8)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert pauses[-1] == LONGEST_SECONDS


def test_each_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    backoff = RetryBackoff("dead letters of jobs-0 wait", LOG)
    for reason in ("full", "full", "no leader", "full", "no leader"):
        backoff.after(ValueError(reason))
    said = [record.getMessage() for record in caplog.records]
    assert [line.split("; ")[0] for line in said] == [
        "dead letters of jobs-0 wait: full",
        "dead letters of jobs-0 wait: no leader",
    ]


def test_the_memory_of_reasons_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    backoff = RetryBackoff("dead letters of jobs-0 wait", LOG)
    for number in range(1_000):
        backoff.after(ValueError(f"offset {number}"))
    assert len(caplog.records) == 100


def test_work_that_goes_on_begins_with_short_pauses_and_log_lines_after_each_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backoff = RetryBackoff("transactions of queue jobs", LOG)
    for _ in range(2):
        assert [backoff.after(ValueError("no leader")) for _ in range(3)] == [1, 2, 4]
        backoff.succeeded()
    assert len(caplog.records) == 2
