"""Transactions for operators: which are open, for how long, and aborting one. Kafka's own APIs are asked, except for an
abort: Kafka's protocol can only take over the id, which would also abort a transaction that has begun meanwhile."""

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from penstock.cluster import TRANSACTIONS_TOPIC
from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import describe_transactions as described
from penstock.kafka.wire.messages import list_transactions as listed
from penstock.node import Node
from penstock.node.calls import TransactionCoordinatorOf, methods, rows_of_each
from penstock.node.calls.messages.transactions import AbortTransaction
from penstock.web.api.problems import Problem, check, refused
from penstock.web.api.routing import Call
from penstock.web.api.transactions import OwnerParams, TransactionalIdName

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
ABORTABLE = "Ongoing"
ENDING = ("PrepareAbort",)
ABORTED = ("PrepareAbort", "CompleteAbort")
_LOOK_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)
IDS_PER_REQUEST = 500
"""Transactional ids that are described at once."""


class TransactionListParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`open`: only transactional ids with a transaction that is open or being ended; `any`: all of them."""

    state: Literal["open", "any"] = "open"


class TransactionPartitions(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: list[int]


class TransactionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional id, as its coordinator knows it. `start_ms` and `open_ms` are null unless a transaction is open.
    While a transaction is being ended, `topics` has the partitions whose marker is missing. Topics that the caller may
    not see are left out."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    open_ms: int | None
    topics: list[TransactionPartitions]


class TransactionList(msgspec.Struct, frozen=True, kw_only=True):
    """`unanswered` are nodes that did not list the transactions that they coordinate."""

    transactions: list[TransactionFacts]
    unanswered: list[int]


class AbortBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`start_ms`: abort only the transaction that has begun then, and no later one."""

    start_ms: int | None = None


class AbortedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    transactional_id: TransactionalIdName


class TransactionAdminApi:
    """Operations on the transactional ids of all clients."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # --- queries

    async def list_transactions(self, call: Call[TransactionListParams, None]) -> TransactionList:
        nodes = [one.node_id for one in self._node.view.brokers()]
        states = OPEN_STATES if call.params.state == "open" else ()
        rows, unanswered = await rows_of_each(nodes, lambda node: self._listed(call.client, node, states))
        return TransactionList(
            transactions=sorted(rows, key=lambda row: row.transactional_id),
            unanswered=unanswered,
        )

    async def _listed(self, client: InnerClient, node: int, states: Iterable[str]) -> list[TransactionFacts]:
        request = listed.ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=[], duration_filter=-1
        )
        found = await client.ask(ApiKey.LIST_TRANSACTIONS, request, listed.ListTransactionsResponse, to=node)
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(found.error_code), f"node {node} does not list its transactions")
        names = [row.transactional_id for row in found.transaction_states]
        rows: list[TransactionFacts] = []
        for at in range(0, len(names), IDS_PER_REQUEST):
            rows += await self._described(client, node, names[at : at + IDS_PER_REQUEST])
        return rows

    async def _described(
        self, client: InnerClient, node: int, names: Iterable[str]
    ) -> list[TransactionFacts]:
        request = described.DescribeTransactionsRequest(transactional_ids=list(names))
        found = await client.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, request, described.DescribeTransactionsResponse, to=node
        )
        known = (row for row in found.transaction_states if row.error_code == ErrorCode.NONE)
        return [self._facts(row, node) for row in known]

    async def describe_transaction(self, call: Call[OwnerParams, None]) -> TransactionFacts:
        return await self._find(call.client, call.params.transactional_id)

    async def _find(self, client: InnerClient, name: str) -> TransactionFacts:
        row = await self._row(client, name)
        if row is None:
            raise _unknown(name)
        return self._facts(row, self._node.calls.find(TransactionCoordinatorOf(name)))

    async def _row(self, client: InnerClient, name: str) -> described.TransactionState | None:
        """What the coordinator says of this id; None if there is none."""
        if not self._node.resources.exists(TRANSACTIONS_TOPIC):
            return None  # there are no coordinators, and a query creates none
        found = await client.ask_role(
            TransactionCoordinatorOf(name),
            ApiKey.DESCRIBE_TRANSACTIONS,
            described.DescribeTransactionsRequest(transactional_ids=[name]),
            described.DescribeTransactionsResponse,
            lambda answer: answer.transaction_states[0].error_code,
        )
        [row] = found.transaction_states
        if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        check(row.error_code, None, "transactional_id")
        return row

    def _facts(self, row: described.TransactionState, coordinator: int) -> TransactionFacts:
        is_open = row.transaction_state in OPEN_STATES and row.transaction_start_time_ms >= 0
        start_ms = row.transaction_start_time_ms if is_open else None
        return TransactionFacts(
            transactional_id=row.transactional_id,
            state=row.transaction_state,
            coordinator=coordinator,
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
            timeout_ms=row.transaction_timeout_ms,
            start_ms=start_ms,
            open_ms=None if start_ms is None else max(0, self._node.clock.wall_ms() - start_ms),
            topics=[
                TransactionPartitions(topic=one.topic, partitions=list(one.partitions)) for one in row.topics
            ],
        )

    # --- changes

    async def abort_transaction(self, call: Call[OwnerParams, AbortBody]) -> AbortedTransaction:
        """Returns when the transaction has ended."""
        found = await self._find(call.client, call.params.transactional_id)
        _check_abortable(found, call.body.start_ms)
        await self._abort(call, found)
        await self._until_marked(call.client, found)
        return AbortedTransaction(transactional_id=found.transactional_id)

    async def _abort(self, call: Call[OwnerParams, AbortBody], found: TransactionFacts) -> None:
        """Has the coordinator decide to abort this transaction, and no later one of the id. The coordinator refuses if
        the transaction has ended, and while it carries out another request for the id, such as the producer's commit.
        So the transaction is looked at again: this request may have aborted it, too, if a response was lost."""
        assert found.start_ms is not None, "it is open"
        name, retry = found.transactional_id, self._node.calls.retry()
        request = AbortTransaction(name, found.start_ms)
        while True:
            try:
                await self._node.calls.ask(
                    TransactionCoordinatorOf(name), methods.ABORT_TRANSACTION, request, caller=call.caller
                )
                return
            except KafkaError as refusal:
                if refusal.code not in _LOOK_AGAIN:
                    raise
                if await self._is_aborted(call, found):
                    return
                if retry.is_over:
                    raise
            await retry.pause()

    async def _is_aborted(self, call: Call[OwnerParams, AbortBody], found: TransactionFacts) -> bool:
        """False: it is open. Problem: it has ended in another way."""
        row = await self._row(call.client, found.transactional_id)
        if row is None:
            raise _unknown(found.transactional_id)
        if _is(row, found.start_ms, ABORTED):
            return True
        _check_abortable(self._facts(row, found.coordinator), found.start_ms)
        return False

    async def _until_marked(self, client: InnerClient, found: TransactionFacts) -> None:
        name, retry = found.transactional_id, self._node.calls.retry()
        while True:
            try:
                row = await self._row(client, name)
            except (KafkaError, Problem) as trouble:
                raise _unmarked(name, f"perhaps not written yet: {trouble}") from trouble
            if row is None or not _is(row, found.start_ms, ENDING):
                return
            if retry.is_over:
                missing = ", ".join(f"{one.topic}: {one.partitions}" for one in row.topics)
                raise _unmarked(name, f"not written yet in {missing or 'topics that you may not see'}")
            await retry.pause()


def _unknown(name: str) -> Problem:
    message = f"there is no transactional id {name!r}; GET /v1/transactions?state=any lists them"
    return Problem(404, "transactional_id_not_found", message, "transactional_id")


def _unmarked(name: str, how: str) -> Problem:
    """The coordinator goes on to write the markers."""
    message = f"the transaction of {name!r} is aborted, but its marker is {how}"
    return refused(ErrorCode.CONCURRENT_TRANSACTIONS, message)


def _check_abortable(found: TransactionFacts, start_ms: int | None) -> None:
    name = found.transactional_id
    if found.state != ABORTABLE:
        ended = "is being ended" if found.start_ms is not None else "is not open"
        raise Problem(409, "not_open", f"the transaction of {name!r} {ended}: {found.state}")
    if start_ms is not None and start_ms != found.start_ms:
        message = f"the transaction has ended, and {name!r} has begun another one"
        raise Problem(409, "another_transaction", message, "start_ms")


def _is(row: described.TransactionState, start_ms: int | None, states: Collection[str]) -> bool:
    """Whether it is the transaction that began then, in one of these states. An id that has ended one keeps its start
    until it begins the next."""
    return row.transaction_state in states and row.transaction_start_time_ms == start_ms
