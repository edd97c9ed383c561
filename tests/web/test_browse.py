"""Messages over /v1/browse: where a scan starts, what a filter selects, credit, progress, and its ends."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from websockets.exceptions import ConnectionClosed, ConnectionClosedError

from penstock import Broker
from penstock.config import Limits
from penstock.web import browse, browse_frames, partition_scan
from tests.web.api.secured import PASSWORDS, caller
from tests.web.browsing import scan

Unique = Callable[[str], str]


def found(broker: Broker, topic: str, **request: Any) -> list[Any]:
    """The values of a scan that ended by itself."""
    with scan(broker.http_url, topic, **request) as one:
        one.until("end")
        return one.values


def refused(broker: Broker, topic: str, **request: Any) -> tuple[str, str]:
    with scan(broker.http_url, topic, **request) as one:
        error = one.until("error")
        return error["code"], error["message"]


@pytest.fixture(scope="module")
def orders(broker: Broker) -> str:
    """Three partitions with 400 messages each; the value is {"n": 0}, {"n": 1}, ... as they were written."""
    httpx.post(
        f"{broker.http_url}/v1/topics", json={"name": "browsed-orders", "partitions": 3}
    ).raise_for_status()
    producer = Producer({**broker.client_settings(), "linger.ms": 5})
    for number in range(1_200):
        value = {"n": number, "customer": {"city": f"city-{number % 4}", "tags": ["a", number]}}
        producer.produce(
            "browsed-orders",
            json.dumps(value),
            f"key-{number % 7}",
            partition=number % 3,
            timestamp=1_700_000_000_000 + number,
            headers={"source": "shop" if number % 2 else "web"},
        )
    producer.flush()
    return "browsed-orders"


def numbers(values: list[str]) -> list[int]:
    return [json.loads(value)["n"] for value in values]


# --- where it starts


def test_the_newest_messages_of_all_partitions_come_first(broker: Broker, orders: str) -> None:
    assert numbers(found(broker, orders, limit=10)) == list(range(1_199, 1_189, -1))


def test_the_oldest_messages(broker: Broker, orders: str) -> None:
    assert numbers(found(broker, orders, start="oldest", partitions=[1], limit=3)) == [1, 4, 7]


def test_the_oldest_messages_of_all_partitions_come_first(broker: Broker, orders: str) -> None:
    assert numbers(found(broker, orders, start="oldest", limit=10)) == list(range(10))


@pytest.mark.parametrize("start", ["oldest", "newest"])
def test_partitions_of_different_length_are_merged_by_time_step_by_step(
    broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(partition_scan, "STEP_BYTES", 1)  # a batch at a time
    topic, order = unique("uneven"), [*range(60)]
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": topic, "partitions": 3}).raise_for_status()
    producer = Producer({**broker.client_settings(), "linger.ms": 0})
    for number in order:
        partition = 2 if number == 30 else number // 40
        producer.produce(
            topic, json.dumps({"n": number}), partition=partition, timestamp=1_700_000_000_000 + number
        )
        producer.flush()
    expected = order if start == "oldest" else order[::-1]
    assert numbers(found(broker, topic, start=start, limit=50)) == expected[:50]


def test_from_an_offset_on(broker: Broker, orders: str) -> None:
    assert numbers(found(broker, orders, start="offset", offset=398, partitions=[2])) == [1_196, 1_199]


def test_from_a_time_on(broker: Broker, orders: str) -> None:
    at = 1_700_000_000_000 + 1_190
    assert sorted(numbers(found(broker, orders, start="timestamp", timestamp_ms=at))) == list(
        range(1_190, 1_200)
    )


def test_a_tail_shows_what_comes_from_now_on(broker: Broker, unique: Unique) -> None:
    topic = unique("tailed")
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": topic, "partitions": 2}).raise_for_status()
    producer = Producer(broker.client_settings())
    producer.produce(topic, b"before")
    producer.flush()
    with scan(broker.http_url, topic, start="tail", credit=2) as one:
        one.until("progress")
        for number in range(4):
            httpx.post(
                f"{broker.http_url}/v1/topics/{topic}/records",
                json={"encoding": "text", "records": [{"value": f"after {number}", "partition": number % 2}]},
            ).raise_for_status()
        one.has(1)
        one.send(type="more", credit=100)
        assert sorted(one.has(4)) == [f"after {number}" for number in range(4)]
        one.send(type="stop")
        assert one.until("end")["reason"] == "stopped"


# --- filters


@pytest.mark.parametrize(
    ("selects", "expected"),
    [
        ({"key": "key-3"}, lambda n: n % 7 == 3),
        ({"value": '"n": 77,'}, lambda n: n == 77),
        ({"header": "source", "header_value": "web"}, lambda n: n % 2 == 0),
        ({"field": "customer.city", "field_value": "city-2"}, lambda n: n % 4 == 2),
        ({"field": "customer.tags.1", "field_value": "600"}, lambda n: n == 600),
        ({"field": "customer.tags.5"}, lambda n: False),
        ({"key": "key-3", "header": "source", "header_value": "web"}, lambda n: n % 14 == 10),
    ],
    ids=["key", "value", "header", "field", "list", "no-such-field", "both"],
)
def test_a_filter_selects(
    broker: Broker, orders: str, selects: dict[str, str], expected: Callable[[int], bool]
) -> None:
    wanted = [number for number in range(1_200) if expected(number)]
    values = found(broker, orders, filter=selects, limit=browse_frames.MAX_LIMIT)
    assert sorted(numbers(values)) == wanted[-browse_frames.MAX_LIMIT :]


def test_a_filter_that_lacks_a_part_is_refused(broker: Broker, orders: str) -> None:
    assert refused(broker, orders, filter={"field_value": "1"})[0] == "invalid_field"
    assert refused(broker, orders, filter={"header_value": "1"})[0] == "invalid_field"
    deep = ".".join(["a"] * (browse_frames.MAX_PATH_PARTS + 1))
    assert "at most 20" in refused(broker, orders, filter={"field": deep})[1]


def test_values_that_are_not_json_have_no_fields(broker: Broker, unique: Unique) -> None:
    topic = unique("mixed")
    producer = Producer(broker.client_settings())
    for value in (b"\xff\xfe", b"text", b'{"id": 1}', None, b"[[[["):
        producer.produce(topic, value)
    producer.flush()
    assert found(broker, topic, filter={"field": "id"}) == ['{"id": 1}']
    assert len(found(broker, topic)) == 5


# --- progress, credit, ends


def test_the_end_tells_how_much_was_scanned(broker: Broker, orders: str) -> None:
    with scan(broker.http_url, orders, filter={"value": "nowhere"}) as one:
        end = one.until("end")
    assert (end["reason"], end["scanned"], end["total"], end["found"]) == ("complete", 1_200, 1_200, 0)


def test_no_more_messages_come_than_the_client_takes(broker: Broker, orders: str) -> None:
    with scan(broker.http_url, orders, start="oldest", limit=100, credit=10) as one:
        assert len(one.has(10)) == 10
        one.send(type="more", credit=5)
        assert len(one.has(15)) == 15
        one.send(type="more", credit=1_000)
        assert one.until("end")["reason"] == "limit"
        assert len(one.messages) == 100


def test_a_scan_without_credit_is_stopped(broker: Broker, orders: str) -> None:
    with scan(broker.http_url, orders, start="oldest", limit=500, credit=1) as one:
        one.has(1)
        one.send(type="stop")
        end = one.until("end")
        with pytest.raises(ConnectionClosed) as closed:
            one.next()
    assert (end["reason"], end["found"]) == ("stopped", 1)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000


def test_a_long_value_is_cut_between_two_characters(broker: Broker, unique: Unique) -> None:
    topic = unique("long")
    text = "x" + "é" * browse_frames.SHOWN_BYTES_MAX
    producer = Producer(broker.client_settings())
    producer.produce(topic, text.encode())
    producer.flush()
    with scan(broker.http_url, topic) as one:
        one.until("end")
        [message] = one.messages
    assert message["truncated"] is True
    assert message["value_bytes"] == len(text.encode())
    assert message["value_encoding"] == "text"
    assert text.startswith(message["value"])
    with scan(broker.http_url, topic, whole=True) as one:
        one.until("end")
        [message] = one.messages
    assert (message["truncated"], message["value"]) == (False, text)


def test_a_whole_message_is_cut_as_well_if_it_is_huge(
    broker: Broker, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse_frames, "WHOLE_BYTES_MAX", 100_000)
    monkeypatch.setattr(browse_frames, "WHOLE_HEADERS_MAX", 200)
    topic = unique("huge")
    producer = Producer(broker.client_settings())
    producer.produce(topic, b"\x01" * 100_001, b"k" * 100_001, headers=[("h", b"x" * 100_001)])
    producer.produce(topic, b"x" * 100_000, headers=[("h", b"")] * 200)
    producer.produce(topic, b"x", headers=[("h", b"")] * 201)
    producer.flush()
    with scan(broker.http_url, topic, whole=True, start="oldest") as one:
        one.until("end")
    huge, most, many = one.messages
    shown = len(huge["value"]), len(huge["key"]), len("h" + huge["headers"][0]["value"])
    assert (shown, huge["truncated"], huge["value_bytes"]) == ((100_000,) * 3, True, 100_001)
    assert (len(most["value"]), len(most["headers"]), most["truncated"]) == (100_000, 200, False)
    assert (len(many["headers"]), many["truncated"]) == (200, True)


def test_a_tail_of_whole_messages_is_refused(broker: Broker, orders: str) -> None:
    """Each of its partitions holds some messages."""
    code, message = refused(broker, orders, start="tail", whole=True)
    assert (code, "whole" in message) == ("invalid_field", True)


def test_large_frames_count_as_memory_of_the_http_port_until_they_are_read() -> None:
    limits = Limits(max_http_memory_bytes=4 * 1024 * 1024)
    with Broker(limits=limits) as broker:
        producer = Producer(broker.client_settings())
        producer.produce("fits", b"\x01" * 500_000)
        producer.produce("is-too-large", b"\x01" * 900_000)  # six characters each, as JSON
        producer.flush()
        assert [len(value) for value in found(broker, "fits", whole=True)] == [500_000]
        assert refused(broker, "is-too-large", whole=True)[0] == "too_busy"
        assert broker._thread.service.node.http_memory.used == 0


def test_one_partition_is_in_the_order_of_its_offsets_so_that_a_client_can_go_on(
    broker: Broker, unique: Unique
) -> None:
    topic = unique("backwards")
    producer = Producer(broker.client_settings())
    for number in range(10):
        producer.produce(topic, str(number), timestamp=1_000_000 - number)
    producer.flush()
    first = found(broker, topic, start="oldest", partitions=[0], limit=4)
    second = found(broker, topic, start="offset", offset=4, partitions=[0], limit=9)
    assert [*first, *second] == [str(number) for number in range(10)]


@contextmanager
def only_tail(broker: Broker, topic: str) -> Iterator[None]:
    """A scan that has begun, where one is allowed: the broker may not have heard yet that the one before has gone."""
    while True:
        with scan(broker.http_url, topic, start="tail") as one:
            try:
                one.until("progress")
            except ConnectionClosedError as refusal:
                if "too_many_scans" in str(refusal):
                    continue
                raise
            yield
            return


def test_scans_of_a_node_and_of_a_caller_are_limited_and_a_page_hears_why(
    broker: Broker, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, told in (("MAX_SCANS", "this node has 1 scans"), ("MAX_SCANS_OF_CALLER", "you have 1 scans")):
        monkeypatch.setattr(browse, limit, 1)
        with only_tail(broker, orders):
            code, message = refused(broker, orders)
            assert (code, message[: len(told)]) == ("too_many_scans", told)
        monkeypatch.setattr(browse, limit, 100)


def test_a_scan_whose_client_takes_nothing_ends(
    broker: Broker, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "CREDIT_SECONDS", 0.01)
    with scan(broker.http_url, orders, credit=1) as one:
        assert one.until("error")["code"] == "no_credit"
        assert len(one.messages) == 1


def test_a_tail_of_too_many_partitions_is_refused(
    broker: Broker, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "TAILED_MAX", 2)
    assert refused(broker, orders, start="tail")[0] == "invalid_field"


def test_mistakes_are_told(broker: Broker, orders: str) -> None:
    assert refused(broker, "no-such-topic")[0] == "unknown_topic_or_partition"
    assert refused(broker, orders, partitions=[3])[0] == "invalid_field"
    assert refused(broker, orders, limit=browse_frames.MAX_LIMIT + 1)[0] == "invalid_field"
    assert httpx.get(f"{broker.http_url}/v1/browse").status_code == 426


# --- memory


@pytest.fixture(scope="module")
def large_headers(broker: Broker) -> str:
    """Messages that are small on the disk: their headers compress well."""
    httpx.post(f"{broker.http_url}/v1/topics", json={"name": "browsed-headers"}).raise_for_status()
    producer = Producer({**broker.client_settings(), "compression.type": "zstd", "linger.ms": 50})
    for number in range(40):
        producer.produce("browsed-headers", str(number), headers=[("h", b"x" * 300_000), ("after", b"y")])
    producer.flush()
    return "browsed-headers"


@pytest.mark.parametrize("start", ["oldest", "newest"])
def test_headers_are_cut_as_values_are(broker: Broker, large_headers: str, start: str) -> None:
    with scan(broker.http_url, large_headers, start=start) as one:
        one.until("end")
    shown = [
        sum(len(header["name"] + header["value"]) for header in each["headers"]) for each in one.messages
    ]
    assert len(shown) == 40
    assert max(shown) <= browse_frames.SHOWN_BYTES_MAX
    assert all(each["truncated"] for each in one.messages)


def test_many_headers_are_cut_and_a_few_are_shown_as_they_are(broker: Broker, unique: Unique) -> None:
    topic = unique("headers")
    producer = Producer(broker.client_settings())
    producer.produce(topic, "few", headers=[("a", b"1"), ("b", None), ("c", b"\xff")])
    producer.produce(topic, "many", headers=[(f"h{number}", b"") for number in range(1_000)])
    producer.flush()
    with scan(broker.http_url, topic, start="oldest") as one:
        one.until("end")
    few, many = one.messages
    assert ([header["name"] for header in few["headers"]], few["truncated"]) == (["a", "b", "c"], False)
    assert (len(many["headers"]), many["truncated"]) == (browse_frames.SHOWN_HEADERS_MAX, True)


@pytest.mark.parametrize("start", ["oldest", "newest"])
def test_a_scan_holds_no_more_bytes_than_it_may(
    broker: Broker, large_headers: str, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setattr(browse, "HELD_BYTES", 5 * browse_frames.SHOWN_BYTES_MAX)
    with scan(broker.http_url, large_headers, start=start) as one:
        assert one.until("end")["reason"] == "held_bytes"
    values = [int(value) for value in one.values]
    assert 1 <= len(values) <= 6
    assert values == ([*range(40)] if start == "oldest" else [*range(39, -1, -1)])[: len(values)]


def test_frames_are_no_larger_than_a_message_needs(
    broker: Broker, large_headers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browse, "FRAME_BYTES", browse_frames.SHOWN_BYTES_MAX)
    with scan(broker.http_url, large_headers) as one:
        sizes = []
        while (frame := one.next())["type"] != "end":
            sizes += [len(frame["messages"])] if frame["type"] == "messages" else []
    assert (sum(sizes), max(sizes)) == (40, 1)


# --- permissions


def test_a_scan_needs_the_permission_to_read_and_ends_with_it() -> None:
    with Broker(users=PASSWORDS) as broker, caller(broker, "admin", PASSWORDS["admin"]) as admin:
        admin.post("/v1/topics", json={"name": "news"}).raise_for_status()
        with caller(broker, "alice", PASSWORDS["alice"]) as alice:
            token = alice.post("/v1/users/alice/tokens", json={}).json()["token"]
        protocols = ["penstock", f"bearer.{token}"]
        with scan(broker.http_url, "news", protocols) as one:
            assert one.until("error")["code"] == "topic_authorization_failed"
        grant = {"role": "reader", "principal": "User:alice"}
        admin.post("/v1/grants", json=grant).raise_for_status()
        with scan(broker.http_url, "news", protocols, start="tail") as one:
            record = {"encoding": "text", "records": [{"value": "seen"}]}
            admin.post("/v1/topics/news/records", json=record).raise_for_status()
            one.next()
            admin.request("DELETE", "/v1/grants", params=grant).raise_for_status()
            assert one.until("error")["code"] == "topic_authorization_failed"
