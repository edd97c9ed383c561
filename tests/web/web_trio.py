"""Three nodes in this process, each with an HTTP port."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from penstock.web import WebPort
from tests.kafka.trio import Trio


class WebTrio(Trio):
    """A Trio that can be called over HTTP."""

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        super().__init__(settings=settings)
        self._ports: dict[int, WebPort] = {}
        self._urls: dict[int, str] = {}
        for node_id in self.running:
            self.run(self._open(node_id))

    async def _open(self, node_id: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self._urls[node_id] = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._ports[node_id] = WebPort(listener, self.node(node_id))
        await self._ports[node_id].start()

    def close(self) -> None:
        for web in getattr(self, "_ports", {}).values():
            self.run(web.stop())
        super().close()

    def url(self, node_id: int) -> str:
        return self._urls[node_id]

    @contextmanager
    def caller(self, node_id: int) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=self._urls[node_id], timeout=30) as client:
            yield client
