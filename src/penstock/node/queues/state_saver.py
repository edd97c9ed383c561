"""Saves the state of one queue under its fence, and answers acknowledgements when they are durable."""

import asyncio
from collections.abc import Iterable, Sequence

from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls.messages.queue_state import ClaimedState, StoreSettlement, WatchSettlements
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.queues.values import ProducerTransaction
from penstock.queue import NO_FENCE, Outcomes, QueueKey, StatePart
from penstock.queue.settlements import TransactionSettlement, encode_settlement
from penstock.queue.state_records import settlement_suffix
from penstock.types import Caller


class StateSaver:
    """The stored state of one queue, and the acknowledgements that wait for it. The driver runs one save at a time."""

    def __init__(self, client: QueueStateClient, key: QueueKey) -> None:
        self._client = client
        self._key = key
        self._fence = NO_FENCE
        self._number = 0
        self._settlements = 0
        self._waiting: dict[asyncio.Future[None], KafkaError | None] = {}
        """Acknowledgements that wait for a save, each with the error of its refused ranges."""

    async def claim(self, term: int) -> ClaimedState:
        """All stored parts. From now on only this object may save, until the next claim."""
        claimed = await self._client.claim(self._key, term)
        self._fence = claimed.fence
        return claimed

    async def save(self, parts: Sequence[StatePart]) -> None:
        """Returns when the parts are committed."""
        self._number += 1
        await self._client.save(self._key, self._fence, self._number, parts)

    def new_suffix(self) -> bytes:
        """For the record of a new settlement within a transaction."""
        self._settlements += 1
        return settlement_suffix(self._fence.number, self._settlements)

    async def store_settlement(
        self,
        suffix: bytes,
        settlement: TransactionSettlement,
        transaction: ProducerTransaction,
        *,
        caller: Caller,
    ) -> ErrorCode:
        """The same as `QueueStateClient.store_settlement`."""
        value = encode_settlement(settlement)
        request = StoreSettlement(self._key, self._fence, *transaction, suffix=suffix, value=value)
        return await self._client.store_settlement(request, caller=caller)

    async def watch_settlements(self, suffixes: Sequence[bytes]) -> Outcomes:
        """The same as `QueueStateClient.watch_settlements`."""
        return await self._client.watch_settlements(WatchSettlements(self._key, self._fence, list(suffixes)))

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
