"""Reads a range of offsets of a partition as fast as the broker sends it: whole record batches, undecoded.

While the caller decodes one chunk, the broker already works on the next: the reader sends the next request before it
yields a chunk. It copies records once, out of the answer's frame, because decoders need `bytes`.

After a failure (a leader that moves, a broker that restarts, a connection that breaks) the reader retries from the
position that it has reached; `retry_for_ms` starts again with every chunk. Each reader has a connection of its own, so
one that stops early, with an answer outstanding, closes only that connection.
"""

import logging
from collections.abc import Generator
from struct import Struct

from penstock.batch import HEADER_SIZE, iter_headers
from penstock.batch.fetched_aborts import AbortedBatches
from penstock.client.errors import ClientError, Garbled, Refused, lacking
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.connection import Connection
from penstock.client.wire.list_offsets import EARLIEST, LATEST
from penstock.client.wire.retry import RetryBackoff
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.types import TopicPartition

log = logging.getLogger("penstock.client")

FETCH_VERSION_BY_NAME_MAX = 12
"""From version 13 on, Fetch names topics by id."""
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
NO_SESSION_EPOCH = -1
CONSUMER = -1
FRAME_OVERHEAD_BYTES = 1 << 12
"""The bytes of an answer around its records: headers, and a topic name of at most 249 bytes."""
EMPTY_ANSWERS_TO_BELIEVE = 2
"""How many empty answers in a row mean that no records are left before the end. A broker that reads old records from
remote storage answers empty when that takes too long."""

_WALK = Struct(">qi4xb6xi")
"""Fields of a batch's header: base_offset, batch_length, magic, last_offset_delta."""
_LENGTH_OVERHEAD = 12
_MIN_BATCH_LENGTH = HEADER_SIZE - _LENGTH_OVERHEAD
_MAGIC = 2


class OffsetGone(ClientError):
    """Records of the range do not exist: retention or truncation deleted them, or they were never written."""

    def __init__(self, tp: TopicPartition, wanted: int, earliest: int, latest: int) -> None:
        self.topic_partition = tp
        self.wanted = wanted
        self.earliest = earliest
        self.latest = latest
        super().__init__(
            f"{tp}: offset {wanted} does not exist: the partition holds {earliest} up to {latest} (excluded); "
            + ("retention or a deletion removed it" if wanted < earliest else "the log ends before it")
        )


class _NotYet(OffsetGone):
    """The log ends before the range does. It may still grow, or a new leader may catch up."""

    @property
    def retriable(self) -> bool:
        return True


def fetch_range(
    cluster: Cluster,
    tp: TopicPartition,
    start: int,
    end: int,
    *,
    fetch_bytes: int = 4 << 20,
    max_wait_ms: int = 500,
    isolation: int = READ_UNCOMMITTED,
) -> Generator[bytes, None, None]:
    """Chunks of whole batches that cover the offsets from `start` to `end` (excluded).

    The first chunk may begin before `start` and the last may end after `end`. Compaction may have left gaps, and
    control batches are included. With READ_COMMITTED the batches of aborted transactions are left out, and no offset
    from the first open transaction on can be read. A caller that stops early closes the generator (or drops it, which
    closes it).
    """
    reader = _Reader(cluster, tp, start, end, fetch_bytes, max_wait_ms, isolation)
    try:
        while not reader.finished:
            chunk = reader.read()
            reader.ask_ahead()
            if chunk:
                yield chunk
                reader.backoff.restart()  # the caller's own time does not count
    finally:
        reader.close()


class _Reader:
    """The position of one reader, and its connection."""

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        start: int,
        end: int,
        fetch_bytes: int,
        max_wait_ms: int,
        isolation: int,
    ) -> None:
        settings = cluster.settings
        self._cluster = cluster
        self._place = tp
        self._position = start
        self._end = end
        self._fetch_bytes_max = max(1, settings.max_response_bytes - FRAME_OVERHEAD_BYTES)
        self._fetch_bytes = min(max(1, fetch_bytes), self._fetch_bytes_max)
        # The broker may hold a request for this long: there must be time left for the answer.
        self._max_wait_ms = min(max(0, max_wait_ms), settings.request_timeout_ms // 2)
        self._isolation = isolation
        self._connection: Connection | None = None
        self._empty_answers = 0
        self._log_end = -1
        self.backoff = RetryBackoff(settings)

    @property
    def finished(self) -> bool:
        return self._position >= self._end

    def read(self) -> bytes:
        """The next whole batches; empty at the end of the range."""
        while True:
            try:
                chunk = self._use(self._receive())
                if chunk or self.finished:
                    self.backoff.restart()
                    return chunk
            except ClientError as problem:
                self._drop()
                self.backoff.pause(problem)

    def ask_ahead(self) -> None:
        """Sends the next request. A failure here shows again in `read`."""
        if self.finished:
            return
        try:
            self._ask()
        except ClientError:
            self._drop()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._cluster.give_back(connection)

    def _receive(self) -> PartitionData:
        connection = self._connection
        if connection is None or not connection.outstanding:
            connection = self._ask()
        answer = connection.receive()
        assert isinstance(answer, FetchResponse)
        _check(answer.error_code, self._place)
        if not answer.responses:
            # Kafka answers so to a client that is over its quota; it then also delays the next request.
            code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            raise Refused(code, f"Fetch of {self._place}", f"throttled for {answer.throttle_time_ms} ms")
        return self._only_row(answer)

    def _only_row(self, answer: FetchResponse) -> PartitionData:
        rows = [
            (TopicPartition(topic.topic, row.partition_index), row)
            for topic in answer.responses
            for row in topic.partitions
        ]
        if len(rows) != 1 or rows[0][0] != self._place:
            raise Garbled(f"Fetch of {self._place}: the answer is about other partitions")
        return rows[0][1]

    def _ask(self) -> Connection:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._cluster.lend(self._cluster.leader_once(self._place))
        version = connection.version_of(ApiKey.FETCH, at_most=FETCH_VERSION_BY_NAME_MAX)
        connection.send(ApiKey.FETCH, self._request(), version=version)
        return connection

    def _request(self) -> FetchRequest:
        wanted = FetchPartition(
            partition=self._place.partition,
            fetch_offset=self._position,
            partition_max_bytes=self._fetch_bytes,
        )
        return FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            isolation_level=self._isolation,
            session_epoch=NO_SESSION_EPOCH,
            topics=[FetchTopic(topic=self._place.topic, partitions=[wanted])],
        )

    def _drop(self) -> None:
        """After any failure: looks up the leader again. A connection that still works goes back to the pool."""
        self._empty_answers = 0
        self.close()
        self._cluster.forget_leaders([self._place.topic])

    def _use(self, row: PartitionData) -> bytes:
        """The whole batches of an answer, and the position after them."""
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._explain_out_of_range()
        _check(row.error_code, self._place)
        records = row.records
        if records:
            assert isinstance(records, memoryview)
            self._empty_answers = 0
            return self._cut(records, row.aborted_transactions)
        self._use_empty(row)
        return b""

    def _cut(self, records: memoryview, aborted: list[AbortedTransaction] | None) -> bytes:
        """Cuts after the last whole batch that begins before the end of the range. Empty if all of it was aborted."""
        position, size = walk(records, self._end, self._place)
        if position is None:
            self._ask_for_more()
            return b""
        if position <= self._position:
            raise Garbled(f"Fetch of {self._place} at offset {self._position}: the batches end at {position}")
        self._position = position
        self.backoff.restart()
        whole = bytes(records[:size])
        return without_aborted(whole, aborted) if aborted else whole

    def _ask_for_more(self) -> None:
        """Not even one batch fitted. Most brokers always send one whole batch; this one does not."""
        if self._fetch_bytes >= self._fetch_bytes_max:
            raise Garbled(
                f"Fetch of {self._place} at offset {self._position}: the next batch is larger than "
                f"{self._fetch_bytes_max} bytes; raise max_response_bytes"
            )
        self._fetch_bytes = min(self._fetch_bytes * 2, self._fetch_bytes_max)

    def _use_empty(self, row: PartitionData) -> None:
        log_end = row.last_stable_offset if self._isolation == READ_COMMITTED else row.high_watermark
        if log_end > self._log_end >= 0:
            self.backoff.restart()  # the log grows, or its new leader catches up
        self._log_end = log_end
        if log_end < self._end:
            raise _NotYet(self._place, max(self._position, log_end), row.log_start_offset, log_end)
        self._empty_answers += 1
        if self._empty_answers >= EMPTY_ANSWERS_TO_BELIEVE:
            log.info("%s: no records from offset %d up to %d", self._place, self._position, self._end)
            self._position = self._end

    def _explain_out_of_range(self) -> None:
        earliest = self._cluster.offset_once(self._place, EARLIEST).offset
        latest = self._cluster.offset_once(self._place, LATEST).offset
        if self._position < earliest:
            raise OffsetGone(self._place, self._position, earliest, latest)
        if self._position > latest:
            raise _NotYet(self._place, self._position, earliest, latest)
        raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, f"Fetch of {self._place} at offset {self._position}")


def walk(records: memoryview, end: int, tp: TopicPartition) -> tuple[int | None, int]:
    """(the offset after the last whole batch that is needed, its end in bytes).

    The offset is None when no batch is whole; it is `end` when the range is exhausted by a batch beyond it.
    """
    position: int | None = None
    at, size = 0, len(records)
    unpack = _WALK.unpack_from
    while size - at >= HEADER_SIZE:
        base_offset, length, magic, last_delta = unpack(records, at)
        if magic != _MAGIC or length < _MIN_BATCH_LENGTH:
            raise Garbled(
                f"Fetch of {tp}: a batch at byte {at} with magic={magic}, batch_length={length}; expected "
                f"magic {_MAGIC} (Kafka 0.11 and later) and at least {_MIN_BATCH_LENGTH} bytes"
            )
        if at + _LENGTH_OVERHEAD + length > size:
            break
        if base_offset >= end:
            return end, at
        at += _LENGTH_OVERHEAD + length
        position = base_offset + last_delta + 1
    return position, at


def without_aborted(batches: bytes, aborted: list[AbortedTransaction]) -> bytes:
    """The batches of one answer but those of the aborted transactions that the answer names."""
    left_out = AbortedBatches((one.producer_id, one.first_offset) for one in aborted)
    view = memoryview(batches)
    return b"".join(
        view[position : position + header.size]
        for position, header in iter_headers(batches)
        if not left_out.covers(header)
    )


def _check(code: int, tp: TopicPartition) -> None:
    if code != ErrorCode.NONE:
        raise Refused(code, f"Fetch of {tp}", lacking(code, "READ"))
