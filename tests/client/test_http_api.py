"""Which requests go to the next node when one fails."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from penstock.client import Unreachable
from penstock.client.http_api import HttpApi
from penstock.client.http_nodes import HttpNodes
from penstock.client.security_arguments import client_security
from tests.ports import free_ports


class Node:
    """Answers every request with this status and error code; with status 0 it closes the connection."""

    def __init__(self, status: int, code: str = "") -> None:
        self.status = status
        self.code = code
        self.asked = 0
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[None]:
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                node.asked += 1
                self.rfile.read(int(self.headers["content-length"]))
                if node.status == 0:
                    self.connection.close()
                    return
                body = json.dumps({"error": {"code": node.code, "message": "because"}} if node.code else {})
                self.send_response(node.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST

            def log_message(self, *arguments: object) -> None:
                """Nothing on stderr."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def api_of(*urls: str) -> HttpApi:
    return HttpApi(HttpNodes(lambda: list(urls), client_security({}, {}), ()))


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, ""), (500, "internal"), (502, ""), (503, "outcome_unknown"), (503, "not_controller"), (503, "")],
)
def test_a_request_that_may_have_been_carried_out_is_not_sent_to_another_node(status: int, code: str) -> None:
    first, second = Node(status, code), Node(200)
    with first.serving(), second.serving():
        with pytest.raises(Unreachable, match="may have been carried out") as raised:
            api_of(first.url, second.url).ask("POST", "/v1/queues/q/dead-letters/send-back", {"all": True})
        assert raised.value.may_be_done
    assert (first.asked, second.asked) == (1, 0)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [0, 500])
def test_a_request_that_may_be_done_twice_is(status: int, method: str) -> None:
    first, second = Node(status), Node(200)
    with first.serving(), second.serving():
        asked = api_of(first.url, second.url).ask(method, "/v1/queues", {}, repeatable=method != "GET")
    assert (asked, first.asked, second.asked) == ({}, 1, 1)


def test_a_request_that_no_node_has_received_goes_to_the_next() -> None:
    [closed] = free_ports(1)
    not_ready, ready = Node(503, "not_ready"), Node(200)
    with not_ready.serving(), ready.serving():
        urls = f"http://127.0.0.1:{closed}", not_ready.url, ready.url
        assert api_of(*urls).ask("POST", "/v1/queues/q/purge", {}) == {}
        with pytest.raises(Unreachable) as raised:
            api_of(*urls[:2]).ask("POST", "/v1/queues/q/purge", {})
    assert not raised.value.may_be_done
    assert (not_ready.asked, ready.asked) == (2, 1)


def test_a_later_node_that_is_not_ready_does_not_hide_that_the_request_may_have_been_carried_out() -> None:
    first, second = Node(0), Node(503, "not_ready")
    with first.serving(), second.serving():
        with pytest.raises(Unreachable, match="may have been carried out") as raised:
            api_of(first.url, second.url).ask("POST", "/v1/queues/q/purge", {}, repeatable=True)
        assert raised.value.may_be_done
    assert (first.asked, second.asked) == (1, 1)
