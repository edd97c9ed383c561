"""Waiting between tries, and giving up: one RetryBackoff for each call that is retried."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.client.errors import ClientError
from penstock.client.wire.settings import ClientSettings

T = TypeVar("T")

MAX_BACKOFF_S = 1.0
JITTER = 0.2
"""So that many tasks that lost the same broker do not all reconnect at the same moment."""


class RetryBackoff:
    """Counts tries, pauses between them, and gives up after `retry_for_ms`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.restart()

    def restart(self) -> None:
        """After progress: `retry_for_ms` starts again."""
        self._started = time.monotonic()
        self._tries = 0

    def pause(self, problem: ClientError) -> None:
        """Waits before the next try, or raises the problem if the tries are over."""
        self._tries += 1
        if not problem.retriable:
            raise problem
        waited_s = time.monotonic() - self._started
        remaining_s = self._limit_s(problem) - waited_s
        if remaining_s <= 0:
            problem.add_effort(self._effort(waited_s))
            raise problem
        time.sleep(min(self._backoff_s(), remaining_s))

    def _limit_s(self, problem: ClientError) -> float:
        limit_ms = self._settings.retry_for_ms
        return (limit_ms if problem.retry_for_ms is None else min(limit_ms, problem.retry_for_ms)) / 1000

    def _backoff_s(self) -> float:
        doublings = min(self._tries - 1, 16)
        backoff_s = min(MAX_BACKOFF_S, self._settings.retry_backoff_ms / 1000 * (1 << doublings))
        return backoff_s * random.uniform(1 - JITTER, 1 + JITTER)

    def _effort(self, waited_s: float) -> str:
        times = "once" if self._tries == 1 else f"{self._tries} times"
        return f"tried {times} in {waited_s:.1f} s; retry_for_ms={self._settings.retry_for_ms}"


def retrying(settings: ClientSettings, attempt: Callable[[], T]) -> T:
    """Calls `attempt` until it succeeds, and returns its result; raises its last problem when time is up."""
    backoff = RetryBackoff(settings)
    while True:
        try:
            return attempt()
        except ClientError as problem:
            backoff.pause(problem)
