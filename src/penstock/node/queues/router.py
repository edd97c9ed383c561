"""Queues for those who do not speak Kafka's share protocol, asked of any node: messages are taken, settled and looked
at where their partitions are led, over the inter-node port if that is elsewhere.

Whoever takes something here is known by a name alone and has no connection, so nothing tells when it goes: what it
holds comes back when its lease ends, and its seat of an exclusive queue some time after its last word (`exclusive`).

A taker that finds nothing waits in the line of every partition at once, on all nodes. The first node that has something
answers; the others are told not to wait any more, and what they hand out meanwhile beyond what was asked for is handed
back as if it had never left.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import UUID

import msgspec

from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.queues.local_queues import WAIT_MS_MAX, LocalQueues, internal_topic, leaderless
from penstock.node.queues.manager import QueueManager
from penstock.node.queues.messages import (
    Ahead,
    At,
    Look,
    One,
    Returned,
    Schedule,
    Seen,
    Taken,
    Verdicts,
    Wish,
)
from penstock.node.replication.leaders import NO_LEADER
from penstock.node.replication.partition_table import PartitionTable
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.node.peers import Rpc

TAKE, CANCEL, HAND_BACK, SETTLE, PEEK, ACCEPT, SCHEDULED = 40, 41, 42, 43, 44, 45, 46
"""Methods of the inter-node port."""

ANSWER_MS = 10_000
LOOK_AGAIN_SECONDS = 0.1
PATIENCE_SECONDS = 5.0
"""How long a leader is looked for: an election with the usual settings, and then some."""

T = TypeVar("T")

_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""What passes when an election is over, or when the nodes have heard of a topic."""


class QueueRouter:
    """Asks and answers. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        view: ClusterView,
        partitions: PartitionTable,
        queues: QueueManager,
        rpc: "Rpc | None",
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._view = view
        self._rpc = rpc
        self.here = LocalQueues(state=state, partitions=partitions, queues=queues)
        self._tickets = itertools.count(1)
        self._turn = itertools.count()
        self._tasks: set[asyncio.Future[object]] = set()
        if rpc is not None:
            rpc.handle(TAKE, _serves(Wish, self.here.take))
            rpc.handle(CANCEL, self._serve_cancel)
            rpc.handle(HAND_BACK, _serves(Returned, self.here.hand_back))
            rpc.handle(SETTLE, _serves(Verdicts, self.here.settle))
            rpc.handle(PEEK, _serves(Look, self.here.peek))
            rpc.handle(ACCEPT, _serves(One, self.here.accept))
            rpc.handle(SCHEDULED, _serves(Ahead, self.here.scheduled))

    # --- taking

    async def take(self, wish: Wish) -> list[Taken]:
        """What there is, up to what is wished for, after waiting for it as long as is wished. KafkaError and
        NodeSilent say why nobody could be asked; POLICY_VIOLATION names who has an exclusive queue."""
        self._check_places(wish.places)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wish.wait_ms / 1000
        while True:
            homes = self._homes(wish.places)
            taken, troubles = await self._take_round(wish, homes)
            left_ms = int((deadline - loop.time()) * 1000)
            if not taken and left_ms > 0 and len(troubles) < len(homes):
                taken = await self._take_waiting(wish, homes, min(left_ms, WAIT_MS_MAX))
            if taken:
                return taken
            if loop.time() >= deadline:
                if len(troubles) >= len(homes):
                    raise troubles[0] if troubles else leaderless(wish.group_id)
                return []
            if troubles or not homes:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def _check_places(self, places: Iterable[At]) -> None:
        for topic_id in dict.fromkeys(place.topic_id for place in places):
            topic = self._state.topic_by_id(UUID(bytes=topic_id))
            if topic is not None and topic.internal:
                raise internal_topic(topic.name)

    def _homes(self, places: Iterable[At]) -> list[tuple[int, list[At]]]:
        """Partitions by leader; each time another leader first, so that none is always asked before the others."""
        found: dict[int, list[At]] = {}
        for place in places:
            leader = self._leader(place)
            if leader != NO_LEADER:
                found.setdefault(leader, []).append(place)
        homes = list(found.items())
        first = next(self._turn) % max(1, len(homes))
        return homes[first:] + homes[:first]

    def _leader(self, place: At) -> int:
        topic = self._state.topic_by_id(UUID(bytes=place.topic_id))
        if topic is None or place.partition >= topic.partitions:
            return NO_LEADER
        return self._view.partition(topic, place.partition).leader

    async def _take_round(
        self, wish: Wish, homes: Sequence[tuple[int, list[At]]]
    ) -> tuple[list[Taken], list[PenstockError]]:
        taken: list[Taken] = []
        troubles: list[PenstockError] = []
        left, room = wish.max_records, wish.max_bytes
        for node, places in homes:
            if left <= 0 or room <= 0:
                break
            part = _with(wish, places=places, max_records=left, max_bytes=room, wait_ms=0)
            try:
                found = await self._ask_take(node, part)
            except PenstockError as trouble:
                held = isinstance(trouble, KafkaError) and trouble.code == ErrorCode.POLICY_VIOLATION
                if held and not taken:
                    raise
                troubles.append(trouble)
                continue
            taken += found
            left -= sum(one.count for one in found)
            room -= sum(len(one.records) for one in found)
        return taken, troubles

    async def _take_waiting(
        self, wish: Wish, homes: Sequence[tuple[int, list[At]]], wait_ms: int
    ) -> list[Taken]:
        """Waits on all nodes at once. What comes together from several may be more than was asked for."""
        ticket = next(self._tickets)
        asked = {
            asyncio.ensure_future(
                self._ask_take(node, _with(wish, places=places, wait_ms=wait_ms, ticket=ticket))
            ): node
            for node, places in homes
        }
        pending = set(asked)
        taken: list[Taken] = []
        try:
            while pending and not taken:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                taken += [row for task in done for row in _outcome(task)]
            self._cancel(ticket, [asked[task] for task in pending])
            if pending:
                await asyncio.wait(pending)
            late = [row for task in pending for row in _outcome(task)]
            return await self._within(wish, [*taken, *late])
        finally:
            late_ones = [task for task in pending if not task.done()]
            self._cancel(ticket, [asked[task] for task in late_ones])
            for task in late_ones:  # whoever asked has gone
                task.add_done_callback(lambda done: self._return_all(wish, done))

    def _return_all(self, wish: Wish, done: "asyncio.Task[list[Taken]]") -> None:
        if not done.cancelled() and done.exception() is None:
            self._spawn(self._within(_with(wish, max_records=0), done.result()))

    def _spawn(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, ticket: int, nodes: Iterable[int]) -> None:
        """Nobody wants to wait there any more. If this does not arrive, their own time ends it."""
        for node in nodes:
            if node == self._node_id:
                self.here.stop_waiting(node, ticket)
            elif self._rpc is not None:
                self._spawn(self._tell(node, ticket))

    async def _tell(self, node: int, ticket: int) -> None:
        assert self._rpc is not None
        with suppress(PenstockError):
            await self._rpc.call(NodeId(node), CANCEL, msgspec.msgpack.encode(ticket), ANSWER_MS)

    async def _within(self, wish: Wish, taken: Sequence[Taken]) -> list[Taken]:
        kept: list[Taken] = []
        left = wish.max_records
        for row in taken:
            mine, surplus = _split(row.acquired, left)
            left -= sum(last - first + 1 for first, last, _ in mine)
            if mine:
                kept.append(Taken(row.place, row.records, mine, row.lease_ms, row.life))
            if surplus:
                back = Returned(wish.group_id, wish.consumer, row.place, surplus)
                await self._hand_back(back)
        return kept

    async def _hand_back(self, back: Returned) -> None:
        with suppress(PenstockError):  # otherwise its lease will end
            await self._ask(self._leader(back.place), HAND_BACK, back, None, self.here.hand_back)

    async def _ask_take(self, node: int, wish: Wish) -> list[Taken]:
        return await self._ask(node, TAKE, wish, list[Taken], self.here.take, wait_ms=wish.wait_ms)

    # --- settling and looking

    async def settle(self, verdicts: Verdicts) -> dict[int, KafkaError]:
        """Returns when all that was taken is durable: what was refused, and why. PenstockError: nobody knows."""
        rows = await self._ask(
            self._leader(verdicts.place),
            SETTLE,
            verdicts,
            list[tuple[int, int, str]],
            self.here.settle,
        )
        return {offset: KafkaError(ErrorCode(code), message) for offset, code, message in rows}

    async def peek(self, look: Look) -> Seen:
        """What is not done, without taking it."""
        return await self._ask_leader(look.place, PEEK, look, Seen, self.here.peek)

    async def scheduled(self, ahead: Ahead) -> Schedule:
        """What is deferred on a partition."""
        return await self._ask_leader(ahead.place, SCHEDULED, ahead, Schedule, self.here.scheduled)

    async def accept(self, group_id: str, place: At, offset: int) -> None:
        """A message is done that nobody was handed. KafkaError if it was done before."""
        await self._ask_leader(place, ACCEPT, One(group_id, place, offset), None, self.here.accept)

    async def _ask_leader(
        self,
        place: At,
        method: int,
        question: msgspec.Struct,
        kind: type[T] | None,
        serve: Callable[..., Awaitable[object]],
    ) -> T:
        """Asks whoever leads, and again while that is about to become clear. Only for what may be asked twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await self._ask(self._leader(place), method, question, kind, serve)
            except KafkaError as refused:
                if refused.code not in _PASSING or loop.time() > deadline:
                    raise
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _ask(
        self,
        node: int,
        method: int,
        question: msgspec.Struct,
        kind: type[T] | None,
        serve: Callable[..., Awaitable[object]],
        *,
        wait_ms: int = 0,
    ) -> T:
        if node == self._node_id:
            return cast(T, await serve(self._node_id, question))
        if node == NO_LEADER or self._rpc is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads this partition now")
        packed = msgspec.msgpack.encode(question)
        told = await self._rpc.call(NodeId(node), method, packed, ANSWER_MS + wait_ms)
        return msgspec.msgpack.decode(told, type=kind or None)

    async def _serve_cancel(self, sender: NodeId, question: memoryview) -> bytes:
        self.here.stop_waiting(sender, msgspec.msgpack.decode(question, type=int))
        return b""


def _split(
    acquired: Iterable[tuple[int, int, int]], most: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    mine: list[tuple[int, int, int]] = []
    surplus: list[tuple[int, int]] = []
    for first, last, deliveries in acquired:
        stop = min(last, first + most - 1)
        if stop >= first:
            mine.append((first, stop, deliveries))
            most -= stop - first + 1
        if stop < last:
            surplus.append((max(first, stop + 1), last))
    return mine, surplus


def _outcome(task: "asyncio.Task[list[Taken]]") -> list[Taken]:
    """What became of one question; one that failed brought nothing, and the next round will tell why."""
    trouble = task.exception()
    if trouble is not None and not isinstance(trouble, PenstockError):
        raise trouble
    return [] if trouble is not None else task.result()


def _with(wish: Wish, **changes: object) -> Wish:
    return msgspec.structs.replace(wish, **changes)


def _serves(
    kind: type[msgspec.Struct], serve: Callable[..., Awaitable[object]]
) -> Callable[[NodeId, memoryview], Awaitable[bytes]]:
    async def answer(sender: NodeId, question: memoryview) -> bytes:
        return msgspec.msgpack.encode(await serve(sender, msgspec.msgpack.decode(question, type=kind)))

    return answer
