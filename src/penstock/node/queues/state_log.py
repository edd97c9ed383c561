"""The state of queues on the node that leads it: one `QueueStateStore` per partition of the state topic.

Every method works on this node only, and raises KafkaError where another node leads the partition.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from penstock.cluster import STATE_TOPIC
from penstock.node.calls.messages.queue_state import CountedState, CountState
from penstock.node.coordination.durable_cores import DurableCores
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.queues.values import unknown_queue
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.queue import Claimed, Fence, Outcomes, QueueKey, StatePart
from penstock.queue.settings import QueueSettings
from penstock.queue.settlements import decode_settlement
from penstock.queue.state_records import HEAD_SUFFIX
from penstock.queue.state_store import Heads, QueueStateStore
from penstock.queue.stored_backlog import StoredBacklog
from penstock.queue.stored_parts import sort_parts
from penstock.types import NO_TERM, Producer

CHUNKS_PER_TURN = 16
"""Chunks of stored state that are counted in one turn of the event loop: 65,536 offsets, a few milliseconds at most."""


class QueueStateLog:
    """Claims and saves on this node."""

    def __init__(
        self,
        *,
        metadata: MetadataLog,
        controller: Controller,
        view: ClusterView,
        clock: Clock,
        partitions: int,
    ) -> None:
        self.cores = DurableCores(
            STATE_TOPIC,
            QueueStateStore,
            partitions=partitions,
            metadata=metadata,
            controller=controller,
            view=view,
            clock=clock,
        )
        self._state = metadata.state
        self._clock = clock
        self._counting = asyncio.Lock()
        self._unknown: set[UUID] = set()
        """Topics with state here that the metadata did not have at the last `tidy`."""

    def index_of(self, queue: QueueKey) -> int:
        """The partition of the state topic that holds a queue's state."""
        return self.cores.index_of(f"{queue.group_id}:{queue.topic_id}:{queue.partition}")

    async def claim(self, queue: QueueKey, term: int) -> Claimed:
        """All that is stored of a queue, and the fence under which it may be changed from now on."""
        host = self.cores.get(self.index_of(queue))
        return await host.ask(Claimed, lambda now_ms, token: host.core.claim(token, queue, term))

    async def save(self, queue: QueueKey, fence: Fence, number: int, parts: Sequence[StatePart]) -> None:
        """Returns when the parts are committed."""
        host = self.cores.get(self.index_of(queue))
        await host.ask(object, lambda now_ms, token: host.core.save(token, queue, fence, number, parts))

    def partition_of(self, queue: QueueKey) -> Partition:
        """The partition of the state topic that has the queue's state."""
        return self.cores.get(self.index_of(queue)).partition

    async def settle(
        self, queue: QueueKey, fence: Fence, producer: Producer, suffix: bytes, value: bytes
    ) -> None:
        """Returns when the settlement is committed to the log, as a part of the producer's transaction. The partition
        must have been admitted to it in this turn of the loop (`LedPartitions.admit`)."""
        host = self.cores.get(self.index_of(queue))
        await host.ask(
            object, lambda now_ms, token: host.core.settle(token, queue, fence, producer, suffix, value)
        )

    async def watch(self, queue: QueueKey, fence: Fence, suffixes: Sequence[bytes]) -> Outcomes:
        """The outcomes of these settlements, as soon as there is one."""
        host = self.cores.get(self.index_of(queue))
        return await host.ask(Outcomes, lambda now_ms, token: host.core.watch(token, queue, fence, suffixes))

    async def reset(self, queue: QueueKey, start_offset: int, term: int = NO_TERM) -> None:
        """The queue begins at this offset, whatever was done before."""
        host = self.cores.get(self.index_of(queue))
        await host.ask(object, lambda now_ms, token: host.core.reset(token, queue, start_offset, term))

    async def forget(self, queue: QueueKey) -> None:
        """Deletes the queue's state."""
        host = self.cores.get(self.index_of(queue))
        await host.ask(object, lambda now_ms, token: host.core.forget(token, [queue]))

    def start_offsets(self, index: int, group_id: str | None) -> list[tuple[QueueKey, int]]:
        """Where each queue of a group, or of all groups (None), begins, in one partition of the state topic."""
        return self.cores.get(index).core.start_offsets(group_id)

    async def count(self, request: CountState) -> CountedState:
        """Counts the messages of one queue that are not done. KafkaError if nothing is stored of it.

        Queues are counted one after the other, and a large one in turns: however many are counted, other work waits
        for CHUNKS_PER_TURN chunks at most."""
        async with self._counting:
            core = self.cores.get(self.index_of(request.queue)).core
            parts, opened = core.parts(request.queue), core.open_settlements(request.queue)
            if HEAD_SUFFIX not in parts:
                raise unknown_queue(request.queue.group_id)
            stored = sort_parts(parts)
            counted = StoredBacklog(
                stored.head,
                QueueSettings(delivery_limit=request.delivery_limit, dead_letters=request.dead_letters),
                now_ms=self._clock.wall_ms(),
                log_start_offset=request.log_start_offset,
                end_offset=request.end_offset,
            )
            for settlement in stored.settlements.values():
                counted.settle(settlement, is_open=False)
            for value in opened.values():
                counted.settle(decode_settlement(value), is_open=True)
            for count, (number, value) in enumerate(stored.chunks.items(), 1):
                counted.add(number, value)
                if count % CHUNKS_PER_TURN == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        return CountedState(stored.head.term, counted.state_end, counted.backlog)

    async def committed_heads(self, index: int) -> tuple[int, Heads]:
        """The heads of all queues in one partition of the state topic, with the term in which this node leads it.
        KafkaError if another node may know newer ones by then."""
        host = self.cores.get(index)
        heads = await host.ask(Heads, lambda now_ms, token: host.core.committed_heads(token))
        self.cores.check_serves(host)
        return host.term, heads

    async def tidy(self) -> None:
        """Deletes the state of topics that are gone. A topic counts as gone if the metadata did not have it at the
        last call either; otherwise it may be too new for this node's metadata."""
        known = {topic.topic_id for topic in self._state.topics.values()}
        hosts = [host for host in self.cores.loaded().values() if host.serves]
        unknown = {topic_id for host in hosts for topic_id in host.core.topic_ids() if topic_id not in known}
        gone, self._unknown = frozenset(unknown & self._unknown), unknown
        for host in hosts if gone else ():
            core = host.core
            await host.ask(object, lambda now_ms, token: core.forget(token, core.queues_of(gone)))  # noqa: B023
