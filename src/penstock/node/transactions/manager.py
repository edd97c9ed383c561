"""Transactions on this node: requests of transactional producers.

Coordinators (`penstock.transactions`) decide; each is a durable core on one partition of the transaction topic. Here
each request finds the coordinator of its transactional id and waits for the reply. `marker_sender.py` writes the
markers that coordinators decide on, and `led_partitions.py` is the side of the partitions that they are written to.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from heapq import nlargest
from typing import TypeVar

from msgspec.structs import replace

from penstock.cluster import TRANSACTIONS_TOPIC
from penstock.config import Limits, TransactionSettings
from penstock.effects import Effect
from penstock.errors import ErrorCode
from penstock.node.calls import Calls, methods
from penstock.node.calls.messages.transactions import JoinedTransaction, JoinTransaction
from penstock.node.clock import Clock
from penstock.node.coordination.core_host import CoreHost
from penstock.node.coordination.durable_cores import DurableCores
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part
from penstock.node.replication.partition import Partition
from penstock.node.slices import in_slices
from penstock.node.transactions.figures import OVERDUE_NAMED_MAX, OpenTransaction, TransactionFigures
from penstock.node.transactions.marker_sender import MarkerSender
from penstock.transactions import (
    NO_PRODUCER_ID,
    AddRequest,
    Dialect,
    EndedTotals,
    EndRequest,
    ErrorResult,
    InitRequest,
    Producer,
    ProducerIdNeeded,
    ProducerResult,
    TransactionCoordinator,
)
from penstock.types import Caller, GroupId, TopicPartition

R = TypeVar("R", ProducerResult, ErrorResult)

BUSY_SECONDS = 0.1
"""How long a request waits for the markers of the producer's last transaction, which take some milliseconds: clients
pause for up to 500 ms after CONCURRENT_TRANSACTIONS. As long as Kafka waits before it adds partitions (V2)."""
BUSY_PAUSE_SECONDS = 0.005

ROWS_PER_TURN = 500
"""Open transactions that are looked at before other work has its turn."""

AskWithId = Callable[[TransactionCoordinator, int, object, int], list[Effect]]
"""A request that may need a producer id: takes the core, the time, the token and the id."""


class TransactionManager(Part):
    """Sends each request to the coordinator of its transactional id. Every method is called on the event loop."""

    def __init__(
        self,
        *,
        metadata: MetadataLog,
        controller: Controller,
        view: ClusterView,
        clock: Clock,
        settings: TransactionSettings,
        limits: Limits,
        calls: Calls,
    ) -> None:
        self._controller = controller
        self._markers = MarkerSender(state=metadata.state, view=view, controller=controller, calls=calls)
        self._ended = EndedTotals()
        self.cores = DurableCores(
            TRANSACTIONS_TOPIC,
            lambda: TransactionCoordinator(settings, limits, self._ended),
            partitions=settings.topic_partitions,
            metadata=metadata,
            controller=controller,
            view=view,
            clock=clock,
            send=self._markers.send,
        )
        """The coordinators: each decides for the transactional ids that hash to its partition."""
        calls.serve(methods.JOIN_TRANSACTION, self._join)

    def role_changed(self, partition: Partition) -> None:
        self.cores.role_changed(partition)

    async def stop(self) -> None:
        self.cores.stop()
        await self._markers.stop()

    # --- requests of producers; KafkaError if this node does not coordinate the transactional id

    async def init_producer_id(self, request: InitRequest) -> ProducerResult:
        def ask(core: TransactionCoordinator, now_ms: int, token: object, new_id: int) -> list[Effect]:
            return core.init_producer_id(now_ms, token, replace(request, new_producer_id=new_id))

        return await self._ask_with_id(request.transactional_id, ask)

    async def end(self, request: EndRequest) -> ProducerResult:
        def ask(core: TransactionCoordinator, now_ms: int, token: object, new_id: int) -> list[Effect]:
            return core.end(now_ms, token, replace(request, new_producer_id=new_id))

        return await self._ask_with_id(request.transactional_id, ask)

    async def _ask_with_id(self, transactional_id: str, ask: AskWithId) -> ProducerResult:
        return await _while_busy(lambda: self._ask_once(transactional_id, ask))

    async def _ask_once(self, transactional_id: str, ask: AskWithId) -> ProducerResult:
        """Gets a producer id only for a request that needs one. Each id is used for one request: a request that failed
        may have stored it."""
        host = await self.cores.home(transactional_id)
        result = await _ask(host, ask, NO_PRODUCER_ID)
        if isinstance(result, ProducerIdNeeded):
            new_id = await self._controller.next_producer_id()
            host = await self.cores.home(transactional_id)
            result = await _ask(host, ask, new_id)
        assert isinstance(result, ProducerResult), "a request that has a producer id needs no other"
        return result

    async def add_partitions(self, request: AddRequest) -> ErrorCode:
        return (await _while_busy(lambda: self._add_once(request))).error

    async def _add_once(self, request: AddRequest) -> ErrorResult:
        host = await self.cores.home(request.transactional_id)
        return await host.ask(
            ErrorResult, lambda now_ms, token: host.core.add_partitions(now_ms, token, request)
        )

    def verify(
        self, transactional_id: str, producer: Producer, partitions: list[TopicPartition]
    ) -> list[ErrorCode]:
        """Whether each partition is part of the producer's open transaction."""
        host = self.cores.find(transactional_id)
        if host is None:
            return [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * len(partitions)
        errors = host.core.verify(transactional_id, producer, partitions).errors
        return [errors[one] for one in partitions]

    # --- for operators

    async def figures(self) -> TransactionFigures:
        ages = [one.open_ms for host in self._hosts() async for one in _open_transactions(host)]
        return TransactionFigures(
            open=len(ages),
            oldest_ms=max(ages, default=0),
            committed=self._ended.committed,
            aborted=self._ended.aborted,
        )

    async def overdue(self) -> dict[GroupId, list[OpenTransaction]]:
        """Transactions that should have ended long ago (OVERDUE_AFTER_MS), the oldest first, by the coordinator's
        partition."""
        found = {}
        for host in self._hosts():
            late = [one async for one in _open_transactions(host) if one.is_overdue]
            found[host.partition.group] = nlargest(OVERDUE_NAMED_MAX, late, key=lambda one: one.open_ms)
        return found

    def _hosts(self) -> list[CoreHost[TransactionCoordinator]]:
        return list(self.cores.loaded().values())

    # --- requests of the leaders of partitions

    async def _join(self, caller: Caller, request: JoinTransaction) -> JoinedTransaction:
        producer = Producer(request.producer_id, request.producer_epoch)
        partitions = [TopicPartition(*one) for one in request.partitions]
        if not request.adds:
            codes = self.verify(request.transactional_id, producer, partitions)
            return JoinedTransaction([int(code) for code in codes])
        added = AddRequest(
            transactional_id=request.transactional_id,
            producer=producer,
            partitions=frozenset(partitions),
            dialect=Dialect.V2,
        )
        return JoinedTransaction([int(await self.add_partitions(added))] * len(partitions))


async def _open_transactions(host: CoreHost[TransactionCoordinator]) -> AsyncIterator[OpenTransaction]:
    async for one in in_slices(host.core.open_transactions(), ROWS_PER_TURN):
        age_ms = max(0, host.now_ms - one.start_ms)
        yield OpenTransaction(one.transactional_id, one.state.title, age_ms, one.timeout_ms)


async def _ask(
    host: CoreHost[TransactionCoordinator], ask: AskWithId, new_id: int
) -> ProducerResult | ProducerIdNeeded:
    result = await host.ask(object, lambda now_ms, token: ask(host.core, now_ms, token, new_id))
    assert isinstance(result, ProducerResult | ProducerIdNeeded)
    return result


async def _while_busy(ask: Callable[[], Awaitable[R]]) -> R:
    """Repeats a request while it is answered CONCURRENT_TRANSACTIONS, for a moment."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + BUSY_SECONDS
    while (result := await ask()).error is ErrorCode.CONCURRENT_TRANSACTIONS and loop.time() < deadline:
        await asyncio.sleep(BUSY_PAUSE_SECONDS)
    return result
