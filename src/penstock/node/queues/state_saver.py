"""Saves the state of one queue under its fence, and answers acknowledgements when they are durable."""

import asyncio
from collections.abc import Iterable, Sequence

from penstock.errors import KafkaError
from penstock.node.queues.state_client import QueueStateClient
from penstock.queue import NO_FENCE, QueueKey, StatePart


class StateSaver:
    """The stored state of one queue, and the acknowledgements that wait for it. The driver runs one save at a time."""

    def __init__(self, client: QueueStateClient, key: QueueKey) -> None:
        self._client = client
        self._key = key
        self._fence = NO_FENCE
        self._number = 0
        self._waiting: dict[asyncio.Future[None], KafkaError | None] = {}
        """Acknowledgements that wait for a save, each with the error of its refused ranges."""

    async def claim(self, term: int) -> dict[bytes, bytes]:
        """All stored parts. From now on only this object may save, until the next claim."""
        self._fence, parts = await self._client.claim(self._key, term)
        return dict(parts)

    async def save(self, parts: Sequence[StatePart]) -> None:
        """Returns when the parts are committed."""
        self._number += 1
        await self._client.save(self._key, self._fence, self._number, parts)

    def add_waiting(self, future: asyncio.Future[None], error: KafkaError | None) -> None:
        """The future is answered, with this error if there is one, when a save that contains it is committed."""
        self._waiting[future] = error
        future.add_done_callback(lambda done: self._waiting.pop(done, None))

    def answer(self, saved: Iterable[object]) -> None:
        """These acknowledgements are durable."""
        for future in saved:
            if isinstance(future, asyncio.Future) and not future.done():
                resolve(future, self._waiting.get(future))

    def fail(self, error: KafkaError) -> None:
        """No more is saved: acknowledgements that wait get this error."""
        for future in list(self._waiting):
            if not future.done():
                resolve(future, error)


def resolve(future: asyncio.Future[None], error: KafkaError | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # otherwise asyncio logs an error that no caller awaits
