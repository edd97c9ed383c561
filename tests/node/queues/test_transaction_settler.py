"""Settlements are followed until their transactions end, through any trouble on the way."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.failures import Failures
from penstock.node.queues.state_saver import StateSaver
from penstock.node.queues.transaction_settler import TransactionSettler
from penstock.node.scheduling import retry_backoff
from penstock.node.scheduling.retry_backoff import RetryBackoff
from tests.log_records import own_records

NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "an election")
PATIENCE_SECONDS = 20.0


class FailingSaver:
    """Every other watch fails, until the last one says that the queue has another driver."""

    def __init__(self, watches: int) -> None:
        self._left = watches

    async def watch_settlements(self, suffixes: list[bytes]) -> list[tuple[bytes, bool]]:
        self._left -= 1
        if self._left < 0:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, "another driver")
        if self._left % 2:
            raise NO_LEADER
        return []


class Driver(SimpleNamespace):
    ended: KafkaError | None = None

    def end(self, reason: KafkaError) -> None:
        self.ended = reason


def test_the_pause_after_a_trouble_does_not_grow_with_troubles_that_are_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    next_seconds = RetryBackoff.next_seconds

    def noted(backoff: RetryBackoff) -> float:
        pauses.append(next_seconds(backoff))
        return 0.0

    monkeypatch.setattr(RetryBackoff, "next_seconds", noted)

    async def scenario() -> None:
        driver = Driver(key=SimpleNamespace(group_id="jobs"), partition=SimpleNamespace(name="t-0"))
        settler = TransactionSettler(cast(QueueDriver, driver), cast(StateSaver, FailingSaver(8)))
        settler.follow([b"one"])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await settler.stopped()

    asyncio.run(scenario())
    assert pauses == [1, 1, 1, 1]
    assert len(own_records(caplog)) == 4


def test_a_bug_in_the_end_of_one_settlement_stops_neither_the_others_nor_the_next_try(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry_backoff, "FIRST_SECONDS", 0.0)
    ended: list[bytes] = []

    def end(settler: TransactionSettler, suffix: bytes, failures: Failures, *, commit: bool) -> None:
        ended.append(suffix)
        if ended.count(b"one") <= 2 and suffix == b"one":
            raise ZeroDivisionError

    monkeypatch.setattr(TransactionSettler, "_end", end)

    class Saver:
        async def watch_settlements(self, suffixes: list[bytes]) -> list[tuple[bytes, bool]]:
            return [(suffix, True) for suffix in suffixes]

    async def scenario() -> None:
        driver = Driver(key=SimpleNamespace(group_id="jobs"), partition=SimpleNamespace(name="t-0"))
        settler = TransactionSettler(cast(QueueDriver, driver), cast(StateSaver, Saver()))
        settler.follow([b"one", b"two"])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await settler.stopped()

    asyncio.run(scenario())
    assert ended == [b"one", b"two", b"one", b"one"]
    assert len(own_records(caplog)) == 2


def test_a_bug_in_waiting_for_transactions_does_not_end_the_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry_backoff, "FIRST_SECONDS", 0.0)
    faulty = iter([True, True, False])

    class Saver:
        async def watch_settlements(self, suffixes: list[bytes]) -> list[tuple[bytes, bool]]:
            if next(faulty):
                raise ZeroDivisionError
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, "another driver")

    async def scenario() -> None:
        driver = Driver(key=SimpleNamespace(group_id="jobs"), partition=SimpleNamespace(name="t-0"))
        settler = TransactionSettler(cast(QueueDriver, driver), cast(StateSaver, Saver()))
        settler.follow([b"one"])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await settler.stopped()
        assert driver.ended is not None

    asyncio.run(scenario())
    assert [line.exc_info is not None for line in own_records(caplog)] == [True, True]
