"""Transactions on this node: requests of transactional producers.

Coordinators (`penstock.transactions`) decide; each is a durable core on one partition of the transaction topic. Here
each request finds the coordinator of its transactional id and waits for the reply. `marker_sender.py` writes the
markers that coordinators decide on, and `led_partitions.py` is the side of the partitions that they are written to.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from heapq import nlargest
from typing import TypeVar

from msgspec.structs import replace

from penstock.cluster import TRANSACTIONS_TOPIC
from penstock.config import Limits, TransactionSettings
from penstock.effects import Effect
from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import Calls, methods
from penstock.node.calls.messages.transactions import (
    AbortTransaction,
    JoinedTransaction,
    JoinTransaction,
)
from penstock.node.coordination.core_host import CoreHost
from penstock.node.coordination.durable_cores import DurableCores
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.metadata.controller import Controller
from penstock.node.metadata.metadata_log import MetadataLog
from penstock.node.parts import Part
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.node.scheduling.slices import in_slices
from penstock.node.transactions.figures import OVERDUE_NAMED_MAX, OpenTransaction, TransactionFigures
from penstock.node.transactions.marker_sender import MarkerSender
from penstock.transactions import (
    NEVER_MS,
    NO_PRODUCER_ID,
    AddRequest,
    DecisionResult,
    Dialect,
    EndedTotals,
    EndRequest,
    ErrorResult,
    InitRequest,
    LendResult,
    Producer,
    ProducerIdNeeded,
    ProducerResult,
    TransactionCoordinator,
)
from penstock.types import Caller, GroupId, TopicPartition

R = TypeVar("R", bound=ProducerResult | ErrorResult | LendResult | DecisionResult)

BUSY_SECONDS = 0.1
"""How long a request waits for the markers of the producer's last transaction, which take some milliseconds: clients
pause for up to 500 ms after CONCURRENT_TRANSACTIONS. As long as Kafka waits before it adds partitions (V2)."""

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
            lambda: TransactionCoordinator(settings, limits, self._ended, self.cores.index_of),
            partitions=settings.topic_partitions,
            metadata=metadata,
            controller=controller,
            view=view,
            clock=clock,
            send=self._markers.send,
        )
        """The coordinators: each decides for the transactional ids that hash to its partition."""
        self._busy: dict[tuple[CoreHost[TransactionCoordinator], str], asyncio.Task[None]] = {}
        """Tasks that end when a transactional id is not busy any more: one for all requests that wait for it."""
        calls.serve(methods.JOIN_TRANSACTION, self._join)
        calls.serve(methods.ABORT_TRANSACTION, self._abort)

    def role_changed(self, partition: Partition) -> None:
        self.cores.role_changed(partition)

    async def stop(self) -> None:
        self.cores.stop()
        await self._markers.stop()

    # --- requests of producers; KafkaError if this node does not coordinate the transactional id

    async def init_producer_id(self, request: InitRequest) -> ProducerResult:
        def ask(core: TransactionCoordinator, now_ms: int, token: object, new_id: int) -> list[Effect]:
            return core.init_producer_id(now_ms, token, replace(request, new_producer_id=new_id))

        return await self.ask_with_id(request.transactional_id, ask, ProducerResult)

    async def end(self, request: EndRequest) -> ProducerResult:
        def ask(core: TransactionCoordinator, now_ms: int, token: object, new_id: int) -> list[Effect]:
            return core.end(now_ms, token, replace(request, new_producer_id=new_id))

        return await self.ask_with_id(request.transactional_id, ask, ProducerResult)

    async def ask_with_id(self, transactional_id: str, ask: AskWithId, kind: type[R]) -> R:
        """The answer of this kind to a request that may need a new producer id."""
        return await self._while_busy(transactional_id, lambda: self._ask_once(transactional_id, ask, kind))

    async def _ask_once(self, transactional_id: str, ask: AskWithId, kind: type[R]) -> R:
        """Gets a producer id only for a request that needs one. Each id is used for one request: a request that failed
        may have stored it."""
        host = await self.cores.host_of(transactional_id)
        result = await _ask(host, ask, NO_PRODUCER_ID)
        if isinstance(result, ProducerIdNeeded):
            new_id = await self._controller.next_producer_id()
            host = await self.cores.host_of(transactional_id)
            result = await _ask(host, ask, new_id)
        assert isinstance(result, kind), "a request that has a producer id needs no other"
        return result

    async def add_partitions(self, request: AddRequest) -> ErrorCode:
        name = await self._id_of(request.transactional_id, request.producer)
        added = replace(request, transactional_id=name)
        return (await self._while_busy(name, lambda: self._add_once(added))).error

    async def _id_of(self, transactional_id: str, producer: Producer) -> str:
        """The same id, or that of the attempt whose producer this is. Both have the same coordinator."""
        host = await self.cores.host_of(transactional_id)
        return host.core.id_of(transactional_id, producer)

    async def _add_once(self, request: AddRequest) -> ErrorResult:
        host = await self.cores.host_of(request.transactional_id)
        return await host.ask(
            ErrorResult, lambda now_ms, token: host.core.add_partitions(now_ms, token, request)
        )

    async def _while_busy(self, transactional_id: str, ask: Callable[[], Awaitable[R]]) -> R:
        """Repeats a request that is answered CONCURRENT_TRANSACTIONS, each time that the id is free, for a moment."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BUSY_SECONDS
        while (result := await ask()).error is ErrorCode.CONCURRENT_TRANSACTIONS:
            if (left := deadline - loop.time()) <= 0:
                break
            busy = result.busy if isinstance(result, LendResult | DecisionResult) else transactional_id
            await asyncio.wait([self._until_free(busy)], timeout=left)
        return result

    async def until_marked(self, owner: str, seconds: float) -> None:
        """Returns when all attempts that are decided have their markers, or after a while."""
        host = self.cores.find(owner)
        ending = [] if host is None else host.core.ending_attempts(owner)
        if ending:
            await asyncio.wait([self._until_free(name) for name in ending], timeout=seconds)

    def _until_free(self, transactional_id: str) -> asyncio.Task[None]:
        host = self.cores.get(self.cores.index_of(transactional_id))
        key = host, transactional_id
        if key not in self._busy:
            task = self._busy[key] = asyncio.get_running_loop().create_task(_until_free(*key))
            task.add_done_callback(lambda _: self._busy.pop(key))
        return self._busy[key]

    def verify(
        self, transactional_id: str, producer: Producer, partitions: list[TopicPartition]
    ) -> list[ErrorCode]:
        """Whether each partition is part of the producer's open transaction."""
        host = self.cores.find(transactional_id)
        if host is None:
            return [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * len(partitions)
        name = host.core.id_of(transactional_id, producer)
        errors = host.core.verify(name, producer, partitions).errors
        return [errors[one] for one in partitions]

    # --- for operators

    async def figures(self) -> TransactionFigures:
        found = [one for host in self._hosts() async for one in _open_transactions(host)]
        attempts = [one.open_ms for one in found if one.owner]
        return TransactionFigures(
            open=len(found),
            oldest_ms=max((one.open_ms for one in found), default=0),
            attempts=len(attempts),
            oldest_attempt_ms=max(attempts, default=0),
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

    async def _abort(self, caller: Caller, request: AbortTransaction) -> None:
        """Returns when the abort is decided. Its markers are still to be written then."""
        name = request.transactional_id
        host = await self.cores.host_of(name)
        result = await host.ask(
            ErrorResult, lambda now_ms, token: host.core.abort(now_ms, token, name, request.start_ms)
        )
        if result.error:
            raise KafkaError(result.error, f"the transaction of {name!r} is not aborted")

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
        # While an attempt is lent, its timeout counts from the last sign of life of its owner.
        timeout_ms = NEVER_MS if one.is_lent else one.timeout_ms
        yield OpenTransaction(one.transactional_id, one.state.title, age_ms, timeout_ms, one.owner)


async def _ask(host: CoreHost[TransactionCoordinator], ask: AskWithId, new_id: int) -> object:
    return await host.ask(object, lambda now_ms, token: ask(host.core, now_ms, token, new_id))


async def _until_free(host: CoreHost[TransactionCoordinator], transactional_id: str) -> None:
    """Returns when the id is not busy any more, or when this node no longer coordinates it."""
    with suppress(KafkaError):
        await host.ask(
            ErrorResult, lambda now_ms, token: host.core.when_free(now_ms, token, transactional_id)
        )
