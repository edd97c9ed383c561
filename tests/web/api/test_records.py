"""Records over HTTP: HTTP callers and Kafka clients read each other's records."""

import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock import Broker
from penstock.batch import Record, build_batch
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import produce
from penstock.web.api import reading
from tests.kafka.raw import RawClient

Unique = Callable[[str], str]
BINARY = {"content-type": "application/octet-stream"}


def make(http: httpx.Client, name: str, partitions: int = 1, **configs: object) -> str:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    wish = {"name": name, "partitions": partitions, "configs": settings}
    http.post("/v1/topics", json=wish).raise_for_status()
    return name


def publish(http: httpx.Client, topic: str, *records: dict[str, Any], encoding: str = "json") -> Any:
    answer = http.post(f"/v1/topics/{topic}/records", json={"records": list(records), "encoding": encoding})
    assert answer.status_code == 200, answer.text
    return answer.json()["records"]


def read(http: httpx.Client, topic: str, partition: int = 0, **query: Any) -> Any:
    answer = http.get(f"/v1/topics/{topic}/partitions/{partition}/records", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def consume(broker: Broker, topic: str, count: int) -> list[Any]:
    """The first records of partition 0, as librdkafka reads them."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, 20)
    consumer.close()
    return found


# --- publishing


def test_kafka_clients_read_published_records(http: httpx.Client, broker: Broker, unique: Unique) -> None:
    topic = make(http, unique("out"))
    records = [
        {
            "value": {"id": 1, "name": "ä"},
            "key": "k1",
            "headers": {"a": "1", "b": None},
            "timestamp_ms": 1700000000000,
        },
        {"value": "text", "headers": [["a", "1"], ["a", "2"]]},
        {"value": None, "key": "k1"},
    ]
    assert publish(http, topic, *records) == [
        {"partition": 0, "offset": offset, "error": None} for offset in (0, 1, 2)
    ]
    first, second, third = consume(broker, topic, 3)
    assert json.loads(first.value()) == {"id": 1, "name": "ä"}
    assert (first.key(), first.timestamp()[1]) == (b"k1", 1700000000000)
    assert first.headers() == [("a", b"1"), ("b", None)]
    assert (second.value(), second.key()) == (b'"text"', None)
    assert second.headers() == [("a", b"1"), ("a", b"2")]
    assert (third.key(), third.value()) == (b"k1", None)


def test_json_is_stored_as_it_was_written(http: httpx.Client, broker: Broker, unique: Unique) -> None:
    topic = make(http, unique("verbatim"))
    body = b'{"records": [{"value": {"n" : 123456789012345678901234567890, "e":1.50e2, "s":"\\u00e4"} }]}'
    answer = http.post(
        f"/v1/topics/{topic}/records", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200
    [found] = consume(broker, topic, 1)
    assert found.value() == b'{"n" : 123456789012345678901234567890, "e":1.50e2, "s":"\\u00e4"}'


def test_text_and_base64_are_stored_as_the_bytes_they_mean(
    http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    topic = make(http, unique("bytes"))
    publish(http, topic, {"value": "grün 😀", "key": "k"}, encoding="text")
    raw = {"value": base64.b64encode(b"\xff\x00").decode(), "key": "AAE=", "headers": {"h": "/w=="}}
    publish(http, topic, raw, encoding="base64")
    text, binary = consume(broker, topic, 2)
    assert text.value() == "grün 😀".encode()
    assert (binary.value(), binary.key(), binary.headers()) == (b"\xff\x00", b"\x00\x01", [("h", b"\xff")])


def test_a_binary_body_is_one_value(http: httpx.Client, broker: Broker, unique: Unique) -> None:
    topic = make(http, unique("binary"))
    value = bytes(range(256))
    path = f"/v1/topics/{topic}/records"
    answer = http.post(f"{path}?key=k&partition=0&timestamp_ms=5&ttl_ms=9", content=value, headers=BINARY)
    assert answer.json() == {"topic": topic, "records": [{"partition": 0, "offset": 0, "error": None}]}
    http.post(path, params={"key_base64": "/w=="}, content=b"", headers=BINARY)
    first, second = consume(broker, topic, 2)
    assert (first.value(), first.key(), first.timestamp()[1]) == (value, b"k", 5)
    assert first.headers() == [("penstock-ttl-ms", b"9")]
    assert (second.value() or b"", second.key()) == (b"", b"\xff")


def test_queue_options_become_headers(http: httpx.Client, broker: Broker, unique: Unique) -> None:
    topic = make(http, unique("wishes"), dedup_window_ms=60_000)
    publish(
        http,
        topic,
        {"value": 1, "message_id": "order-ü", "delay_ms": 1500, "ttl_ms": 60000},
        {"value": 2, "deliver_at_ms": 1700000000000, "headers": {"mine": "x"}},
    )
    first, second = consume(broker, topic, 2)
    assert first.headers() == [
        ("penstock-message-id", "order-ü".encode()),
        ("penstock-delay-ms", b"1500"),
        ("penstock-ttl-ms", b"60000"),
    ]
    assert second.headers() == [("mine", b"x"), ("penstock-deliver-at", b"1700000000000")]


DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("record", "code", "field"),
    [
        ({"message_id": "order-17"}, "no_dedup_window", "records[1].message_id"),
        ({"headers": {"penstock-message-id": "order-17"}}, "no_dedup_window", "records[1].message_id"),
        ({"delay_ms": 30 * DAY_MS}, "delay_beyond_retention", "records[1].delay_ms"),
        ({"deliver_at_ms": 4_102_444_800_000}, "delay_beyond_retention", "records[1].delay_ms"),
        (
            {"headers": {"penstock-delay-ms": f"{8 * DAY_MS}"}},
            "delay_beyond_retention",
            "records[1].delay_ms",
        ),
    ],
)
def test_a_wish_that_the_topic_cannot_grant_is_refused(
    http: httpx.Client, unique: Unique, record: dict[str, Any], code: str, field: str
) -> None:
    topic = make(http, unique("wishes"))
    body = {"records": [{"value": 1}, {"value": 2, **record}]}
    answer = http.post(f"/v1/topics/{topic}/records", json=body)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == (code, field)
    assert not read(http, topic)["records"]


def test_a_topic_that_can_grant_it_takes_the_message(http: httpx.Client, unique: Unique) -> None:
    settings = {"dedup_window_ms": 60_000, "penstock_retention_keep_undone": True}
    topic = make(http, unique("wishes"), **settings)
    wishes = {"value": 1, "delay_ms": 30 * DAY_MS, "message_id": "order-17"}
    [first] = publish(http, topic, wishes)
    [again] = publish(http, topic, wishes)
    assert first == again
    for retention in ({"retention_ms": -1}, {"retention_ms": 31 * DAY_MS}, {"cleanup_policy": "compact"}):
        publish(
            http,
            make(http, unique("wishes"), **retention),
            {"value": 1, "key": "k", "delay_ms": 30 * DAY_MS},
        )


def test_keys_map_to_the_same_partitions_as_in_kafka_clients(
    http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    topic = make(http, unique("keyed"), partitions=7)
    keys = [f"key-{number}" for number in range(50)]
    placed = publish(http, topic, *({"value": 1, "key": key} for key in keys))
    theirs: dict[str, int] = {}
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
        }
    )
    for key in keys:
        producer.produce(
            topic,
            b"x",
            key,
            on_delivery=lambda _, sent: theirs.update({sent.key().decode(): sent.partition()}),
        )
    assert producer.flush(20) == 0
    assert {key: row["partition"] for key, row in zip(keys, placed, strict=True)} == theirs


def test_records_without_a_key_are_spread_round_robin(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("turns"), partitions=3)
    one_by_one = [publish(http, topic, {"value": 1})[0]["partition"] for _ in range(3)]
    together = [row["partition"] for row in publish(http, topic, *[{"value": 1}] * 3)]
    assert sorted(one_by_one) == sorted(together) == [0, 1, 2]


def test_records_of_one_partition_have_consecutive_offsets_in_their_order(
    http: httpx.Client, unique: Unique
) -> None:
    topic = make(http, unique("order"), partitions=2)
    rows = publish(http, topic, *({"value": n, "partition": n % 2} for n in range(6)))
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
    ]
    assert [record["value"] for record in read(http, topic, 1)["records"]] == [1, 3, 5]


def test_a_missing_topic_is_auto_created_as_for_kafka_clients(http: httpx.Client, unique: Unique) -> None:
    assert publish(http, unique("new"), {"value": 1})[0]["offset"] == 0
    with Broker(auto_create_topics=False) as strict:
        refused = httpx.post(f"{strict.http_url}/v1/topics/new/records", json={"records": [{"value": 1}]})
    assert refused.status_code == 404
    assert refused.json()["error"]["field"] == "topic"


def test_a_partial_success_lists_stored_and_failed_records(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("partly"), partitions=2, max_message_bytes=1000)
    records = [{"value": "x", "partition": 0}, {"value": "y" * 2000, "partition": 1}]
    answer = http.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert answer.status_code == 207
    stored, refused = answer.json()["records"]
    assert stored == {"partition": 0, "offset": 0, "error": None}
    assert (refused["partition"], refused["offset"]) == (1, None)
    assert refused["error"]["code"] == "message_too_large"


def test_when_nothing_is_stored_the_answer_is_the_error(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("none"), max_message_bytes=1000)
    refused = http.post(f"/v1/topics/{topic}/records", json={"records": [{"value": "y" * 2000}]})
    assert refused.status_code == 413
    assert "max.message.bytes" in refused.json()["error"]["message"]
    compacted = make(http, unique("compacted"), cleanup_policy="compact")
    refused = http.post(f"/v1/topics/{compacted}/records", json={"records": [{"value": 1}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_record")


@pytest.mark.parametrize(
    ("record", "encoding", "field"),
    [
        ({}, "json", "records[0].value"),
        ({"value": 1}, "text", "records[0].value"),
        ({"value": "%%%"}, "base64", "records[0].value"),
        ({"value": "YQ"}, "base64", "records[0].value"),
        ({"value": 1, "key": 5}, "json", "records[0].key"),
        ({"value": "YQ==", "key": "ö"}, "base64", "records[0].key"),
        ({"value": "YQ==", "headers": {"h": "?"}}, "base64", "records[0].headers"),
        ({"value": 1, "headers": [["only a name"]]}, "json", "records[0].headers[0]"),
        ({"value": 1, "headers": "h"}, "json", "records[0].headers"),
        ({"value": 1, "partition": -1}, "json", "records[0].partition"),
        ({"value": 1, "partition": 1}, "json", "records[0].partition"),
        ({"value": 1, "partition": 2**40}, "json", "records[0].partition"),
        ({"value": 1, "timestamp_ms": -5}, "json", "records[0].timestamp_ms"),
        ({"value": 1, "timestamp_ms": 2**70}, "json", "records[0].timestamp_ms"),
        ({"value": 1, "ttl_ms": 1.5}, "json", "records[0].ttl_ms"),
        ({"value": 1, "message_id": ""}, "json", "records[0].message_id"),
        ({"value": 1, "message_id": "x" * 257}, "json", "records[0].message_id"),
        ({"value": 1, "message_id": "ä" * 129}, "json", "records[0].message_id"),
        ({"value": 1, "delay_ms": 1, "deliver_at_ms": 2}, "json", "records[0].deliver_at_ms"),
        ({"value": 1, "valu": 2}, "json", "records[0].valu"),
        ({"value": 1}, "xml", "encoding"),
    ],
    ids=str,
)
def test_an_invalid_record_is_named_and_nothing_is_stored(
    http: httpx.Client, unique: Unique, record: dict[str, Any], encoding: str, field: str
) -> None:
    topic = make(http, unique("wrong"))
    refused = http.post(f"/v1/topics/{topic}/records", json={"records": [record], "encoding": encoding})
    assert refused.status_code == 400
    assert refused.json()["error"]["field"] == field
    assert read(http, topic)["high_watermark"] == 0


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("partition=7", "partition"),
        ("partition=x", "partition"),
        ("key=a&key_base64=YQ==", "key_base64"),
        ("key_base64=a", "key_base64"),
        ("delay_ms=1&deliver_at_ms=1", "deliver_at_ms"),
        ("message_id=" + "x" * 257, "message_id"),
        ("message_id=" + "%C3%A4" * 129, "message_id"),
        ("colour=red", "colour"),
    ],
)
def test_an_invalid_query_beside_a_binary_body_is_named(
    http: httpx.Client, unique: Unique, query: str, field: str
) -> None:
    topic = make(http, unique("query"))
    refused = http.post(f"/v1/topics/{topic}/records?{query}", content=b"x", headers=BINARY)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, field)


def test_query_options_of_binary_bodies_are_refused_with_json(http: httpx.Client, unique: Unique) -> None:
    path = f"/v1/topics/{unique('mixed')}/records?key=a"
    refused = http.post(path, json={"records": [{"value": 1}]})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "key")


def test_more_records_than_one_request_may_have_are_refused(http: httpx.Client, unique: Unique) -> None:
    records = [{"value": 1}] * 10_001
    refused = http.post(f"/v1/topics/{unique('many')}/records", json={"records": records})
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "records")


# --- reading


def test_callers_read_records_of_kafka_clients(http: httpx.Client, broker: Broker, unique: Unique) -> None:
    topic = make(http, unique("in"))
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "zstd",
        }
    )
    producer.produce(
        topic, b'{"a": [1, 2]}', b"k", headers={"h": b"v", "none": None}, timestamp=1700000000000
    )
    producer.produce(topic, b"not json", None)
    producer.produce(topic, b"\xff", b"\xfe", headers={"h": b"\xfd"})
    producer.produce(topic, None, b"k")
    assert producer.flush(20) == 0
    found = read(http, topic)
    assert (found["next_offset"], found["high_watermark"], found["log_start_offset"]) == (4, 4, 0)
    first, second, third, fourth = found["records"]
    assert first == {
        "offset": 0,
        "timestamp_ms": 1700000000000,
        "key": "k",
        "key_encoding": "text",
        "value": {"a": [1, 2]},
        "value_encoding": "json",
        "headers": [
            {"name": "h", "value": "v", "encoding": "text"},
            {"name": "none", "value": None, "encoding": "text"},
        ],
    }
    assert (second["value"], second["value_encoding"], second["key"]) == ("not json", "text", None)
    assert (third["value"], third["value_encoding"]) == ("/w==", "base64")
    assert (third["key"], third["key_encoding"]) == ("/g==", "base64")
    assert third["headers"] == [{"name": "h", "value": "/Q==", "encoding": "base64"}]
    assert (fourth["key"], fourth["value"]) == ("k", None)


def test_the_encoding_is_the_readers_choice(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("choice"))
    publish(http, topic, {"value": {"a": 1}, "key": "k"})
    [as_text] = read(http, topic, encoding="text")["records"]
    assert (as_text["value"], as_text["value_encoding"]) == ('{"a":1}', "text")
    [as_base64] = read(http, topic, encoding="base64")["records"]
    assert base64.b64decode(as_base64["value"]) == b'{"a":1}'
    assert (as_base64["key"], as_base64["key_encoding"]) == ("aw==", "base64")


def test_reading_begins_at_the_given_position(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("places"))
    publish(http, topic, *({"value": n, "timestamp_ms": 1000 + 10 * n} for n in range(5)))

    def values(**query: Any) -> list[int]:
        return [record["value"] for record in read(http, topic, **query)["records"]]

    assert values() == values(offset="earliest") == values(offset=0) == [0, 1, 2, 3, 4]
    assert values(offset=3) == [3, 4]
    assert values(timestamp_ms=1015) == [2, 3, 4]
    assert values(timestamp_ms=0) == [0, 1, 2, 3, 4]
    assert values(offset="latest") == values(offset=5) == values(timestamp_ms=99999) == []
    assert read(http, topic, timestamp_ms=99999)["next_offset"] == 5


def test_pages_follow_each_other_without_gaps(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("pages"))
    for start in (0, 4, 8):
        publish(http, topic, *({"value": start + n} for n in range(4)))
    seen: list[int] = []
    offset = 0
    while offset < 12:
        page = read(http, topic, offset=offset, max_records=5)
        assert 1 <= len(page["records"]) <= 5
        seen += [record["value"] for record in page["records"]]
        offset = page["next_offset"]
    assert seen == list(range(12))


def test_a_page_has_a_byte_limit_and_at_least_one_record(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("bounded"))
    publish(http, topic, *({"value": "x" * 1000, "key": str(n)} for n in range(10)), encoding="text")
    page = read(http, topic, max_bytes=3500)
    assert (len(page["records"]), page["next_offset"]) == (3, 3)
    assert len(read(http, topic, max_bytes=1)["records"]) == 1


def test_a_missing_offset_is_416_with_the_available_range(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("range"))
    publish(http, topic, {"value": 1})
    refused = http.get(f"/v1/topics/{topic}/partitions/0/records?offset=7")
    assert refused.status_code == 416
    said = refused.json()["error"]
    assert said["field"] == "offset"
    assert "0 to 1" in said["message"]


def test_a_waiting_reader_gets_new_records(http: httpx.Client, broker: Broker, unique: Unique) -> None:
    topic = make(http, unique("awaited"))
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(read(http, topic, wait_ms=30_000)))
    reader.start()
    publish(http, topic, {"value": "here"})
    reader.join(60)
    assert [record["value"] for record in found[0]["records"]] == ["here"]


def test_a_waiting_reader_without_new_records_gets_an_empty_page(http: httpx.Client, unique: Unique) -> None:
    topic = make(http, unique("vain"))
    assert read(http, topic, wait_ms=50)["records"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("offset=-1", "offset"),
        ("offset=soon", "offset"),
        ("offset=", "offset"),
        ("offset=1&timestamp_ms=1", "timestamp_ms"),
        ("timestamp_ms=-1", "timestamp_ms"),
        ("max_records=0", "max_records"),
        ("max_records=10001", "max_records"),
        ("max_bytes=0", "max_bytes"),
        (f"max_bytes={reading.MAX_BYTES + 1}", "max_bytes"),
        ("wait_ms=30001", "wait_ms"),
        ("wait_ms=1.5", "wait_ms"),
        ("encoding=xml", "encoding"),
        ("max=5", "max"),
    ],
)
def test_an_invalid_query_of_a_read_is_named(
    http: httpx.Client, unique: Unique, query: str, field: str
) -> None:
    topic = make(http, unique("misread"))
    refused = http.get(f"/v1/topics/{topic}/partitions/0/records?{query}")
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, field)


@pytest.mark.parametrize(("partition", "status"), [("1", 404), ("-1", 400), ("x", 400), ("9" * 30, 400)])
def test_reading_a_missing_or_invalid_partition_is_refused(
    http: httpx.Client, unique: Unique, partition: str, status: int
) -> None:
    topic = make(http, unique("one"))
    assert http.get(f"/v1/topics/{topic}/partitions/{partition}/records").status_code == status


def test_a_batch_that_unpacks_to_too_much_is_an_error_that_names_the_next_offset(
    http: httpx.Client, broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make(http, unique("bomb"))
    publish(http, topic, {"value": "before"})
    packed = build_batch([Record(0, 1, None, b"\0" * 100_000, ())], compression=4)
    data = produce.PartitionProduceData(index=0, records=packed)
    request = produce.ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])]
    )
    with RawClient(broker) as client:
        client.call(ApiKey.PRODUCE, 9, request)
    publish(http, topic, {"value": "after"})
    monkeypatch.setattr(reading, "UNPACKED_BYTES_MAX", 50_000)
    first = read(http, topic)
    assert ([record["value"] for record in first["records"]], first["next_offset"]) == (["before"], 1)
    refused = http.get(f"/v1/topics/{topic}/partitions/0/records?offset=1")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "unreadable_batch")
    assert "offset 2" in refused.json()["error"]["message"]
    assert [record["value"] for record in read(http, topic, offset=2)["records"]] == ["after"]
