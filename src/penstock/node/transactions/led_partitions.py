"""Transactions on the partitions that this node leads: which batches may begin one, and the markers that end them.

Invariants:

 1. The first batch of a transaction on a partition is stored only after the coordinator has said that the partition is
    part of it (KIP-890). A batch that was delayed until its transaction had ended would begin one that never ends, and
    readers of committed records would wait for ever.
 2. The answer counts for as long as no marker of that producer has come to the partition since the question: an answer
    may be under way while the transaction ends. Nor does it count in another term, whose leader may have got a marker
    that this one has not seen. Then the leader asks again.
 3. A marker is stored once. In V1 two transactions of a producer have the same epoch, so a marker that was delayed on
    its way, or a repetition, could end the next one. Markers are numbered by the coordinator's term and a count, and a
    leader takes only higher numbers than the last; and it takes only markers that are addressed to its own term,
    because it does not know the numbers that leaders before it have seen.
 4. The marker of an operator, who may name any coordinator epoch, does not raise the one that the log knows. Otherwise
    the log would refuse the markers of the real coordinator, and the producer's next transaction would never end.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.batch import EndMarker
from penstock.cluster import TRANSACTIONS_TOPIC, ClusterState
from penstock.errors import CorruptLog, ErrorCode, KafkaError, StorageError
from penstock.log import Appended
from penstock.log.producers import MAX_PRODUCERS
from penstock.node.calls import Calls, TransactionCoordinatorOf, methods
from penstock.node.calls.messages.transactions import JoinTransaction, Marker, WriteMarkers, WrittenMarkers
from penstock.node.parts import Part, TopicChanges
from penstock.node.replication.partition import Partition
from penstock.node.replication.partition_table import PartitionTable
from penstock.types import Caller, GroupId, Producer, Term, TopicPartition

COMMIT_WAIT_SECONDS = 2.0
"""How long markers of one call are waited for: those of a partition without a majority must not hold up the others. The
coordinator asks again, and (3) makes that a question for the same marker."""


MarkerWriter = Callable[[int, EndMarker, Producer], Appended]
"""Appends a marker of this producer to a partition of an internal topic, like `Partition.append_marker`."""


class WrittenMarker:
    """The last marker of a producer on a partition, in the present term."""

    __slots__ = ("appended", "number")

    def __init__(self, number: tuple[int, int], appended: Appended) -> None:
        self.number = number
        self.appended = appended


class ProducerAdmission(NamedTuple):
    """The moment at which a coordinator was asked about a producer's first batch (2)."""

    term: Term
    last_marker: WrittenMarker | None


class _LedPartition:
    """The last markers on a partition, by producer, in one term of its leader; the longest ago first."""

    __slots__ = ("markers", "term")

    def __init__(self, term: Term) -> None:
        self.term = term
        self.markers: dict[int, WrittenMarker] = {}

    def add(self, producer_id: int, marker: WrittenMarker) -> None:
        self.markers.pop(producer_id, None)
        self.markers[producer_id] = marker
        if len(self.markers) > MAX_PRODUCERS:  # the log remembers no more producers either
            del self.markers[next(iter(self.markers))]


class LedPartitions(Part):
    """The transactions on this node's partitions. Every method is called on the event loop."""

    def __init__(self, *, state: ClusterState, partitions: PartitionTable, calls: Calls) -> None:
        self._state = state
        self._marker_writers: dict[str, MarkerWriter] = {}
        self._partitions = partitions
        self._calls = calls
        self._led: dict[GroupId, _LedPartition] = {}
        calls.serve(methods.WRITE_MARKERS, self._write_markers)

    def write_through(self, topic: str, write_marker: MarkerWriter) -> None:
        """The markers on partitions of this internal topic are written by this function: the core that has its state
        there must hear of the end of transactions."""
        self._marker_writers[topic] = write_marker

    def role_changed(self, partition: Partition) -> None:
        known = self._led.get(partition.group)
        if known is not None and not (partition.leads and partition.term == known.term):
            del self._led[partition.group]

    def metadata_changed(self, topics: TopicChanges) -> None:
        deleted = [group for group in self._led if self._state.topic_by_id(group.topic_id) is None]
        for group in deleted:
            del self._led[group]

    def _of(self, partition: Partition) -> _LedPartition:
        known = self._led.get(partition.group)
        if known is None or known.term != partition.term:
            known = self._led[partition.group] = _LedPartition(partition.term)
        return known

    # --- first batches

    def admission(self, partition: Partition, producer_id: int) -> ProducerAdmission:
        """To be taken before the coordinator is asked."""
        return ProducerAdmission(partition.term, self._of(partition).markers.get(producer_id))

    def is_valid(self, partition: Partition, producer_id: int, admission: ProducerAdmission) -> bool:
        """Whether an answer that was asked for at that moment still counts (2)."""
        return admission == self.admission(partition, producer_id)

    async def admit(
        self, partition: Partition, transactional_id: str, producer: Producer, *, adds: bool, caller: Caller
    ) -> ErrorCode:
        """NONE when a batch of the producer's transaction may be appended to the partition, in this turn of the
        loop."""
        while not partition.log.producers.has_transaction(*producer):
            admission = self.admission(partition, producer.producer_id)
            [code] = await self.ask(transactional_id, producer, [partition.name], adds=adds, caller=caller)
            if code or self.is_valid(partition, producer.producer_id, admission):
                return code
        return ErrorCode.NONE

    async def ask(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        caller: Caller,
    ) -> list[ErrorCode]:
        """Asks the coordinator whether these partitions are part of the producer's transaction; with `adds` it adds
        them. An error code for each."""
        if TRANSACTIONS_TOPIC not in self._state.topics:  # no producer was initialised yet
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(partitions)
        request = JoinTransaction(
            transactional_id,
            producer.producer_id,
            producer.epoch,
            [(one.topic, one.partition) for one in partitions],
            adds,
        )
        target = TransactionCoordinatorOf(transactional_id)
        try:
            joined = await self._calls.ask(target, methods.JOIN_TRANSACTION, request, caller=caller)
        except KafkaError as problem:
            return [problem.code] * len(partitions)
        return [ErrorCode(code) for code in joined.codes]

    # --- markers

    def write_marker(
        self,
        partition: Partition,
        producer: Producer,
        marker: EndMarker,
        number: tuple[int, int] | None = None,
    ) -> Appended:
        """Appends a marker, unless it is there already; it is not committed yet. KafkaError says why not. `number` is
        None for the marker of an operator, which has none."""
        led = self._of(partition)
        last = led.markers.get(producer.producer_id)
        if number is not None and last is not None and number <= last.number:
            if number == last.number:
                return last.appended
            message = (
                f"{partition.name}: marker {number} of producer {producer.producer_id} after {last.number}"
            )
            raise KafkaError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, message)
        if number is None:
            marker = _lowered(partition, producer, marker)
        appended = self._append_marker(partition, producer, marker)
        kept = last.number if last is not None else (-1, -1)
        led.add(producer.producer_id, WrittenMarker(number or kept, appended))
        return appended

    def _append_marker(self, partition: Partition, producer: Producer, marker: EndMarker) -> Appended:
        producer_id, epoch = producer
        writer = self._marker_writers.get(partition.name.topic)
        if writer is not None:
            return writer(partition.name.partition, marker, producer)
        return partition.append_marker(marker, producer_id=producer_id, producer_epoch=epoch)

    async def _write_markers(self, caller: Caller, request: WriteMarkers) -> WrittenMarkers:
        """Appends all markers, then waits for them together."""
        codes: list[int] = []
        waiting: dict[asyncio.Future[None], list[int]] = {}
        for at, marker in enumerate(request.markers):
            code, committed = self._append(marker)
            codes.append(code)
            if committed is not None:
                waiting.setdefault(committed, []).append(at)
        if waiting:
            await asyncio.wait(waiting, timeout=COMMIT_WAIT_SECONDS)
        for committed, places in waiting.items():
            for at in places:
                codes[at] = marker_outcome(committed)
        return WrittenMarkers(codes)

    def _append(self, marker: Marker) -> tuple[ErrorCode, asyncio.Future[None] | None]:
        try:
            partition = self._addressed(marker)
            appended = self.write_marker(
                partition,
                Producer(marker.producer_id, marker.producer_epoch),
                EndMarker(marker.commit, marker.coordinator_term),
                (marker.coordinator_term, marker.markers_id),
            )
            return ErrorCode.NONE, partition.committed_at(appended)
        except KafkaError as refused:
            return refused.code, None
        except (StorageError, CorruptLog):
            return ErrorCode.KAFKA_STORAGE_ERROR, None

    def _addressed(self, marker: Marker) -> Partition:
        topic = self._state.topic_by_id(marker.group.topic_id)
        if topic is None or not 0 <= marker.group.partition < topic.partitions:
            message = "this node has not heard of the partition yet"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        partition = self._partitions.get(topic.name, marker.group.partition)
        partition.check_leads()
        if partition.term != marker.leader_term:  # (3)
            message = f"{partition.name} is at term {partition.term}: expected {marker.leader_term}"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        return partition


def _lowered(partition: Partition, producer: Producer, marker: EndMarker) -> EndMarker:
    """(4). A marker of an older epoch stays as it is, and is refused."""
    known = max(partition.log.producers.coordinator_epoch(producer.producer_id), 0)
    return marker._replace(coordinator_epoch=min(marker.coordinator_epoch, known))


def marker_outcome(committed: asyncio.Future[None]) -> ErrorCode:
    """The code to answer for a marker that was waited for."""
    if not committed.done():
        committed.cancel()
        return ErrorCode.REQUEST_TIMED_OUT
    match committed.exception():
        case None:
            return ErrorCode.NONE
        case KafkaError() as refused:
            return refused.code
        case _:
            return ErrorCode.KAFKA_STORAGE_ERROR
