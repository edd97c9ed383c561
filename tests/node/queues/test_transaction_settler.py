"""Settlements are followed until their transactions end, through any trouble on the way."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.retry_backoff import RetryBackoff
from penstock.node.queues.state_saver import StateSaver
from penstock.node.queues.transaction_settler import TransactionSettler

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
    after = RetryBackoff.after

    def noted(backoff: RetryBackoff, trouble: Exception) -> float:
        pauses.append(after(backoff, trouble))
        return 0.0

    monkeypatch.setattr(RetryBackoff, "after", noted)

    async def scenario() -> None:
        driver = Driver(key=SimpleNamespace(group_id="jobs"), partition=SimpleNamespace(name="t-0"))
        settler = TransactionSettler(cast(QueueDriver, driver), cast(StateSaver, FailingSaver(8)))
        settler.follow([b"one"])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await settler.stopped()

    asyncio.run(scenario())
    assert pauses == [1, 1, 1, 1]
    assert len(caplog.records) == 4
