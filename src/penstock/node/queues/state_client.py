"""Where queues keep what must survive: the internal topic `__share_group_state`, wherever its partitions are led.

A queue on a partition hashes to one partition of that topic. Its shelf there is asked directly if this node leads it,
else over the inter-node port. Questions are repeated while the shelf moves from node to node; each may safely be asked
twice, since a claim only raises the fence and a save under the same fence and number writes the same bytes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from penstock.cluster import STATE_TOPIC, ClusterState
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.queues.state_log import QueueStateLog
from penstock.node.replication.leaders import NO_LEADER
from penstock.queue import Fence, Part, QueueKey
from penstock.types import NO_TERM, NodeId

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

log = logging.getLogger("penstock.queues")

CLAIM, SAVE, FORGET, RESET, STARTS = 20, 21, 22, 23, 24
"""Methods of the inter-node port."""

WHOLE_TOPIC = -1
"""In place of a partition: what is stored there as the start offset is a number of them, see `first_partitions`."""

PATIENCE_SECONDS = 10.0
"""How long a question looks for its shelf: an election, and then some."""
RETRY_SECONDS = 0.05
ANSWER_MS = 10_000

_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)

Serve = Callable[[memoryview], Awaitable[bytes]]


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A queue, as it is named between nodes."""

    group_id: str
    topic_id: bytes
    partition: int

    @classmethod
    def of(cls, queue: QueueKey) -> "Place":
        return cls(queue.group_id, queue.topic_id.bytes, queue.partition)

    @property
    def queue(self) -> QueueKey:
        return QueueKey(self.group_id, UUID(bytes=self.topic_id), self.partition)


class Claim(msgspec.Struct, frozen=True, array_like=True):
    place: Place
    term: int


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    term: int
    turn: int
    parts: list[tuple[bytes, bytes]]


class Save(msgspec.Struct, frozen=True, array_like=True):
    place: Place
    term: int
    turn: int
    number: int
    parts: list[tuple[bytes, bytes | None]]


class Reset(msgspec.Struct, frozen=True, array_like=True):
    place: Place
    start_offset: int
    term: int = NO_TERM


class Starts(msgspec.Struct, frozen=True, array_like=True):
    """Of the shelf with this index; a null group means all."""

    index: int
    group_id: str | None


class QueueStateClient:
    """Finds a queue's shelf and asks it."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        local: QueueStateLog,
        rpc: "Rpc | None",
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self.local = local
        """The state that this node itself leads."""
        self._rpc = rpc
        self._serve: dict[int, Serve] = {
            CLAIM: self._serve_claim,
            SAVE: self._serve_save,
            FORGET: self._serve_forget,
            RESET: self._serve_reset,
            STARTS: self._serve_starts,
        }
        if rpc is not None:
            for method, serve in self._serve.items():
                rpc.handle(method, _without_sender(serve))

    # --- questions

    async def claim(self, queue: QueueKey, term: int) -> tuple[Fence, list[tuple[bytes, bytes]]]:
        """All that is stored, and the fence for changes. KafkaError if the shelf cannot be found in time."""
        await self.local.cores.ensure_topic()
        answer = await self._ask(self.local.index_of(queue), CLAIM, Claim(Place.of(queue), term))
        claimed = msgspec.msgpack.decode(answer, type=Claimed)
        return Fence(claimed.term, claimed.turn), claimed.parts

    async def save(self, queue: QueueKey, fence: Fence, number: int, parts: Sequence[Part]) -> None:
        """Returns when it can no longer be lost."""
        question = Save(Place.of(queue), fence.term, fence.turn, number, list(parts))
        await self._ask(self.local.index_of(queue), SAVE, question)

    async def reset(self, queue: QueueKey, start_offset: int, term: int = NO_TERM) -> None:
        """The queue begins there, whatever was done before. `term`: of whose log that offset is."""
        await self.local.cores.ensure_topic()
        await self._ask(self.local.index_of(queue), RESET, Reset(Place.of(queue), start_offset, term))

    async def forget(self, queue: QueueKey) -> None:
        await self._ask(self.local.index_of(queue), FORGET, Place.of(queue))

    async def starts(self, group_id: str | None = None) -> dict[QueueKey, int]:
        """Where each queue of a group, or of all, begins by what is stored anywhere."""
        topic = self._state.topics.get(STATE_TOPIC)
        found: dict[QueueKey, int] = {}
        for index in range(topic.partitions if topic is not None else 0):
            answer = await self._ask(index, STARTS, Starts(index, group_id))
            rows = msgspec.msgpack.decode(answer, type=list[tuple[Place, int]])
            found.update((place.queue, start) for place, start in rows if place.partition != WHOLE_TOPIC)
        return found

    async def start_of(self, queue: QueueKey) -> int | None:
        """Where a queue begins by what is stored; None if nothing is."""
        if STATE_TOPIC not in self._state.topics:
            return None
        index = self.local.index_of(queue)
        answer = await self._ask(index, STARTS, Starts(index, queue.group_id))
        rows = msgspec.msgpack.decode(answer, type=list[tuple[Place, int]])
        return {place.queue: start for place, start in rows}.get(queue)

    async def first_partitions(self, queue: QueueKey) -> int:
        """How many partitions the topic had when the group began on it, which is now unless something is stored.

        The number is stored before anything else of the group on this topic. So where there is none, and there was
        something before it was looked for, that is from who does not store it: there the last partition counts."""
        whole = queue._replace(partition=WHOLE_TOPIC)
        if (count := await self.start_of(whole)) is not None:
            return count
        known = [one.partition for one in await self.starts(queue.group_id) if one.topic_id == queue.topic_id]
        if (count := await self.start_of(whole)) is not None:
            return count
        topic = self._state.topic_by_id(queue.topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {queue.topic_id}")
        count = max(known) + 1 if known else topic.partitions
        await self.reset(whole, count)
        return count

    async def _ask(self, index: int, method: int, question: msgspec.Struct) -> bytes | memoryview:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        packed = msgspec.msgpack.encode(question)
        while True:
            try:
                return await self._ask_once(index, method, packed)
            except StorageError as trouble:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)) from trouble
            except KafkaError as refused:
                if refused.code not in _ELSEWHERE or loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_once(self, index: int, method: int, question: bytes) -> bytes | memoryview:
        home = self._view.partition(self._state.topics[STATE_TOPIC], index).leader
        if home == self._node_id:
            return await self._serve[method](memoryview(question))
        if home == NO_LEADER or self._rpc is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody leads {STATE_TOPIC}-{index} now")
        from penstock.node.peers import CallFailed

        try:
            return await self._rpc.call(NodeId(home), method, question, ANSWER_MS)
        except CallFailed as failed:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failed)) from failed

    # --- answers

    async def _serve_claim(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=Claim)
        queue = wish.place.queue
        fence, parts = await self.local.claim(queue, wish.term)
        return msgspec.msgpack.encode(Claimed(fence.term, fence.turn, parts))

    async def _serve_save(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=Save)
        queue = wish.place.queue
        await self.local.save(queue, Fence(wish.term, wish.turn), wish.number, wish.parts)
        return b""

    async def _serve_forget(self, question: memoryview) -> bytes:
        queue = msgspec.msgpack.decode(question, type=Place).queue
        await self.local.forget(queue)
        return b""

    async def _serve_reset(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=Reset)
        await self.local.reset(wish.place.queue, wish.start_offset, wish.term)
        return b""

    async def _serve_starts(self, question: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(question, type=Starts)
        rows = self.local.start_offsets(wish.index, wish.group_id)
        return msgspec.msgpack.encode([(Place.of(queue), start) for queue, start in rows])


def _without_sender(serve: Serve) -> Callable[[NodeId, memoryview], Awaitable[bytes]]:
    return lambda sender, question: serve(question)
