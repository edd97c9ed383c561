"""Requests of operators about transactions: list, describe, end.

A coordinator knows the transactions of its ids. A partition's leader knows which producers have a transaction open in
the log. A transaction that is open in the log and that no coordinator knows *hangs*: no coordinator will end it, and
`read_committed` readers wait for ever. `open_on` compares the two.

All methods retry temporary failures.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from penstock.client.errors import Refused, lacking
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.connection import expect
from penstock.client.wire.retry import retrying
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import describe_producers as producers
from penstock.kafka.wire.messages import describe_transactions as described
from penstock.kafka.wire.messages import init_producer_id as initialised
from penstock.kafka.wire.messages import list_transactions as listed
from penstock.kafka.wire.messages import write_txn_markers as written
from penstock.types import TopicPartition

ONGOING = "Ongoing"
ENDING = frozenset({"PrepareCommit", "PrepareAbort"})
"""States in which the outcome is decided and the coordinator writes markers."""
DURATION_SINCE_VERSION = 1
PATTERN_SINCE_VERSION = 2
"""Versions of ListTransactions with these filters. An earlier one would leave the filter out and list too much."""


class Filters(NamedTuple):
    """Which transactional ids are listed. Empty: any."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    longer_than_ms: int = -1
    pattern: str | None = None

    @property
    def version_min(self) -> int:
        if self.pattern is not None:
            return PATTERN_SINCE_VERSION
        return DURATION_SINCE_VERSION if self.longer_than_ms >= 0 else 0


class Listed(NamedTuple):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class Described(NamedTuple):
    """A transactional id, as its coordinator knows it. `start_ms` is negative before its first transaction."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction, also one that is being ended."""
        return self.state == ONGOING or self.state in ENDING


class OpenOnPartition(NamedTuple):
    """A transaction that is open in the log of a partition. `transactional_id` is None if it hangs."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_write_ms: int
    transactional_id: str | None = None


class TransactionAdmin:
    """The requests, through the connections of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._settings = cluster.settings

    # --- coordinators

    def find(self, filters: Filters) -> list[Listed]:
        """The transactional ids of all coordinators, by name. All brokers must answer, or ids would be missing."""
        found = [
            row
            for node_id in retrying(self._settings, self._cluster.brokers_once)
            for row in retrying(self._settings, partial(self._list_once, node_id, filters))
        ]
        return sorted(found)

    def _list_once(self, node_id: int, filters: Filters) -> list[Listed]:
        connection = self._cluster.connect_once(node_id)
        request = listed.ListTransactionsRequest(
            state_filters=[*filters.states],
            producer_id_filters=[*filters.producer_ids],
            duration_filter=filters.longer_than_ms,
            transactional_id_pattern=filters.pattern,
        )
        version = connection.version_of(ApiKey.LIST_TRANSACTIONS, at_least=filters.version_min)
        answer = connection.call(ApiKey.LIST_TRANSACTIONS, request, version=version)
        response = expect(answer, listed.ListTransactionsResponse)
        _check(response.error_code, f"listing transactions at {connection.address}")
        if response.unknown_state_filters:
            names = ", ".join(response.unknown_state_filters)
            raise Refused(ErrorCode.INVALID_REQUEST, "listing transactions", f"unknown states: {names}")
        return [
            Listed(row.transactional_id, node_id, row.producer_id, row.transaction_state)
            for row in response.transaction_states
        ]

    def describe(self, transactional_id: str) -> Described:
        """Refused with TRANSACTIONAL_ID_NOT_FOUND if there is no such id."""
        return retrying(self._settings, lambda: self._describe_once(transactional_id))

    def _describe_once(self, transactional_id: str) -> Described:
        node_id = self._cluster.transaction_coordinator_once(transactional_id)
        connection = self._cluster.connect_once(node_id)
        request = described.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        version = connection.version_of(ApiKey.DESCRIBE_TRANSACTIONS)
        answer = connection.call(ApiKey.DESCRIBE_TRANSACTIONS, request, version=version)
        [row] = expect(answer, described.DescribeTransactionsResponse).transaction_states
        _check(row.error_code, f"transactional id {transactional_id!r}", lacking(row.error_code, "DESCRIBE"))
        return Described(
            transactional_id=transactional_id,
            coordinator=node_id,
            state=row.transaction_state,
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
            timeout_ms=row.transaction_timeout_ms,
            start_ms=row.transaction_start_time_ms,
            partitions=tuple(
                TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions
            ),
        )

    def abort(self, transaction: Described) -> None:
        """Returns when the coordinator has aborted the transaction. It fences the producer: Kafka's protocol has no
        request that aborts without that. InitProducerId is what a new producer with this id would send."""
        retrying(self._settings, lambda: self._abort_once(transaction))

    def _abort_once(self, transaction: Described) -> None:
        name = transaction.transactional_id
        connection = self._cluster.connect_once(self._cluster.transaction_coordinator_once(name))
        request = initialised.InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=transaction.timeout_ms
        )
        version = connection.version_of(ApiKey.INIT_PRODUCER_ID, at_most=5)
        answer = connection.call(ApiKey.INIT_PRODUCER_ID, request, version=version)
        code = expect(answer, initialised.InitProducerIdResponse).error_code
        _check(code, f"aborting the transaction of {name!r}", lacking(code, "WRITE"))

    # --- partitions

    def open_on(self, partitions: Collection[TopicPartition]) -> list[OpenOnPartition]:
        """The transactions that are open on these partitions. Those without a transactional id hang.

        The leaders are asked twice. A transaction that ends after the first time is unknown to its coordinator, and
        would seem to hang; the second time it is gone. A coordinator knows of a transaction before any partition does,
        so one that has begun meanwhile is no problem."""
        before = list(self._producers(partitions))
        owners = self._owners(before)
        after = {(row.tp, row.producer_id, row.start_offset) for row in self._producers(partitions)}
        return [
            row._replace(transactional_id=owners.get((row.tp, row.producer_id)))
            for row in before
            if (row.tp, row.producer_id, row.start_offset) in after
        ]

    def _producers(self, partitions: Collection[TopicPartition]) -> Iterator[OpenOnPartition]:
        for tp in sorted(partitions):
            yield from retrying(self._settings, partial(self._producers_once, tp))

    def _producers_once(self, tp: TopicPartition) -> list[OpenOnPartition]:
        connection = self._cluster.connect_once(self._leader_once(tp))
        request = producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name=tp.topic, partition_indexes=[tp.partition])]
        )
        version = connection.version_of(ApiKey.DESCRIBE_PRODUCERS)
        answer = connection.call(ApiKey.DESCRIBE_PRODUCERS, request, version=version)
        [topic] = expect(answer, producers.DescribeProducersResponse).topics
        [row] = topic.partitions
        _check(row.error_code, f"the producers of {tp}", lacking(row.error_code, "READ") or row.error_message)
        return [
            OpenOnPartition(
                tp,
                one.producer_id,
                one.producer_epoch,
                one.coordinator_epoch,
                one.current_txn_start_offset,
                one.last_timestamp,
            )
            for one in row.active_producers
            if one.current_txn_start_offset >= 0
        ]

    def _leader_once(self, tp: TopicPartition) -> int:
        """Asks for new metadata: a request that was refused may have gone to the previous leader."""
        self._cluster.forget_leaders([tp.topic])
        return self._cluster.leader_once(tp)

    def _owners(self, rows: Iterable[OpenOnPartition]) -> dict[tuple[TopicPartition, int], str]:
        """Transactional ids, by partition and producer, of transactions that their coordinator knows."""
        producer_ids = tuple(sorted({row.producer_id for row in rows}))
        if not producer_ids:
            return {}
        found = self.find(Filters(producer_ids=producer_ids))
        described = [self._describe_if_known(one.transactional_id) for one in found]
        return {
            (tp, known.producer_id): known.transactional_id
            for known in described
            if known is not None and known.is_open
            for tp in known.partitions
        }

    def _describe_if_known(self, transactional_id: str) -> Described | None:
        try:
            return self.describe(transactional_id)
        except Refused as refused:
            if refused.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return None  # it has expired since it was listed

    def end_hanging(self, row: OpenOnPartition) -> None:
        """The partition's leader writes an abort marker, without a coordinator."""
        retrying(self._settings, lambda: self._end_hanging_once(row))

    def _end_hanging_once(self, row: OpenOnPartition) -> None:
        connection = self._cluster.connect_once(self._leader_once(row.tp))
        marker = written.WritableTxnMarker(
            producer_id=row.producer_id,
            producer_epoch=row.producer_epoch,
            transaction_result=False,
            # A producer whose first transaction hangs has had no marker, and so no epoch of a coordinator.
            coordinator_epoch=max(row.coordinator_epoch, 0),
            topics=[written.WritableTxnMarkerTopic(name=row.tp.topic, partition_indexes=[row.tp.partition])],
        )
        version = connection.version_of(ApiKey.WRITE_TXN_MARKERS, at_most=1)
        request = written.WriteTxnMarkersRequest(markers=[marker])
        answer = connection.call(ApiKey.WRITE_TXN_MARKERS, request, version=version)
        for result in expect(answer, written.WriteTxnMarkersResponse).markers:
            for topic in result.topics:
                for one in topic.partitions:
                    what = f"an abort marker for {row.tp}"
                    _check(one.error_code, what, lacking(one.error_code, "ALTER (on the cluster)"))


def _check(code: int, asked: str, detail: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise Refused(code, asked, detail)
