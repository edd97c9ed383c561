"""Queues for callers that do not speak Kafka's share protocol, on any node: messages are received, settled and peeked
at by the leaders of their partitions (`LocalQueues`), which this module asks.

A consumer here is a name without a connection, so the broker does not notice when it goes away: its messages become
available again when their leases end, and an exclusive queue becomes free some time after the consumer's last request
(`exclusive_consumer`).

A consumer that finds nothing waits at the leaders of all partitions at once. The first leader that has messages
answers, and the waits at the others are cancelled. If another leader delivers messages meanwhile, beyond the requested
number, they are released as if they had never been delivered.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress

import msgspec

from penstock.cluster import ClusterState
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import AtNode, Calls, LeaderOf, methods
from penstock.node.calls.messages.queues import (
    AcceptRequest,
    CancelReceive,
    PeekRequest,
    PeekResult,
    ReceivedBatch,
    ReceiveRequest,
    ReturnRequest,
    ScheduledRequest,
    ScheduledResult,
    SettleRequest,
)
from penstock.node.calls.retry import may_repeat
from penstock.node.queues.local_queues import LocalQueues, internal_topic
from penstock.node.queues.local_receiver import leaderless
from penstock.node.queues.manager import QueueManager
from penstock.node.replication.partition_table import PartitionTable
from penstock.types import Caller, GroupId, NodeId

Led = Sequence[tuple[int, list[GroupId]]]
"""Nodes, each with the partitions that it leads."""
Problems = dict[int, KafkaError]
"""Why nodes delivered nothing."""

PARTITIONS_PER_TURN = 500
"""Partitions whose leader is looked up before other work gets its turn; each takes a few microseconds."""
SPREAD_FROM = 100
"""So many requests may wait before the ends of further ones are spread."""
WAIT_ID_BITS = 40
WAIT_MS_MAX = 5_000
"""One request to other nodes waits so long at most, and another one follows for a longer wait: partitions may have got
another leader meanwhile. A request to this node alone need not be repeated, because a driver that ends wakes it."""


class QueueRouter:
    """Asks the leaders. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: ClusterState,
        partitions: PartitionTable,
        queues: QueueManager,
        calls: Calls,
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._calls = calls
        self.local = LocalQueues(state=state, partitions=partitions, queues=queues, calls=calls)
        self._wait_ids = itertools.count((node_id << WAIT_ID_BITS) + 1)
        self._turn = itertools.count()
        self._tasks: set[asyncio.Future[object]] = set()

    # --- receiving

    async def receive(self, request: ReceiveRequest, *, caller: Caller) -> list[ReceivedBatch]:
        """Messages, up to the limits of the request, after waiting for them as long as it allows. KafkaError says why
        no leader could be asked; POLICY_VIOLATION names the consumer that has an exclusive queue.

        A leader that may have leased messages without this node hearing of it is not asked again, and neither is one
        that refused for good: the request goes on at the others."""
        self._check_topics(request.partitions)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds(request)
        retry = self._calls.retry()
        partitions: Sequence[GroupId] = request.partitions
        final: list[KafkaError] = []
        while True:
            led = await self._by_leader(partitions)
            received, problems = await self._receive_once(request, led, deadline, partitions, caller)
            if received:
                return received
            final += [problem for problem in problems.values() if _is_final(problem)]
            left = _without_final(led, problems)
            is_over = loop.time() >= deadline
            if (led and not left) or (is_over and len(problems) >= len(led)):
                raise next(iter([*final, *problems.values()]), leaderless(request.group_id))
            if is_over:
                return []
            if len(left) < len(led):
                skipped = {one for node, theirs in led if node not in dict(left) for one in theirs}
                partitions = [one for one in partitions if one not in skipped]
            if problems or not led:
                await retry.pause()

    async def _receive_once(
        self,
        request: ReceiveRequest,
        led: Led,
        deadline: float,
        partitions: Sequence[GroupId],
        caller: Caller,
    ) -> tuple[list[ReceivedBatch], Problems]:
        """Asks each leader, and waits at all of them if none has messages."""
        loop = asyncio.get_running_loop()
        if self._is_all_here(led, partitions):
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            return await self._receive_in_turn(request, led, caller, wait_ms=left_ms)
        received, problems = await self._receive_in_turn(request, led, caller)
        left_ms = int((deadline - loop.time()) * 1000)
        if received or left_ms <= 0 or len(problems) >= len(led):
            return received, problems
        left = _without_final(led, problems)
        received, later = await self._receive_waiting(request, left, min(left_ms, WAIT_MS_MAX), caller)
        return received, {node: one for node, one in problems.items() if _is_final(one)} | later

    def _wait_seconds(self, request: ReceiveRequest) -> float:
        """How long the request waits. Thousands of callers that began together would also end and ask again together,
        and everybody else would wait for them: so their ends are spread over the last quarter of the time."""
        seconds = request.wait_ms / 1000
        if self.local.receiver.waiting_count < SPREAD_FROM:
            return seconds
        return seconds * (1 - 0.25 * (next(self._turn) % SPREAD_FROM) / SPREAD_FROM)

    def _check_topics(self, partitions: Iterable[GroupId]) -> None:
        for topic_id in dict.fromkeys(partition.topic_id for partition in partitions):
            topic = self._state.topic_by_id(topic_id)
            if topic is not None and topic.internal:
                raise internal_topic(topic.name)

    def _is_all_here(self, led: Led, partitions: Sequence[GroupId]) -> bool:
        """Whether this node leads all partitions."""
        return len(led) == 1 and led[0][0] == self._node_id and len(led[0][1]) == len(partitions)

    async def _by_leader(self, partitions: Sequence[GroupId]) -> Led:
        """Partitions by leader; each time another leader first, so that none is always asked before the others."""
        found: dict[int, list[GroupId]] = {}
        for first in range(0, len(partitions), PARTITIONS_PER_TURN):
            if first:
                await asyncio.sleep(0)
            led, _ = self._calls.by_node(partitions[first : first + PARTITIONS_PER_TURN], LeaderOf)
            for leader, theirs in led.items():
                found.setdefault(leader, []).extend(theirs)
        leaders = list(found.items())
        first = next(self._turn) % max(1, len(leaders))
        return leaders[first:] + leaders[:first]

    async def _receive_in_turn(
        self, request: ReceiveRequest, led: Led, caller: Caller, *, wait_ms: int = 0
    ) -> tuple[list[ReceivedBatch], Problems]:
        """Asks one leader after the other, until there are enough messages."""
        received: list[ReceivedBatch] = []
        problems: Problems = {}
        records_left, bytes_left = request.max_records, request.max_bytes
        for node, partitions in led:
            if records_left <= 0 or bytes_left <= 0:
                break
            part = _with(
                request,
                partitions=partitions,
                max_records=records_left,
                max_bytes=bytes_left,
                wait_ms=wait_ms,
                wait_id=next(self._wait_ids),
            )
            try:
                found = await self._receive_from(node, part, caller)
            except KafkaError as problem:
                if problem.code == ErrorCode.POLICY_VIOLATION and not received:
                    raise
                problems[node] = problem
                continue
            received += found
            records_left -= sum(one.count for one in found)
            bytes_left -= sum(len(one.records) for one in found)
        return received, problems

    async def _receive_waiting(
        self, request: ReceiveRequest, led: Led, wait_ms: int, caller: Caller
    ) -> tuple[list[ReceivedBatch], Problems]:
        """Waits at all leaders at once. Several may answer together with more than was asked for."""
        wait_id, unwanted = next(self._wait_ids), asyncio.Event()
        waiting = _with(request, wait_ms=wait_ms, wait_id=wait_id)
        asked = {
            asyncio.ensure_future(
                self._receive_from(node, _with(waiting, partitions=partitions), caller, unwanted)
            ): node
            for node, partitions in led
        }
        pending = set(asked)
        received: list[ReceivedBatch] = []
        problems: Problems = {}

        def take(task: "asyncio.Task[list[ReceivedBatch]]") -> None:
            outcome = _outcome(task)
            if isinstance(outcome, KafkaError):
                problems[asked[task]] = outcome
            else:
                received.extend(outcome)

        try:
            while pending and not received:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    take(task)
            unwanted.set()
            self._cancel(wait_id, [asked[task] for task in pending], caller)
            if pending:
                await asyncio.wait(pending)
            for task in pending:
                take(task)
            if not received:
                _raise_policy_violation(problems)
            return await self._within(request, received, caller), problems
        finally:
            unwanted.set()
            late_ones = [task for task in pending if not task.done()]
            self._cancel(wait_id, [asked[task] for task in late_ones], caller)
            for task in late_ones:  # the consumer's request was cancelled
                task.add_done_callback(lambda done: self._return_all(request, done, caller))

    def _return_all(
        self, request: ReceiveRequest, done: "asyncio.Task[list[ReceivedBatch]]", caller: Caller
    ) -> None:
        if not done.cancelled() and done.exception() is None:
            self._spawn(self._within(_with(request, max_records=0), done.result(), caller))

    def _spawn(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, wait_id: int, nodes: Sequence[int], caller: Caller) -> None:
        """Ends the wait at these nodes. If this does not arrive, the request's own time ends it."""
        if nodes:
            request = CancelReceive(wait_id)
            self._spawn(self._calls.ask_nodes(nodes, methods.CANCEL_RECEIVE, request, caller=caller))

    async def _within(
        self, request: ReceiveRequest, received: Sequence[ReceivedBatch], caller: Caller
    ) -> list[ReceivedBatch]:
        """No more messages than were asked for; the others are given back."""
        kept: list[ReceivedBatch] = []
        left = request.max_records
        for row in received:
            mine, surplus = _split(row.acquired, left)
            left -= sum(last - first + 1 for first, last, _ in mine)
            if mine:
                kept.append(msgspec.structs.replace(row, acquired=mine))
            if surplus:
                back = ReturnRequest(request.group_id, request.consumer, row.partition, surplus)
                with suppress(KafkaError):  # otherwise their leases will end
                    await self._calls.ask(LeaderOf(row.partition), methods.RETURN, back, caller=caller)
        return kept

    async def _receive_from(
        self, node: int, request: ReceiveRequest, caller: Caller, unwanted: asyncio.Event | None = None
    ) -> list[ReceivedBatch]:
        target = AtNode(NodeId(node))
        return await self._calls.ask(target, methods.RECEIVE, request, caller=caller, unwanted=unwanted)

    # --- settling and peeking

    async def settle(self, request: SettleRequest, *, caller: Caller) -> dict[int, KafkaError]:
        """Returns when all accepted settlements are durable: the refused ones, and why."""
        target = LeaderOf(request.partition)
        result = await self._calls.ask(target, methods.SETTLE, request, caller=caller)
        return {offset: KafkaError(ErrorCode(code), message) for offset, code, message in result.refused}

    async def peek(self, request: PeekRequest, *, caller: Caller) -> PeekResult:
        """Messages that are not done, without leasing them."""
        return await self._calls.ask(LeaderOf(request.partition), methods.PEEK, request, caller=caller)

    async def scheduled(self, request: ScheduledRequest, *, caller: Caller) -> ScheduledResult:
        """Messages of a partition that are deferred."""
        target = LeaderOf(request.partition)
        return await self._calls.ask(target, methods.LIST_SCHEDULED, request, caller=caller)

    async def accept(self, request: AcceptRequest, *, caller: Caller) -> None:
        """Settles a message that was not delivered. KafkaError if it was done before."""
        await self._calls.ask(LeaderOf(request.partition), methods.ACCEPT, request, caller=caller)


def _split(
    acquired: Iterable[tuple[int, int, int]], limit: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    mine: list[tuple[int, int, int]] = []
    surplus: list[tuple[int, int]] = []
    for first, last, deliveries in acquired:
        stop = min(last, first + limit - 1)
        if stop >= first:
            mine.append((first, stop, deliveries))
            limit -= stop - first + 1
        if stop < last:
            surplus.append((max(first, stop + 1), last))
    return mine, surplus


def _outcome(task: "asyncio.Task[list[ReceivedBatch]]") -> list[ReceivedBatch] | KafkaError:
    """The messages of one leader, or its problem."""
    problem = task.exception()
    if problem is None:
        return task.result()
    if isinstance(problem, KafkaError):
        return problem
    raise problem


def _is_final(problem: KafkaError) -> bool:
    return not may_repeat(problem, repeatable=methods.RECEIVE.repeatable)


def _without_final(led: Led, problems: Problems) -> Led:
    """The leaders that may be asked again."""
    return [(node, theirs) for node, theirs in led if node not in problems or not _is_final(problems[node])]


def _raise_policy_violation(problems: Problems) -> None:
    for problem in problems.values():
        if problem.code == ErrorCode.POLICY_VIOLATION:
            raise problem


def _with(request: ReceiveRequest, **changes: object) -> ReceiveRequest:
    return msgspec.structs.replace(request, **changes)
