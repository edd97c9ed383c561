"""A refusal names the field, and the values that it accepts."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from penstock import Broker

Unique = Callable[[str], str]


@pytest.fixture
def topic(http: httpx.Client, unique: Unique) -> str:
    name = unique("orders")
    http.post("/v1/topics", json={"name": name, "partitions": 2}).raise_for_status()
    return name


def error(answer: httpx.Response) -> tuple[int, str, str]:
    facts = answer.json()["error"]
    return answer.status_code, facts["field"], facts["message"]


def test_a_refusal_lists_the_accepted_values(http: httpx.Client, topic: str) -> None:
    records = f"/v1/topics/{topic}/records"
    encodings = "expected `base64` or `json` or `text`"
    assert error(http.post(records, json={"encoding": "xml", "records": []})) == (400, "encoding", encodings)
    place = f"/v1/topics/{topic}/partitions/0/records"
    assert error(http.get(place, params={"encoding": "xml"})) == (400, "encoding", encodings)
    asked = http.post("/v1/queues", json={"queue": topic, "order": "kee"})
    assert error(asked) == (400, "order", "expected `key` or `none`")
    asked = http.post(f"/v1/groups/{topic}/offsets", json={"topic": topic, "to": "newest"})
    assert error(asked) == (400, "to", "expected `earliest` or `latest` or a number")


def test_an_invalid_name_or_offset_is_explained(http: httpx.Client, topic: str) -> None:
    status, field, message = error(http.post("/v1/topics", json={"name": "bad name"}))
    assert (status, field) == (400, "name")
    assert message == "expected a topic's name: letters (a to z), digits, `.`, `_` and `-`"
    _, field, message = error(http.post("/v1/queues/x/receive", json={"topics": ["a", "b c"]}))
    assert (field, message[:23]) == ("topics[1]", "expected a topic's name")
    asked = http.get(f"/v1/topics/{topic}/partitions/0/records", params={"offset": "newest"})
    assert error(asked) == (400, "offset", "expected an offset from 0 on, `earliest` or `latest`")


def test_an_empty_body_is_distinguished_from_a_truncated_one(http: httpx.Client) -> None:
    as_json = {"content-type": "application/json"}
    for body in (b"", b"  \n"):
        _, _, message = error(http.post("/v1/topics", content=body, headers=as_json))
        assert message == "the body is empty: expected a JSON object"
    _, _, message = error(http.post("/v1/topics", content=b'{"na', headers=as_json))
    assert "not JSON" in message


def test_a_missing_partition_is_distinguished_from_a_missing_topic(
    http: httpx.Client, topic: str, unique: Unique
) -> None:
    status, field, message = error(http.get(f"/v1/topics/{topic}/partitions/2/records"))
    assert (status, field) == (404, "partition")
    assert message == f"there is no partition 2: {topic} has 2, from 0 on"
    absent = unique("absent")
    assert error(http.get(f"/v1/topics/{absent}/partitions/0/records"))[:2] == (404, "topic")
    asked = http.post("/v1/groups/g/offsets", json={"topic": absent, "to": 0})
    status, field, message = error(asked)
    assert (status, field, message[:17]) == (404, "topic", "there is no topic")


def test_sending_back_no_dead_letter_is_no_success(http: httpx.Client, topic: str) -> None:
    http.post("/v1/queues", json={"queue": topic}).raise_for_status()
    letters = [{"topic": topic, "partition": 0, "offset": 77}]
    answer = http.post(f"/v1/queues/{topic}/dead-letters/send-back", json={"letters": letters})
    assert answer.status_code == 207
    assert [row["error"]["code"] for row in answer.json()["refused"]] == ["unknown_dead_letter"]
    assert http.post(f"/v1/queues/{topic}/dead-letters/send-back", json={"all": True}).status_code == 200


# --- WebSockets


def address(broker: Broker, path: str) -> str:
    return broker.http_url.replace("http:", "ws:") + path


def first_error(broker: Broker, path: str, frame: dict[str, Any]) -> tuple[str, str, int | None]:
    with connect(address(broker, path)) as socket:
        socket.send(json.dumps(frame))
        told = json.loads(socket.recv(60))
        with pytest.raises(ConnectionClosed) as ended:
            socket.recv(60)
        closed = ended.value.rcvd
        return told["code"], told["message"], closed.code if closed is not None else None


@pytest.mark.parametrize(
    ("path", "frame"),
    [
        ("/v1/push", {"type": "subscribe", "subscription": "s"}),
        ("/v1/work", {"type": "work", "queue": "q"}),
    ],
)
def test_a_frame_is_refused_by_its_field_on_both_sockets(
    path: str, frame: dict[str, Any], broker: Broker
) -> None:
    whole = {**frame, "topics": ["a"]}
    encodings = "encoding: expected `base64` or `batch` or `json` or `text`"
    assert first_error(broker, path, {**whole, "encoding": "xml"}) == ("invalid_field", encodings, 4400)
    code, message, _ = first_error(broker, path, {**whole, "credit": "1"})
    assert (code, message) == ("invalid_field", "credit: Expected `int`, got `str`")
    code, message, _ = first_error(broker, path, {**whole, "type": "wrk"})
    assert (code, message[:15]) == ("invalid_field", "type: expected ")
    assert f"`{frame['type']}`" in message
    code, message, _ = first_error(broker, path, frame)
    assert (code, message[:8]) == ("invalid_field", "topics: ")


@pytest.mark.parametrize("path", ["/v1/pushh", "/v1/topics", "/"])
def test_a_websocket_request_for_an_unknown_path_is_404_and_json(path: str, broker: Broker) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(address(broker, path)):
        pass
    assert refused.value.response.status_code == 404
    facts = json.loads(refused.value.response.body or b"")["error"]
    assert facts["code"] == "not_found"
    assert f"no WebSocket at {path}" in facts["message"]


def test_two_names_for_one_subscription_are_refused(broker: Broker, topic: str, unique: Unique) -> None:
    one, other = unique("sub"), unique("sub")
    frame = {"type": "subscribe", "subscription": one, "topics": [topic]}
    code, message, closed = first_error(broker, f"/v1/push?subscription={other}", frame)
    assert (code, closed) == ("invalid_field", 4400)
    assert message == f"subscription: the address says {other!r}, and the frame {one!r}"
    with connect(address(broker, f"/v1/push?subscription={one}")) as socket:
        socket.send(json.dumps(frame))
        assert json.loads(socket.recv(60))["type"] == "subscribed"
