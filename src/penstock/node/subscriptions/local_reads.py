"""Reads for subscribers from the partitions that this node leads, without a request.

Most subscribers are at the end of a partition, and a read for them is a wait for the next commit, and then a page of
recent records. A Fetch request of the node to itself costs several times as much as that. So this reader waits for the
commit and reads the log itself. It leaves all else to requests: partitions that other nodes lead, records that a thread
has to load from the disk first, batches that are larger than a page, while there is no memory for it, and errors.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.errors import KafkaError, PenstockError
from penstock.node.calls.calls import BROKER
from penstock.node.replication.fetch_waiter import FetchWaiter
from penstock.node.subscriptions.values import BatchesRead, Bounds, PartitionReader
from penstock.types import Isolation, Offset, Operation, TopicPartition

if TYPE_CHECKING:
    from penstock.node import Node
    from penstock.node.replication.partition import Partition

BATCH_BYTES = 64 * 1024
"""The largest batch that is read here. A request counts the memory of larger ones."""
NO_BATCHES = BatchesRead(b"")


class LocalReads:
    """Reads for all subscribers of one node."""

    def __init__(self, node: "Node", reader: PartitionReader) -> None:
        self._node = node
        self._reader = reader
        """Sends requests to the leaders."""

    async def read(
        self, key: TopicPartition, offset: int, *, max_bytes: int, wait_ms: int, isolation: Isolation
    ) -> BatchesRead:
        """The same as `PartitionReader.read`."""
        partition = self._led_here(key)
        if partition is not None and partition.end_for(isolation) == offset:
            if not wait_ms:
                return NO_BATCHES
            await _commit_of(partition, wait_ms, isolation)
            partition = self._led_here(key)  # the wait ends, too, when it moves to another node
        if partition is not None:
            found = self._read_here(partition, offset, max_bytes, isolation)
            if found is not None:
                return found
        return await self._reader.read(key, offset, max_bytes=max_bytes, wait_ms=wait_ms, isolation=isolation)

    async def bounds(
        self, topic: str, partitions: Sequence[int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Mapping[int, Bounds]:
        return await self._reader.bounds(topic, partitions, isolation)

    async def ends_of_terms(self, topic: str, terms: Mapping[int, int]) -> Mapping[int, int]:
        return await self._reader.ends_of_terms(topic, terms)

    def _led_here(self, key: TopicPartition) -> "Partition | None":
        """The partition, if this node may serve its records."""
        try:
            partition = self._node.resources.led_partition(BROKER, *key, Operation.READ)
            partition.check_readable()
        except KafkaError:
            return None
        return partition

    def _read_here(
        self, partition: "Partition", offset: int, max_bytes: int, isolation: Isolation
    ) -> BatchesRead | None:
        """None if it takes a request."""
        end = partition.end_for(isolation)
        if end == offset:
            return NO_BATCHES
        start = Offset(offset)
        try:
            if self._node.client_memory.room < BATCH_BYTES or partition.cold_range(start, max_bytes):
                return None
            data = partition.read(start, max_bytes, end=end, at_least_one=True, first_max=BATCH_BYTES)
        except PenstockError:
            return None
        if not data:
            return None
        if isolation is Isolation.READ_UNCOMMITTED:
            return BatchesRead(data)
        aborted = sorted(partition.aborted_in(start, data), key=lambda one: one.first_offset)
        return BatchesRead(data, [(one.producer_id, one.first_offset) for one in aborted])


async def _commit_of(partition: "Partition", wait_ms: int, isolation: Isolation) -> None:
    """Returns when readers may see more, when something else has changed, or after so long."""
    loop = asyncio.get_running_loop()
    waiter = FetchWaiter(1, loop.create_future(), isolation)
    timer = loop.call_later(wait_ms / 1000, waiter.wake)
    partition.add_waiter(waiter)
    try:
        await waiter.future
    finally:
        timer.cancel()
        partition.remove_waiter(waiter)
