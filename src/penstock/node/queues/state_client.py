"""The state of queues in the internal topic `__share_group_state`, wherever the leaders of its partitions are.

A queue on a partition hashes to one partition of that topic, whose leader has the queue's state in its
`QueueStateLog`. This module finds that leader and asks it (`node.calls`), and answers if this node is it.
"""

import asyncio
from collections.abc import Sequence

from penstock.cluster import STATE_TOPIC, ClusterState
from penstock.errors import ErrorCode, KafkaError, UnknownFormat
from penstock.node.calls import BROKER, Calls, LeaderOf, methods
from penstock.node.calls.messages.queue_state import (
    ClaimedState,
    ClaimState,
    CountedState,
    CountState,
    ListStartOffsets,
    ResetState,
    SaveState,
    SettlementOutcomes,
    StartOffsets,
    StoredSettlement,
    StoreSettlement,
    WatchSettlements,
)
from penstock.node.queues.state_log import QueueStateLog
from penstock.node.queues.values import as_kafka_error
from penstock.node.replication.partition import Partition
from penstock.node.transactions.led_partitions import LedPartitions
from penstock.queue import Fence, Outcomes, QueueKey, StatePart
from penstock.types import NO_TERM, Caller, GroupId, Producer

WHOLE_TOPIC = -1
"""In place of a partition: the start offset that is stored there is a number of partitions, see `first_partitions`."""

BUSY_SECONDS = 5.0
"""How long a settlement waits for the markers of its producer's last transaction, which take some milliseconds."""


class QueueStateClient:
    """Asks for the state of queues, and answers for the partitions that this node leads."""

    def __init__(
        self, *, state: ClusterState, local: QueueStateLog, transactions: LedPartitions, calls: Calls
    ) -> None:
        """`local` has the state of the partitions that this node leads."""
        self._state = state
        self.local = local
        self._transactions = transactions
        self._calls = calls
        calls.serve(methods.CLAIM_STATE, self._claim)
        calls.serve(methods.SAVE_STATE, self._save)
        calls.serve(methods.DELETE_STATE, self._delete)
        calls.serve(methods.RESET_STATE, self._reset)
        calls.serve(methods.LIST_START_OFFSETS, self._list_start_offsets)
        calls.serve(methods.COUNT_STATE, self._count)
        calls.serve(methods.STORE_SETTLEMENT, self._store_settlement)
        calls.serve(methods.WATCH_SETTLEMENTS, self._watch_settlements)

    # --- asking

    async def claim(self, queue: QueueKey, term: int) -> ClaimedState:
        """The fence for changes, and all that is stored. KafkaError if the leader cannot be reached in time."""
        await self.local.cores.ensure_topic()
        request = ClaimState(queue, term)
        return await self._calls.ask(self._leader_of(queue), methods.CLAIM_STATE, request, caller=BROKER)

    async def save(self, queue: QueueKey, fence: Fence, number: int, parts: Sequence[StatePart]) -> None:
        """Returns when it can no longer be lost."""
        request = SaveState(queue, fence, number, list(parts))
        await self._calls.ask(self._leader_of(queue), methods.SAVE_STATE, request, caller=BROKER)

    async def store_settlement(self, request: StoreSettlement, *, caller: Caller) -> ErrorCode:
        """NONE when the settlement can no longer be lost; otherwise why the transaction does not take it. KafkaError:
        it may be stored or not."""
        target = self._leader_of(request.queue)
        stored = await self._calls.ask(target, methods.STORE_SETTLEMENT, request, caller=caller)
        return ErrorCode(stored.code)

    async def watch_settlements(self, request: WatchSettlements) -> Outcomes:
        """The outcomes of settlements whose transactions have ended; waits for one, as long as the request says."""
        target = self._leader_of(request.queue)
        answer = await self._calls.ask(target, methods.WATCH_SETTLEMENTS, request, caller=BROKER)
        return answer.outcomes

    async def reset(self, queue: QueueKey, start_offset: int, term: int = NO_TERM, *, caller: Caller) -> None:
        """The queue begins at this offset, whatever was done before. `term`: of the leader in whose log it is."""
        await self.local.cores.ensure_topic()
        request = ResetState(queue, start_offset, term)
        await self._calls.ask(self._leader_of(queue), methods.RESET_STATE, request, caller=caller)

    async def forget(self, queue: QueueKey, *, caller: Caller) -> None:
        await self._calls.ask(self._leader_of(queue), methods.DELETE_STATE, queue, caller=caller)

    async def starts(self, group_id: str | None = None, *, caller: Caller) -> dict[QueueKey, int]:
        """The stored start offset of each queue of a group, or of all queues."""
        topic = self._state.topics.get(STATE_TOPIC)
        found: dict[QueueKey, int] = {}
        for index in range(topic.partitions if topic is not None else 0):
            rows = await self._start_offsets(index, group_id, caller)
            found.update((queue, start) for queue, start in rows if queue.partition != WHOLE_TOPIC)
        return found

    async def start_of(self, queue: QueueKey) -> int | None:
        """The stored start offset of a queue; None if there is none."""
        if STATE_TOPIC not in self._state.topics:
            return None
        rows = await self._start_offsets(self.local.index_of(queue), queue.group_id, BROKER)
        return dict(rows).get(queue)

    async def count(self, request: CountState) -> CountedState:
        """Counts the messages of one queue that are not done, by its stored state. KafkaError if it has none."""
        return await self._calls.ask(
            self._leader_of(request.queue), methods.COUNT_STATE, request, caller=BROKER
        )

    async def first_partitions(self, queue: QueueKey) -> int:
        """How many partitions the topic had when the group began on it: now, unless a number is stored.

        The number is stored before anything else of the group on this topic. If there is none although other state
        existed before it was looked for, an older version stored that state: then the last partition counts."""
        whole = queue._replace(partition=WHOLE_TOPIC)
        if (count := await self.start_of(whole)) is not None:
            return count
        starts = await self.starts(queue.group_id, caller=BROKER)
        known = [one.partition for one in starts if one.topic_id == queue.topic_id]
        if (count := await self.start_of(whole)) is not None:
            return count
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {queue.topic_id}")
        count = max(known) + 1 if known else topic.partitions
        await self.reset(whole, count, caller=BROKER)
        return count

    async def _start_offsets(
        self, index: int, group_id: str | None, caller: Caller
    ) -> list[tuple[QueueKey, int]]:
        request = ListStartOffsets(index, group_id)
        found = await self._calls.ask(self._leader(index), methods.LIST_START_OFFSETS, request, caller=caller)
        return found.rows

    def _leader_of(self, queue: QueueKey) -> LeaderOf:
        return self._leader(self.local.index_of(queue))

    def _leader(self, index: int) -> LeaderOf:
        return LeaderOf(GroupId(self._state.topics[STATE_TOPIC].topic_id, index))

    # --- answering

    async def _claim(self, caller: Caller, request: ClaimState) -> ClaimedState:
        return ClaimedState(*await self.local.claim(request.queue, request.term))

    async def _save(self, caller: Caller, request: SaveState) -> None:
        await self.local.save(request.queue, request.fence, request.number, request.parts)

    async def _store_settlement(self, caller: Caller, request: StoreSettlement) -> StoredSettlement:
        producer = Producer(request.producer_id, request.producer_epoch)
        partition = self.local.partition_of(request.queue)
        code = await self._join(partition, request.transactional_id, producer, caller)
        if not code:
            await self.local.settle(request.queue, request.fence, producer, request.suffix, request.value)
        return StoredSettlement(code)

    async def _join(
        self, partition: Partition, transactional_id: str, producer: Producer, caller: Caller
    ) -> ErrorCode:
        """Adds the partition to the transaction; waits while the markers of the producer's last one are written."""
        loop = asyncio.get_running_loop()
        deadline, retry = loop.time() + BUSY_SECONDS, self._calls.retry()
        while True:
            code = await self._transactions.admit(
                partition, transactional_id, producer, adds=True, caller=caller
            )
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS or loop.time() >= deadline:
                return code
            await retry.pause()

    async def _watch_settlements(self, caller: Caller, request: WatchSettlements) -> SettlementOutcomes:
        try:
            async with asyncio.timeout(request.wait_ms / 1000):
                return SettlementOutcomes(
                    await self.local.watch(request.queue, request.fence, request.suffixes)
                )
        except TimeoutError:
            return SettlementOutcomes([])

    async def _delete(self, caller: Caller, queue: QueueKey) -> None:
        await self.local.forget(queue)

    async def _reset(self, caller: Caller, request: ResetState) -> None:
        await self.local.reset(request.queue, request.start_offset, request.term)

    async def _count(self, caller: Caller, request: CountState) -> CountedState:
        try:
            return await self.local.count(request)
        except UnknownFormat as problem:
            raise as_kafka_error(problem) from problem

    def _list_start_offsets(self, caller: Caller, request: ListStartOffsets) -> StartOffsets:
        return StartOffsets(self.local.start_offsets(request.partition, request.group_id))
