"""The HTTP port on a real socket, on an event loop of its host."""

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from penstock.config import Limits, NodeConfig
from penstock.node import Node
from penstock.web import WebPort, http_protocol
from penstock.web.app import WebApp
from penstock.web.exchanges import EXCHANGE, write_json

TWO_CONNECTIONS = Limits(max_http_connections=2)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def idle_node(limits: Limits | None = None) -> Node:
    """A node that has not started, and so is not ready."""
    return Node(NodeConfig(memory=True, limits=limits or Limits()))


@asynccontextmanager
async def started_node() -> AsyncIterator[Node]:
    node = idle_node()
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    number = listener.getsockname()[1]
    web = WebPort(listener, node)
    await web.start()
    try:
        yield number
    finally:
        await web.stop()


async def ask(
    number: int, path: str, method: str = "GET", extra: str = ""
) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, body


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server closed the connection without a response."""
    try:
        return await asyncio.wait_for(reader.read(), 30) == b""
    except ConnectionResetError:
        return True


def test_health_is_ok_even_if_the_node_is_not_ready() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            status, _, body = await ask(number, "/health")
            assert (status, json.loads(body)) == (200, {"status": "alive"})

    run(scenario)


def test_ready_follows_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            status, _, body = await ask(number, "/ready")
            assert status == 503
            assert json.loads(body)["ready"] is False
        async with started_node() as node, serving(node) as number:
            monkeypatch.setattr(node.partitions, "offline_count", lambda: 2)
            status, _, body = await ask(number, "/ready")
            assert status == 200
            facts = json.loads(body)
            assert (facts["node_id"], facts["offline_partitions"]) == (1, 2)

    run(scenario)


def test_metrics_come_as_prometheus_text() -> None:
    async def scenario() -> None:
        async with started_node() as node, serving(node) as number:
            status, headers, body = await ask(number, "/metrics")
            assert status == 200
            assert headers["content-type"].startswith("text/plain; version=0.0.4")
            assert b"penstock_ready 1.0" in body

    run(scenario)


def test_an_unknown_path_is_answered_with_the_known_ones_and_the_description_of_all() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            for path in ("/nowhere", "/v1/nowhere"):
                status, headers, body = await ask(number, path)
                assert status == 404
                assert headers["content-type"] == "application/json"
                error = json.loads(body)["error"]
                assert (error["code"], error["field"]) == ("not_found", None)
                for known in ("/health", "/ready", "/metrics", "/v1", "/v1/openapi.json"):
                    assert known in error["message"]

    run(scenario)


async def raw_answer(number: int, sent: bytes) -> bytes:
    """Everything that comes back until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        (("Content-Length: 5", "Transfer-Encoding: chunked"), ("Content-Length", "Transfer-Encoding")),
        (("Transfer-Encoding: chunked", "Content-Length: 5"), ("Content-Length", "Transfer-Encoding")),
        (("Content-Length: 5", "Content-Length: 0"), ("Duplicate Content-Length",)),
        (("Transfer-Encoding: chunked, gzip",), ("Transfer-Encoding",)),
        (("Transfer-Encoding : chunked",), ("header",)),
        (("Host: other",), ("2 Host headers",)),
    ],
)
def test_a_request_that_two_programs_may_read_differently_is_refused_and_ends_its_connection(
    lengths: tuple[str, ...], reason: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            lines = "\r\n".join(("GET /health HTTP/1.1", "Host: x", *lengths))
            next_one = "GET /ready HTTP/1.1\r\nHost: x\r\n\r\n"
            answer = await raw_answer(number, f"{lines}\r\n\r\n0\r\n\r\n{next_one}".encode())
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert answer.count(b"HTTP/1.1") == 1
            error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
            assert error["code"] == "invalid_request"
            for word in reason:
                assert word in error["message"]

    run(scenario)


def test_a_request_without_a_host_is_refused() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            assert b"0 Host headers" in await raw_answer(number, b"GET /health HTTP/1.1\r\n\r\n")

    run(scenario)


def test_requests_in_advance_are_answered_in_their_order_and_an_invalid_one_after_them() -> None:
    """Of 1,000 requests some wait for those before them unparsed."""

    async def scenario() -> None:
        async with serving(idle_node()) as number:
            both = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /ready HTTP/1.1\r\nHost: x\r\n\r\n"
            answer = await raw_answer(number, both * 500 + b"not HTTP\r\n\r\n" + both)
            statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
            assert statuses == [b"200", b"503"] * 500 + [b"400"]

    run(scenario)


def test_requests_in_advance_wait_in_the_socket_also_if_they_come_in_small_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each request waits for its caller to disconnect, as a long poll does, until the test lets it go on."""
    allowed = asyncio.Semaphore(0)
    waiting: list[int] = []

    async def app(self: WebApp, scope: Any, receive: Any, send: Any) -> None:
        protocol = scope[EXCHANGE].on_response.__self__
        leaving = asyncio.ensure_future(receive())
        await allowed.acquire()
        waiting.append(len(protocol.pipeline) + len(protocol._unparsed))
        write_json(scope, 200, b"{}")
        await leaving

    monkeypatch.setattr(WebApp, "__call__", app)

    async def scenario() -> None:
        async with serving(idle_node()) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
            piece = request * (http_protocol.SLICE_BYTES // len(request))
            writer.write(piece)
            for _ in range(50):
                allowed.release()
                await asyncio.wait_for(reader.readuntil(b"{}"), 30)
                writer.write(piece)
                await asyncio.sleep(0.001)
            writer.transport.abort()
            for _ in piece:
                allowed.release()  # so that nothing waits for the stop
        assert max(waiting) <= len(piece) // len(request)

    run(scenario)


def handshake(path: str) -> bytes:
    lines = (
        f"GET {path} HTTP/1.1",
        "Host: x",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize("padding", [0, http_protocol.SLICE_BYTES])
def test_bytes_behind_the_handshake_of_a_websocket_are_neither_frames_nor_requests(padding: int) -> None:
    """With the padding, the handshake ends where a slice ends."""

    async def scenario() -> None:
        async with started_node() as node, serving(node) as number:
            begun = handshake("/v1/push") + b"\r\nX: "
            whole = begun.ljust(padding - 4, b"a") + b"\r\n\r\n"
            answer = await raw_answer(number, whole + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"behind the handshake" in answer
            assert answer.count(b"HTTP/1.1") == 1
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(whole)
            assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 101 ")
            writer.close()

    run(scenario)


@pytest.mark.parametrize("count", [http_protocol.MAX_HEADERS, http_protocol.MAX_HEADERS + 1])
def test_headers_are_counted(count: int) -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            lines = ["GET /health HTTP/1.1", "Host: x", "Connection: close", *["a:"] * (count - 2)]
            answer = await raw_answer(number, "\r\n".join([*lines, "", ""]).encode())
            assert answer.startswith(b"HTTP/1.1 200 ") is (count <= http_protocol.MAX_HEADERS)
            assert (b"more than 200 headers" in answer) is (count > http_protocol.MAX_HEADERS)

    run(scenario)


@pytest.mark.parametrize("path", ["/v1/nowhere", "/health"])
def test_a_refusal_without_100_continue_ends_the_connection(path: str) -> None:
    """The client may take the refusal for a reason to leave the body out: the next bytes would be taken for it."""

    async def scenario() -> None:
        async with serving(idle_node()) as number:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
            answer = await raw_answer(number, head.encode())
            assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))
            assert b"connection: close\r\n" in answer

    run(scenario)


def test_trailers_are_not_headers() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            lines = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
            page = await raw_answer(number, f"{lines}0\r\nAccept: text/html\r\nX: y\r\n\r\n".encode())
            assert page.startswith(b"HTTP/1.1 200 "), "with Accept: text/html it would lead to the console"

    run(scenario)


@pytest.mark.parametrize(
    "begun",
    [
        "GET /health HTTP/1.1\r\nX: ",
        "GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        "GET /v1/topics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["header", "chunk extension", "trailer"],
)
def test_nothing_between_bodies_is_endless(begun: str) -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(begun.encode())
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    writer.write(b"a" * http_protocol.MAX_HEADER_BYTES)
                    await writer.drain()
                await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert (await ask(number, "/health"))[0] == 200

    run(scenario)


def test_a_response_to_head_has_headers_and_no_body() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            status, headers, body = await ask(number, "/health", method="HEAD")
            assert (status, body) == (200, b"")
            assert int(headers["content-length"]) > 0

    run(scenario)


def test_a_wrong_method_is_refused_as_json() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            status, headers, body = await ask(number, "/metrics", method="DELETE")
            assert status == 405
            assert "GET" in headers["allow"]
            assert json.loads(body)["error"]["code"] == "method_not_allowed"

    run(scenario)


def test_endless_headers_are_refused_and_other_callers_are_served() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(b"GET /health HTTP/1.1\r\nX: " + b"a" * 2 * http_protocol.MAX_HEADER_BYTES)
            assert b" 400 " in await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert (await ask(number, "/health"))[0] == 200

    run(scenario)


def test_a_connection_that_never_completes_a_request_is_closed() -> None:
    impatient = Limits(http_idle_timeout_ms=100)

    async def scenario() -> None:
        async with serving(idle_node(impatient)) as number:
            silent, _ = await asyncio.open_connection("127.0.0.1", number)
            dripping, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(b"GET /health HT")
            assert await asyncio.wait_for(silent.read(), 30) == b""
            assert await asyncio.wait_for(dripping.read(), 30) == b""
            writer.close()

    run(scenario)


LARGE_BYTES = 16 * 1024 * 1024
"""More than the kernel's buffers hold."""


async def answer_at_length(self: WebApp, scope: Any, receive: Any, send: Any) -> None:
    """An application whose response is complete when little of it has left."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE_BYTES)]}
    )
    await send({"type": "http.response.body", "body": bytes(LARGE_BYTES)})


async def unread_response(number: int, headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose client has read the beginning of a response that is complete."""
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(f"GET /health HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode())
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    return reader, writer


@pytest.mark.parametrize("header", ["Connection: close", "Connection: keep-alive"])
def test_a_client_that_does_not_read_the_rest_of_a_complete_response_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    connections: set[Any] = set()

    async def app(self: WebApp, scope: Any, receive: Any, send: Any) -> None:
        nonlocal connections
        connections = scope[EXCHANGE].on_response.__self__.connections
        await answer_at_length(self, scope, receive, send)

    monkeypatch.setattr(WebApp, "__call__", app)

    async def scenario() -> None:
        async with serving(idle_node(Limits(http_idle_timeout_ms=200))) as number:
            reader, writer = await unread_response(number, header)
            async with asyncio.timeout(30):
                while connections:
                    await asyncio.sleep(0.01)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(LARGE_BYTES)
            writer.close()

    run(scenario)


def test_a_body_that_turns_out_invalid_does_not_cut_a_response_that_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WebApp, "__call__", answer_at_length)

    async def scenario() -> None:
        async with serving(idle_node()) as number:
            reader, writer = await unread_response(number, "Transfer-Encoding: chunked")
            writer.write(b"nonsense\r\n")
            assert len(await asyncio.wait_for(reader.read(), 30)) == LARGE_BYTES
            writer.close()

    run(scenario)


def test_a_connection_beyond_the_limit_takes_the_place_of_the_oldest_idle_one() -> None:
    async def scenario() -> None:
        async with serving(idle_node(TWO_CONNECTIONS)) as number:
            first, second = [await asyncio.open_connection("127.0.0.1", number) for _ in range(2)]
            assert (await ask(number, "/health"))[0] == 200
            assert await ended(first[0])
            second[1].write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(second[0].read(), 30)
            first[1].close()
            second[1].close()

    run(scenario)


def test_a_connection_beyond_the_limit_is_closed_when_all_others_are_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol.BoundedProtocol, "answering", True)

    async def scenario() -> None:
        async with serving(idle_node(TWO_CONNECTIONS)) as number:
            held = [await asyncio.open_connection("127.0.0.1", number) for _ in range(2)]
            refused, _ = await asyncio.open_connection("127.0.0.1", number)
            assert await ended(refused)
            held[0][1].write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(held[0][0].read(), 30)
            held[1][1].close()

    run(scenario)


def test_signal_handlers_of_the_host_are_kept() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def scenario() -> None:
        during_before = signal.getsignal(signal.SIGINT)
        async with serving(idle_node()):
            assert signal.getsignal(signal.SIGTERM) == before[0]
            assert signal.getsignal(signal.SIGINT) == during_before

    run(scenario)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_stop_closes_the_port_also_with_an_idle_caller() -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            assert (await ask(number, "/health"))[0] == 200
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", number)

    run(scenario)


def test_requests_that_are_not_http_share_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(idle_node()) as number:
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", number)
                writer.write(b"not HTTP\r\n\r\n")
                assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400")
                writer.close()

    run(scenario)
    assert 1 <= len([line for line in caplog.messages if "Invalid HTTP" in line]) < 10
