"""A producer against a broker that refuses, forgets producers, closes connections and loses responses: each record is
written once and in order."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.batch import Record, read_header, read_records
from penstock.client import ClientError, Refused
from penstock.client.wire import Cluster
from penstock.client.wire.produce_results import DeliveryTimedOut
from penstock.client.wire.producer import BatchProducer
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message
from penstock.kafka.wire.messages.init_producer_id import InitProducerIdResponse
from penstock.kafka.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.client.wire.conftest import impatient
from tests.client.wire.fake import HANG_UP, TOPIC, Answer, FakeBroker, Request

REMEMBERED = 5


class Fault(Enum):
    """The fault of one Produce request; an error code means a refusal with it."""

    HANG_UP = "the connection breaks before the batch is written"
    WRITE_AND_HANG_UP = "the batch is written and the answer is lost"
    WRITE_AND_TIME_OUT = "the batch is written and the answer says that it took too long"
    FORGET = "the broker forgets all producers, then does its best"


Step = Fault | ErrorCode


class FakeLog:
    """One partition's log, with a broker's rules for sequence numbers, and faults by script."""

    def __init__(self, script: Iterable[Step] = (), *, max_batch_bytes: int = 1 << 20) -> None:
        self.values: list[bytes] = []
        self._script = deque(script)
        self._max_batch_bytes = max_batch_bytes
        self._producers: dict[int, deque[tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def produce(self, request: Request) -> Answer:
        message = request.message
        assert isinstance(message, ProduceRequest)
        data = message.topic_data[0].partition_data[0].records
        assert data is not None
        with self._lock:
            step = self._script.popleft() if self._script else ErrorCode.NONE
            if step is Fault.HANG_UP:
                return HANG_UP
            if isinstance(step, ErrorCode) and step:
                return answered(step)
            if step is Fault.FORGET:
                self._producers.clear()
            code = self._append(bytes(data))
        if step is Fault.WRITE_AND_HANG_UP:
            return HANG_UP
        return answered(ErrorCode.REQUEST_TIMED_OUT if step is Fault.WRITE_AND_TIME_OUT else code)

    def _append(self, data: bytes) -> ErrorCode:
        header = read_header(data)
        if len(data) > self._max_batch_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        known = self._producers.setdefault(header.producer_id, deque(maxlen=REMEMBERED))
        numbers = header.base_sequence, header.last_sequence
        if numbers in known:
            return ErrorCode.NONE
        expected = (known[-1][1] + 1) & 0x7FFFFFFF if known else 0
        if header.base_sequence != expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        known.append(numbers)
        self.values += [record.value or b"" for record in read_records(data)]
        return ErrorCode.NONE


def answered(code: ErrorCode) -> Message:
    row = PartitionProduceResponse(index=0, error_code=code)
    return ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=[row])])


@contextmanager
def producing(log: FakeLog, **options: int) -> Iterator[BatchProducer]:
    ids = iter(range(100, 1_000_000))
    handlers = {
        ApiKey.PRODUCE: lambda request: log.produce(request),
        ApiKey.INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(producer_id=next(ids), producer_epoch=0),
    }
    with (
        FakeBroker(handlers) as broker,
        Cluster(impatient(broker.address, retry_backoff_ms=1)) as cluster,
        BatchProducer(cluster, max_request_bytes=2_000, **options) as producer,
    ):
        yield producer


def values(count: int) -> list[bytes]:
    return [b"%04d" % number + b"." * 200 for number in range(count)]


def send(producer: BatchProducer, some: Iterable[bytes]) -> None:
    """A batch for each value and a neighbour of it, so that batches differ in size."""
    some = list(some)
    for start in range(0, len(some), 3):
        for part in (some[start : start + 1], some[start + 1 : start + 3]):
            producer.send_records(TOPIC, 0, [Record(0, 1_000, None, value) for value in part])


PASSING: list[Step] = [
    ErrorCode.NONE,
    Fault.HANG_UP,
    Fault.WRITE_AND_HANG_UP,
    Fault.WRITE_AND_TIME_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
]


@settings(max_examples=40, deadline=None)
@example(  # a batch in doubt, while so many go past it that the broker forgets it
    script=[
        Fault.HANG_UP,
        Fault.WRITE_AND_TIME_OUT,
        ErrorCode.NONE,
        Fault.HANG_UP,
        Fault.WRITE_AND_TIME_OUT,
    ],
    buffer_bytes=3_000,
)
@given(
    script=st.lists(st.sampled_from(PASSING), max_size=25), buffer_bytes=st.sampled_from([1, 3_000, 1 << 20])
)
def test_every_record_is_written_once_and_in_order_under_any_faults(
    script: list[Step], buffer_bytes: int
) -> None:
    log = FakeLog(script)
    with producing(log, buffer_bytes=buffer_bytes) as producer:
        send(producer, values(30))
        producer.flush()
        assert producer.acked_rows == 30
    assert log.values == values(30)


LOST_TRACK = pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
)


@LOST_TRACK
def test_a_broker_that_lost_producer_state_gets_the_records_under_a_new_producer_id(code: ErrorCode) -> None:
    log = FakeLog([ErrorCode.NONE, ErrorCode.NONE, code])
    with producing(log, max_in_flight=1) as producer:
        send(producer, values(6))
    assert log.values == values(6)


@LOST_TRACK
def test_a_broker_that_loses_the_state_of_a_new_producer_too_is_an_error(code: ErrorCode) -> None:
    log = FakeLog([ErrorCode.NONE, code, code])
    expected = f"producing to {TOPIC}-0: {code.name}, .*check its log"
    with pytest.raises(Refused, match=expected), producing(log, max_in_flight=1) as producer:
        send(producer, values(6))


def test_forgotten_producers_resend_all_batches_that_were_in_flight() -> None:
    log = FakeLog([ErrorCode.NONE, ErrorCode.NONE, Fault.FORGET])
    with producing(log) as producer:
        send(producer, values(30))
    assert log.values == values(30)


def test_batches_too_large_for_the_topic_are_cut_and_later_ones_made_smaller() -> None:
    log = FakeLog(max_batch_bytes=700)
    with producing(log) as producer:
        assert producer.batch_bytes(TOPIC) > 700
        producer.send_records(TOPIC, 0, [Record(0, 1_000, None, value) for value in values(40)])
        producer.flush()
        assert producer.batch_bytes(TOPIC) <= 700
        producer.send_records(TOPIC, 0, [Record(0, 1_000, None, b"last")])
    assert log.values == [*values(40), b"last"]


def test_one_record_too_large_for_the_topic_says_what_to_do() -> None:
    advice = r"fake-0: MESSAGE_TOO_LARGE, .*raise the topic's max\.message\.bytes"
    with pytest.raises(Refused, match=advice), producing(FakeLog(max_batch_bytes=100)) as producer:
        producer.send_records(TOPIC, 0, [Record(0, 1_000, None, b"." * 500)])


def test_after_a_final_error_every_call_raises_it() -> None:
    refused = pytest.raises(Refused, match="INVALID_RECORD")
    with refused, producing(FakeLog([ErrorCode.INVALID_RECORD])) as producer:
        send(producer, values(1))
        for call in (producer.flush, producer.flush, lambda: send(producer, values(1))):
            with pytest.raises(Refused, match="INVALID_RECORD"):
                call()


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_permanent_errors_are_not_retried(code: ErrorCode) -> None:
    log = FakeLog([code])
    with pytest.raises(Refused, match=code.name), producing(log) as producer:
        send(producer, values(3))
    assert log.values == []


def test_an_error_that_outlasts_the_delivery_timeout_names_the_limit() -> None:
    log = FakeLog([ErrorCode.NOT_ENOUGH_REPLICAS] * 100_000)
    with (
        pytest.raises(
            DeliveryTimedOut, match=r"1 records .* delivery_timeout_ms=2000; .*NOT_ENOUGH_REPLICAS"
        ),
        producing(log, delivery_timeout_ms=2000) as producer,
    ):
        producer.send_records(TOPIC, 0, [Record(0, 1_000, None, b"x")])
    assert log.values == []


def test_an_answer_about_other_partitions_is_an_error() -> None:
    log = FakeLog()
    log.produce = lambda _: ProduceResponse(responses=[])  # type: ignore[method-assign]
    with pytest.raises(ClientError, match=r"the answer lacks .*fake"), producing(log) as producer:
        send(producer, values(1))
