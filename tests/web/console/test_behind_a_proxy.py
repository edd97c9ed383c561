"""The console below a prefix, which a reverse proxy removes: no address of the page is absolute."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from playwright.sync_api import expect

from penstock import Broker
from tests.web.console.conftest import PATIENCE_MS, OpenPage

PREFIX = "/tools/penstock"


class Proxy(BaseHTTPRequestHandler):
    """Forwards what is below the prefix, and nothing else."""

    target: str

    def do_GET(self) -> None:
        self._forward(None)

    def do_POST(self) -> None:
        self._forward(self.rfile.read(int(self.headers["content-length"])))

    def _forward(self, body: bytes | None) -> None:
        if not self.path.startswith(PREFIX + "/"):
            self.send_error(404)
            return
        headers = {name: self.headers[name] for name in ("accept", "content-type") if name in self.headers}
        url = self.target + self.path.removeprefix(PREFIX)
        answer = httpx.request(self.command, url, content=body, headers=headers, timeout=PATIENCE_MS / 1000)
        self.send_response(answer.status_code)
        for name in ("content-type", "location", "content-security-policy"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *line: object) -> None:
        """Is no part of what the test says."""


@pytest.fixture
def proxy(broker: Broker) -> Iterator[str]:
    handler = type("ToBroker", (Proxy,), {"target": broker.http_url})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_pages_links_and_changes_work_below_a_prefix(
    proxy: str, open_page: OpenPage, http: httpx.Client, unique
) -> None:
    name = unique("proxied")
    page = open_page()
    page.goto(f"{proxy}/")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url == f"{proxy}/console/"
    page.get_by_role("link", name="Topics", exact=True).click()
    page.get_by_role("button", name="Create a topic").first.click()
    page.get_by_role("dialog").get_by_label("Name").fill(name)
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert page.url == f"{proxy}/console/topics/{name}"
    page.reload()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert http.get(f"/v1/topics/{name}").status_code == 200
