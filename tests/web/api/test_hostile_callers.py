"""Hostile or broken callers: each limit of the web API is exceeded, and other callers are still served."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import msgspec
import pytest

from penstock import Broker
from penstock.config import Limits
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node.limits.memory import MemoryBudget
from penstock.web.api import bodies, routing
from penstock.web.api.bodies import reserve
from penstock.web.api.problems import Problem
from penstock.web.api.publishing import MAX_RECORDS, Publication

Unique = Callable[[str], str]
JSON = {"content-type": "application/json"}
MEBIBYTE = 1024 * 1024
PUBLISH = "/v1/topics/anything/records"


@contextmanager
def limited(**limits: int) -> Iterator[httpx.Client]:
    """A broker with these limits, and a client of it."""
    with (
        Broker(limits=Limits(**limits)) as broker,
        httpx.Client(base_url=broker.http_url, timeout=30) as client,
    ):
        yield client


def connect(client: httpx.Client) -> socket.socket:
    sock = socket.socket()
    sock.settimeout(30)
    sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024
    )  # the kernel should not buffer much for the caller
    sock.connect((client.base_url.host, client.base_url.port or 80))
    return sock


def answer_of(sock: socket.socket) -> tuple[int, Any]:
    """Status and body of the next response."""
    text = b""
    while b"\r\n\r\n" not in text:
        text += sock.recv(65536)
    head, _, body = text.partition(b"\r\n\r\n")
    [length] = [
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length")
    ]
    while len(body) < length:
        body += sock.recv(65536)
    return int(head.split()[1]), json.loads(body)


def send_for_ever(sock: socket.socket) -> None:
    while True:
        sock.sendall(bytes(65536))


def head(path: str, length: int, method: str = "POST") -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}"
    )
    return f"{lines}\r\n\r\n".encode()


# --- bodies


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_body"),
        (b"nothing", "invalid_body"),
        (b"\xff\xfe", "invalid_body"),
        (b'{"records": [{"value": NaN}]}', "invalid_body"),
        (b'{"records": [{"value": Infinity}]}', "invalid_body"),
        (b'{"records": [{"value": 1}]', "invalid_body"),
        (b'{"records": [{"value": 1}]} {}', "invalid_body"),
        (b'{"records": [{"value": "\\ud800"}]}', "invalid_body"),
        (b'{"records": [{"value": "\xff"}]}', "invalid_field"),
        (b'{"records": [{"value": ["\xed\xa0\x80"]}]}', "invalid_field"),
        (b'{"records": [{"value": 1, "key": "\\udfff"}]}', "invalid_body"),
        (b"[" * 1_000_000, "invalid_body"),
        (b'{"records": [{"value": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]}", "invalid_body"),
        (b'{"records": [{"value": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}]}", "invalid_body"),
        (b'{"records": {"value": 1}}', "invalid_field"),
        (b'{"records": null}', "invalid_field"),
        (b'{"records": [null]}', "invalid_field"),
        (b'{"records": [[1]]}', "invalid_field"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else None,
)
def test_an_invalid_body_is_400_and_stores_nothing(
    http: httpx.Client, unique: Unique, body: bytes, code: str
) -> None:
    topic = unique("untouched")
    refused = http.post(f"/v1/topics/{topic}/records", content=body, headers=JSON)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == code
    assert http.get(f"/v1/topics/{topic}").status_code == 404


def test_pairs_of_surrogates_are_one_character(http: httpx.Client, unique: Unique) -> None:
    topic = unique("smile")
    body = b'{"records": [{"value": "\\ud83d\\ude00", "key": "\\ud83d\\ude00"}], "encoding": "text"}'
    assert http.post(f"/v1/topics/{topic}/records", content=body, headers=JSON).status_code == 200
    [found] = http.get(f"/v1/topics/{topic}/partitions/0/records?encoding=text").json()["records"]
    assert (found["value"], found["key"]) == ("😀", "😀")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_content_types_that_any_web_page_can_send_are_415(http: httpx.Client, kind: str) -> None:
    refused = http.post(PUBLISH, content=b'{"records": [{"value": 1}]}', headers={"content-type": kind})
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_binary_bodies_are_for_publishing_only(http: httpx.Client) -> None:
    refused = http.post("/v1/topics", content=b"{}", headers={"content-type": "application/octet-stream"})
    assert refused.status_code == 415


def test_a_body_with_a_too_large_content_length_is_refused_before_it_is_read() -> None:
    with limited(max_http_body_bytes=MEBIBYTE) as client, connect(client) as sock:
        sock.sendall(head(PUBLISH, MEBIBYTE + 1))
        status, said = answer_of(sock)
        assert (status, said["error"]["code"]) == (413, "body_too_large")
        assert "max_http_body_bytes" in said["error"]["message"]


def test_a_chunked_body_is_refused_once_it_exceeds_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "DISCARDED_SECONDS", 60.0)
    with limited(max_http_body_bytes=MEBIBYTE) as client:
        chunks = (b"x" * 65536 for _ in range(64))
        refused = client.post(PUBLISH, content=chunks, headers=JSON)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
        assert client.get("/v1/topics").status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_in_too_many_chunks_ends_the_connection_and_no_other(method: str) -> None:
    with limited(max_http_body_chunks=100) as client, connect(client) as sock:
        lines = f"{method} {PUBLISH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{lines}Transfer-Encoding: chunked\r\n\r\n".encode())
        with suppress(ConnectionError):
            sock.sendall(b"1\r\nx\r\n" * 5_000)
            while sock.recv(65536):
                pass
        assert client.get("/v1/topics").status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_that_turns_out_invalid_is_400_and_nothing_else_answers_it(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The operation has begun when the second chunk arrives."""
    with limited() as client, connect(client) as sock:
        lines = f"{method} {PUBLISH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{lines}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\nnonsense\r\n".encode())
        said = b""
        with suppress(ConnectionError):
            while part := sock.recv(65536):
                said += part
        assert said.startswith(b"HTTP/1.1 400")
        assert said.count(b"HTTP/1.1") == 1
        assert client.get("/v1/topics").status_code == 200
    assert not [line for line in caplog.records if line.exc_info]


def test_chunks_are_counted_for_each_request_and_only_those_of_its_body() -> None:
    with limited(max_http_body_chunks=3) as client, connect(client) as sock:
        lines = f"POST {PUBLISH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
        three = f"{lines}Transfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n1\r\nx\r\n1\r\nx\r\n".encode()
        for sent in (three + b"0\r\n\r\n", three + b"0\r\n\r\n"):
            for at in range(len(sent)):  # a chunk that comes in pieces is one
                sock.sendall(sent[at : at + 1])
            assert answer_of(sock)[0] == 200
        sock.sendall(three + b"1\r\nx\r\n")
        status, said = answer_of(sock)
        assert (status, said["error"]["code"]) == (413, "body_too_large")
        assert "max_http_body_chunks=3" in said["error"]["message"]


def test_too_many_records_are_refused_before_any_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    decode = msgspec.json.decode

    def counting(data: bytes, *, type: Any) -> Any:
        decoded.append(type)
        return decode(data, type=type)

    monkeypatch.setattr(msgspec.json, "decode", counting)
    body = b'{"records": [' + b",".join([b'{"value": 1}'] * (MAX_RECORDS + 1)) + b"]}"
    with pytest.raises(Problem) as refused:
        routing.decode(body, Publication)
    assert (refused.value.status, refused.value.field) == (400, "records")
    assert str(MAX_RECORDS) in refused.value.message
    assert Publication not in decoded
    most = b'{"records": [' + b",".join([b'{"value": 1}'] * MAX_RECORDS) + b"]}"
    assert len(routing.decode(most, Publication).records) == MAX_RECORDS


@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_caller_that_reads_only_after_sending_its_whole_body_gets_the_refusal(
    in_chunks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's urllib does this with `Connection: close`: a reset connection would lose the response."""
    monkeypatch.setattr(bodies, "DISCARDED_SECONDS", 60.0)
    with limited(max_http_body_bytes=MEBIBYTE) as client:
        body = bytes(9 * MEBIBYTE)
        request = urllib.request.Request(
            f"{client.base_url.copy_with(path=PUBLISH)}",
            data=(body[at : at + 65536] for at in range(0, len(body), 65536)) if in_chunks else body,
            headers={"Content-Type": "application/octet-stream"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)
        with refused.value as answer:
            assert answer.code == 413
            assert json.loads(answer.read())["error"]["code"] == "body_too_large"


def test_the_discarded_rest_of_a_body_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "DISCARDED_BYTES", MEBIBYTE)
    with limited(max_http_body_bytes=1024) as client, connect(client) as sock:
        lines = head(PUBLISH, 10**12).replace(b"Host: x", b"Host: x\r\nConnection: close")
        sock.sendall(lines)
        assert answer_of(sock)[0] == 413
        with pytest.raises(OSError):
            send_for_ever(sock)


def test_the_largest_allowed_body_is_accepted() -> None:
    with limited(max_http_body_bytes=MEBIBYTE) as client:
        wish = {"name": "large", "configs": {"max.message.bytes": 2 * MEBIBYTE}}
        client.post("/v1/topics", json=wish).raise_for_status()
        value = bytes(MEBIBYTE)
        path = "/v1/topics/large/records"
        kind = {"content-type": "application/octet-stream"}
        assert client.post(path, content=value, headers=kind).status_code == 200
        assert client.post(path, content=value + b"!", headers=kind).status_code == 413
        [found] = client.get("/v1/topics/large/partitions/0/records?encoding=base64").json()["records"]
        assert len(found["value"]) == -(-MEBIBYTE // 3) * 4


def test_a_body_that_never_ends_times_out() -> None:
    with limited(http_body_timeout_ms=100) as client, connect(client) as sock:
        sock.sendall(head(PUBLISH, 100) + b'{"records"')
        status, said = answer_of(sock)
        assert (status, said["error"]["code"]) == (408, "body_too_slow")


def test_a_caller_that_disconnects_within_its_body_does_no_harm() -> None:
    with limited() as client:
        with connect(client) as sock:
            sock.sendall(head(PUBLISH, 100) + b'{"records"')
        assert client.get("/v1/topics").json() == {"topics": []}


def until_held(broker: Broker, wanted: Callable[[int], bool]) -> None:
    budget = broker._thread.service.node.http_memory
    while not wanted(budget.used):
        threading.Event().wait(0.01)


def test_callers_above_the_shared_memory_limit_are_told_to_retry() -> None:
    limits = Limits(max_http_memory_bytes=MEBIBYTE, max_http_body_bytes=2 * MEBIBYTE)
    with Broker(limits=limits) as broker, httpx.Client(base_url=broker.http_url, timeout=30) as client:
        assert client.get("/v1/topics").status_code == 200
        body = b"y" * 200_000
        with connect(client) as holder:
            holder.sendall(head(PUBLISH, MEBIBYTE) + b"x" * (MEBIBYTE - 100))
            until_held(broker, lambda held: held == MEBIBYTE - 100)
            refused = client.post(PUBLISH, content=body, headers=JSON)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_busy")
            assert refused.headers["retry-after"] == "1"
            assert client.get("/v1/topics").status_code == 200
        until_held(broker, lambda held: held == 0)
        assert client.post(PUBLISH, content=body, headers=JSON).status_code == 400


def test_memory_that_is_released_can_be_taken_again() -> None:
    budget = MemoryBudget("limits.max_http_memory_bytes", 10)
    first, second = budget.reserve(), budget.reserve()
    reserve(first, 10)
    with pytest.raises(Problem, match=r"requests under way take 10 bytes; .*max_http_memory_bytes=10"):
        reserve(second, 1)
    first.release()
    reserve(second, 1)
    assert budget.used == 1


# --- answers


def test_a_caller_that_does_not_read_its_response_is_disconnected_and_its_memory_freed() -> None:
    limits = Limits(max_http_memory_bytes=12 * MEBIBYTE, http_idle_timeout_ms=1_000)
    with Broker(limits=limits) as broker:
        url = broker.http_url
        wish = {"name": "large", "configs": {"max.message.bytes": 8 * MEBIBYTE}}
        httpx.post(f"{url}/v1/topics", json=wish).raise_for_status()
        kind = {"content-type": "application/octet-stream"}
        large = bytes(4 * MEBIBYTE)
        httpx.post(f"{url}/v1/topics/large/records", content=large, headers=kind).raise_for_status()
        path = "/v1/topics/large/partitions/0/records?encoding=base64"
        with httpx.Client(base_url=url) as client, connect(client) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            until_held(broker, lambda held: held > 9 * MEBIBYTE)  # as read, and as encoded for the response
            until_held(broker, lambda held: held == 0)
        assert len(httpx.get(url + path).json()["records"][0]["value"]) > 5 * MEBIBYTE


def until_waited_for(broker: Broker, topic: str, wanted: bool) -> None:
    """Returns when a reader waits for the topic's records, or none does."""
    node: Any = broker._thread.service.node
    while bool(node.partitions.get(topic, 0)._pending.fetches) is not wanted:
        threading.Event().wait(0.01)


def test_a_waiting_reader_that_disconnects_is_removed(
    http: httpx.Client, broker: Broker, unique: Unique
) -> None:
    topic = unique("left")
    http.post("/v1/topics", json={"name": topic}).raise_for_status()
    with connect(http) as sock:
        path = f"/v1/topics/{topic}/partitions/0/records?wait_ms=30000"
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        until_waited_for(broker, topic, True)
    until_waited_for(broker, topic, False)


def test_a_stopping_broker_answers_waiting_readers() -> None:
    with Broker() as broker:
        url = broker.http_url
        httpx.post(f"{url}/v1/topics", json={"name": "quiet"}).raise_for_status()
        path = "/v1/topics/quiet/partitions/0/records?wait_ms=30000"
        found: list[httpx.Response] = []
        reader = threading.Thread(target=lambda: found.append(httpx.get(url + path, timeout=30)))
        reader.start()
        until_waited_for(broker, "quiet", True)
    reader.join(60)
    assert (found[0].status_code, found[0].json()["error"]["code"]) == (503, "not_ready")


# --- connections


def test_a_request_that_offers_another_protocol_is_served_with_its_body() -> None:
    """Java's HttpClient offers HTTP/2 with its first request to a server."""
    body = b'{"records": [{"value": 1}]}'
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n\r\n"
    with limited() as client, connect(client) as sock:
        for offset in range(2):
            sock.sendall(head(PUBLISH, len(body)).removesuffix(b"\r\n") + offer + body)
            status, said = answer_of(sock)
            assert (status, said["records"]) == (200, [{"partition": 0, "offset": offset, "error": None}])


def test_a_request_with_100_continue_is_followed_by_others_on_its_connection() -> None:
    body = b'{"records": [{"value": 1}]}'
    with limited() as client, connect(client) as sock:
        for offset in range(2):
            sock.sendall(head(PUBLISH, len(body)).removesuffix(b"\r\n") + b"Expect: 100-continue\r\n\r\n")
            assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(body)
            status, said = answer_of(sock)
            assert (status, said["records"][0]["offset"]) == (200, offset)


def test_a_node_that_is_not_ready_answers_with_an_error(http: httpx.Client, broker: Broker) -> None:
    node: Any = broker._thread.service.node
    node.ready = False
    try:
        refused = http.get("/v1/topics")
    finally:
        node.ready = True
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert refused.headers["retry-after"] == "1"


def test_an_internal_error_has_the_common_error_format(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not supposed to happen")

    with monkeypatch.context() as patched:
        patched.setattr(InnerClient, "ask", fail)
        answer = http.get("/v1/topics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "not supposed" not in answer.text
    assert http.get("/v1/topics").status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/v1/topics/", "/v1/topics/a/b", "/v1/groups//offsets", "/v1/topics/%2F"]
)
def test_an_unknown_path_has_the_common_error_format(http: httpx.Client, path: str) -> None:
    refused = http.get(path)
    assert refused.status_code in (400, 404)
    assert set(refused.json()["error"]) == {"code", "message", "field"}
