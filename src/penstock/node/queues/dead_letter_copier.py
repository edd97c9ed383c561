"""Copies the dead letters of one queue, and retries until it works or the queue's driver ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.errors import PenstockError
from penstock.node.queues.stats import QueueStats
from penstock.node.scheduling.logged_bugs import logged_bugs
from penstock.node.scheduling.retry_backoff import RetryBackoff
from penstock.queue.partition import QueuePartition
from penstock.queue.values import DeadLetterRange
from penstock.types import TopicPartition

log = logging.getLogger("penstock.queues")

Write = Callable[[DeadLetterRange], Awaitable[None]]


class DeadLetterCopier:
    """Copies dead letters of one queue. At most one `copy_all` runs at a time."""

    def __init__(self, name: TopicPartition, stats: QueueStats, write: Write) -> None:
        self.is_busy = False
        """The caller sets it when it starts a task with `copy_all`."""
        self._name = name
        self._stats = stats
        self._write = write

    async def copy_all(
        self, core: QueuePartition, letters: Sequence[DeadLetterRange], goes_on: Callable[[], bool]
    ) -> None:
        """Returns early when `goes_on` is false."""
        try:
            for letter in letters:
                await self._copy(core, letter, goes_on)
        finally:
            self.is_busy = False

    async def _copy(self, core: QueuePartition, letter: DeadLetterRange, goes_on: Callable[[], bool]) -> None:
        backoff = RetryBackoff(f"dead letters of {self._name} wait", log)
        while goes_on():
            is_copied = False
            with logged_bugs(f"copying dead letters of {self._name}"):
                try:
                    await self._write(letter)
                    is_copied = True
                except PenstockError as trouble:
                    backoff.warn(trouble)
            if is_copied:
                core.dead_letters_copied(letter.first, letter.last)
                self._stats.count_dead(letter)
                return
            await asyncio.sleep(backoff.next_seconds())
