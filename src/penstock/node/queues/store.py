"""Where queues keep what must survive: the internal topic `__share_group_state`, wherever its partitions are led.

A queue on a partition hashes to one partition of that topic. Its shelf there is asked directly if this node leads it,
else over the inter-node port. Questions are repeated while the shelf moves from node to node; each may safely be asked
twice, since a claim only raises the fence and a save under the same fence writes the same bytes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from penstock.cluster import STATE_TOPIC, ClusterState
from penstock.errors import ErrorCode, KafkaError, PenstockError, StorageError
from penstock.groups import offsets_partition
from penstock.node.clock import Clock
from penstock.node.controller import Controller
from penstock.node.leaders import NO_LEADER
from penstock.node.partition import Partition
from penstock.node.queues.shelf import Fence, Part, QueueKey, Shelf
from penstock.node.view import ClusterView
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

log = logging.getLogger("penstock.queues")

CLAIM, SAVE, FORGET = 20, 21, 22
"""Methods of the inter-node port."""

PATIENCE_SECONDS = 10.0
"""How long a question looks for its shelf: an election, and then some."""
RETRY_SECONDS = 0.05
ANSWER_MS = 10_000
RECORDS_PER_TURN = 200
LOAD_AT_ONCE_BYTES = 128 * 1024

_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class Claim(msgspec.Struct, frozen=True, array_like=True):
    group_id: str
    topic_id: bytes
    partition: int
    term: int


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    term: int
    turn: int
    parts: list[tuple[bytes, bytes]]


class Save(msgspec.Struct, frozen=True, array_like=True):
    group_id: str
    topic_id: bytes
    partition: int
    term: int
    turn: int
    number: int
    parts: list[tuple[bytes, bytes | None]]


class Forget(msgspec.Struct, frozen=True, array_like=True):
    group_id: str
    topic_id: bytes
    partition: int


class QueueStore:
    """Finds a queue's shelf and asks it."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        controller: Controller,
        clock: Clock,
        partitions: int,
        rpc: "Rpc | None",
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._controller = controller
        self._clock = clock
        self._partitions = partitions
        self._rpc = rpc
        self._shelves: dict[int, Shelf] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._homes: dict[int, Partition] = {}
        if rpc is not None:
            rpc.handle(CLAIM, self._serve_claim)
            rpc.handle(SAVE, self._serve_save)
            rpc.handle(FORGET, self._serve_forget)

    # --- shelves on this node

    def partition_moved(self, partition: Partition) -> None:
        """This node began or ceased to lead a partition of the state topic."""
        index = partition.name.partition
        self._homes[index] = partition
        shelf = self._shelves.get(index)
        if shelf is not None and not (partition.serves and partition.term == shelf.term):
            del self._shelves[index]
        if (loading := self._loading.pop(index, None)) is not None:
            loading.cancel()
        if partition.serves and index not in self._shelves:
            self._load(index, partition)

    def _load(self, index: int, partition: Partition) -> None:
        shelf = Shelf(partition, self._clock)
        if partition.log.size_bytes > LOAD_AT_ONCE_BYTES:
            task = asyncio.get_running_loop().create_task(self._load_gently(index, shelf))
            self._loading[index] = task
            return
        try:
            for _ in shelf.load():
                pass
        except (PenstockError, ValueError) as trouble:
            log.error("the queues' state on %s stays offline: %s", partition.name, trouble)
        else:
            self._shelves[index] = shelf

    async def _load_gently(self, index: int, shelf: Shelf) -> None:
        try:
            for count, _ in enumerate(shelf.load()):
                if count % RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
        except (PenstockError, ValueError) as trouble:
            log.error("the queues' state on partition %d stays offline: %s", index, trouble)
        else:
            self._shelves[index] = shelf
        del self._loading[index]

    def topics_gone(self, topic_ids: Sequence[UUID]) -> list[Awaitable[None]]:
        """What has to be awaited to forget the state of deleted topics that is kept here."""
        return [shelf.forget_topics(topic_ids) for shelf in self._shelves.values() if shelf.serves]

    def stored(self) -> list[QueueKey]:
        """All queues whose state is kept on this node."""
        return [key for shelf in self._shelves.values() for key in shelf.queues()]

    def stop(self) -> None:
        for task in self._loading.values():
            task.cancel()

    # --- questions

    async def claim(self, queue: QueueKey, term: int) -> tuple[Fence, list[tuple[bytes, bytes]]]:
        """All that is stored, and the fence for changes. KafkaError if the shelf cannot be found in time."""
        await self._ensure_topic()
        question = Claim(queue.group_id, queue.topic_id.bytes, queue.partition, term)

        async def here(shelf: Shelf) -> bytes:
            fence, parts = await shelf.claim(queue, term)
            return _pack(Claimed(fence.term, fence.turn, parts))

        answer = msgspec.msgpack.decode(await self._ask(queue, CLAIM, question, here), type=Claimed)
        return Fence(answer.term, answer.turn), answer.parts

    async def save(self, queue: QueueKey, fence: Fence, number: int, parts: Sequence[Part]) -> None:
        """Returns when it can no longer be lost."""
        question = Save(
            queue.group_id, queue.topic_id.bytes, queue.partition, fence.term, fence.turn, number, list(parts)
        )

        async def here(shelf: Shelf) -> bytes:
            await shelf.save(queue, fence, number, parts)
            return b""

        await self._ask(queue, SAVE, question, here)

    async def forget(self, queue: QueueKey) -> None:
        async def here(shelf: Shelf) -> bytes:
            await shelf.forget(queue)
            return b""

        question = Forget(queue.group_id, queue.topic_id.bytes, queue.partition)
        await self._ask(queue, FORGET, question, here)

    async def _ensure_topic(self) -> None:
        if STATE_TOPIC not in self._state.topics:
            await self._controller.create_internal_topic(STATE_TOPIC, self._partitions)

    async def _ask(
        self,
        queue: QueueKey,
        method: int,
        question: msgspec.Struct,
        here: Callable[[Shelf], Awaitable[bytes]],
    ) -> bytes | memoryview:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._ask_once(queue, method, question, here)
            except StorageError as trouble:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)) from trouble
            except KafkaError as refused:
                if refused.code not in _ELSEWHERE or loop.time() > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_once(
        self,
        queue: QueueKey,
        method: int,
        question: msgspec.Struct,
        here: Callable[[Shelf], Awaitable[bytes]],
    ) -> bytes | memoryview:
        index = self._index(queue)
        home = self._view.partition(self._state.topics[STATE_TOPIC], index).leader
        if home == self._node_id:
            return await here(self._shelf(index))
        if home == NO_LEADER or self._rpc is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody leads {STATE_TOPIC}-{index} now")
        from penstock.node.peers import CallFailed

        try:
            return await self._rpc.call(NodeId(home), method, _pack(question), ANSWER_MS)
        except CallFailed as failed:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(failed)) from failed

    def _index(self, queue: QueueKey) -> int:
        topic = self._state.topics.get(STATE_TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{STATE_TOPIC} is being made")
        return offsets_partition(f"{queue.group_id}:{queue.topic_id}:{queue.partition}", topic.partitions)

    def _shelf(self, index: int) -> Shelf:
        shelf = self._shelves.get(index)
        if shelf is not None and shelf.is_broken:
            del self._shelves[index]
            self._load(index, self._homes[index])
            shelf = self._shelves.get(index)
        if shelf is None:
            code = (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                if index in self._loading
                else ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
            raise KafkaError(code, f"{STATE_TOPIC}-{index} is not ready here")
        return shelf

    # --- answers

    async def _serve_claim(self, sender: NodeId, body: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(body, type=Claim)
        queue = QueueKey(wish.group_id, UUID(bytes=wish.topic_id), wish.partition)
        fence, parts = await self._shelf(self._index(queue)).claim(queue, wish.term)
        return _pack(Claimed(fence.term, fence.turn, parts))

    async def _serve_save(self, sender: NodeId, body: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(body, type=Save)
        queue = QueueKey(wish.group_id, UUID(bytes=wish.topic_id), wish.partition)
        fence = Fence(wish.term, wish.turn)
        await self._shelf(self._index(queue)).save(queue, fence, wish.number, wish.parts)
        return b""

    async def _serve_forget(self, sender: NodeId, body: memoryview) -> bytes:
        wish = msgspec.msgpack.decode(body, type=Forget)
        queue = QueueKey(wish.group_id, UUID(bytes=wish.topic_id), wish.partition)
        await self._shelf(self._index(queue)).forget(queue)
        return b""


def _pack(value: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(value)
