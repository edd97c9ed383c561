"""A topic refuses a batch because of some of its records: producers learn which ones, and why."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import InvalidRecordError

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.errors import ErrorCode
from penstock.kafka.handlers import topic_rules
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0
RECORDS = 100
KEYLESS = list(range(3, RECORDS, 10))
NO_KEY = "Compacted topic cannot accept message without key"
HOUR_MS = 3_600_000


def make(broker: Broker, topic: str, **configs: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    wanted = NewTopic(topic, 1, 1, config={name.replace("_", "."): value for name, value in configs.items()})
    admin.create_topics([wanted])[topic].result(PATIENCE_SECONDS)
    return topic


@pytest.fixture
def compacted(broker: Broker, unique: Unique) -> str:
    return make(broker, unique("compacted"), cleanup_policy="compact")


def key_of(number: int) -> bytes | None:
    return None if number in KEYLESS else b"key"


# --- clients


def test_librdkafka_learns_which_records_lack_a_key(broker: Broker, compacted: str) -> None:
    # The batch waits for `flush`: all records are in it.
    sender = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000})
    outcomes: dict[int, KafkaError | None] = {}

    def note(error: KafkaError | None, message: Message) -> None:
        outcomes[int(message.value() or b"-1")] = error

    for number in range(RECORDS):
        sender.produce(compacted, str(number), key_of(number), partition=0, on_delivery=note)
    assert sender.flush(PATIENCE_SECONDS) == 0
    codes = {number: error.code() for number, error in outcomes.items() if error is not None}
    assert sorted(codes) == list(range(RECORDS))
    assert sorted(number for number, code in codes.items() if code == KafkaError.INVALID_RECORD) == KEYLESS
    others = {code for number, code in codes.items() if number not in KEYLESS}
    assert others == {KafkaError._INVALID_DIFFERENT_RECORD}


def test_kafka_python_learns_which_records_lack_a_key(broker: Broker, compacted: str) -> None:
    writer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000)
    sent = [writer.send(compacted, b"value", key_of(number), partition=0) for number in range(RECORDS)]
    writer.flush(PATIENCE_SECONDS)
    writer.close()
    named = [number for number, one in enumerate(sent) if isinstance(one.exception, InvalidRecordError)]
    assert named == KEYLESS
    assert NO_KEY in str(sent[KEYLESS[0]].exception)
    assert all(one.failed() for one in sent)


def test_kafka_python_learns_which_records_have_a_wrong_time(broker: Broker, unique: Unique) -> None:
    topic = make(broker, unique("timed"), message_timestamp_before_max_ms=str(HOUR_MS))
    writer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000)
    now = int(time.time() * 1000)
    times = [now, now - 2 * HOUR_MS, now, now + 2 * HOUR_MS, now]
    sent = [writer.send(topic, b"value", partition=0, timestamp_ms=one) for one in times]
    writer.flush(PATIENCE_SECONDS)
    writer.close()
    named = [number for number, one in enumerate(sent) if isinstance(one.exception, InvalidRecordError)]
    assert named == [1, 3]
    assert "message.timestamp.before.max.ms" in str(sent[1].exception)
    assert "message.timestamp.after.max.ms" in str(sent[3].exception)


# --- the response


def produce(
    broker: Broker, topic: str, records: list[Record], *, version: int = 9, compression: int = 0
) -> PartitionProduceResponse:
    batch = build_batch(records, compression=compression)
    data = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    with RawClient(broker) as client:
        answer = ask(client, ApiKey.PRODUCE, version, request, ProduceResponse)
    return answer.responses[0].partition_responses[0]


def keyed(count: int = RECORDS, time_ms: int = 1) -> list[Record]:
    return [Record(number, time_ms, key_of(number), b"value", ()) for number in range(count)]


def named(row: PartitionProduceResponse) -> dict[int, str | None]:
    return {one.batch_index: one.batch_index_error_message for one in row.record_errors}


@pytest.mark.parametrize("compression", [0, 4])
def test_the_response_names_each_record_and_sums_up(broker: Broker, compacted: str, compression: int) -> None:
    row = produce(broker, compacted, keyed(), compression=compression)
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert row.base_offset == -1
    assert named(row) == dict.fromkeys(KEYLESS, NO_KEY)
    assert row.error_message == f"10 of 100 records are refused; record 3: {NO_KEY}"


def test_an_older_version_has_no_room_for_names(broker: Broker, compacted: str) -> None:
    row = produce(broker, compacted, keyed(), version=7)
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert row.record_errors == []


def test_a_record_without_key_and_with_a_wrong_time_is_named_once(broker: Broker, unique: Unique) -> None:
    topic = make(
        broker, unique("both"), cleanup_policy="compact", message_timestamp_before_max_ms=str(HOUR_MS)
    )
    now = int(time.time() * 1000)
    old = now - 2 * HOUR_MS
    keyless_and_old, good = Record(0, old, None, b"v", ()), Record(1, now, b"k", b"v", ())
    row = produce(broker, topic, [keyless_and_old, good])
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert named(row) == {0: NO_KEY}
    row = produce(broker, topic, [keyless_and_old, good, Record(2, old, b"k", b"v", ())])
    assert row.error_code == ErrorCode.INVALID_TIMESTAMP
    assert list(named(row)) == [0, 2]


def test_a_record_without_a_time_is_taken(broker: Broker, unique: Unique) -> None:
    topic = make(broker, unique("untimed"), message_timestamp_before_max_ms=str(HOUR_MS))
    assert produce(broker, topic, [Record(0, -1, None, b"v", ())]).error_code == ErrorCode.NONE


def test_a_response_names_a_limited_number_of_records(broker: Broker, compacted: str) -> None:
    count = topic_rules.NAMED_RECORDS_PER_REQUEST + 1
    row = produce(broker, compacted, [Record(number, 1, None, b"", ()) for number in range(count)])
    assert row.error_code == ErrorCode.INVALID_RECORD
    assert len(row.record_errors) == topic_rules.NAMED_RECORDS_PER_REQUEST
    assert row.error_message is not None
    assert f"{count} of {count}" in row.error_message
