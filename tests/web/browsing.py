"""A client of /v1/browse."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

PATIENCE_SECONDS = 60


class Scan:
    """One scan, and all that it was told."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.messages: list[dict[str, Any]] = []
        self.progress: dict[str, Any] = {}

    def send(self, **frame: Any) -> None:
        self._socket.send(json.dumps(frame))

    def next(self) -> dict[str, Any]:
        frame = json.loads(self._socket.recv(PATIENCE_SECONDS))
        if frame["type"] == "messages":
            self.messages += frame["messages"]
        elif frame["type"] in ("progress", "end"):
            self.progress = frame
        return frame

    def until(self, kind: str) -> dict[str, Any]:
        while (frame := self.next())["type"] != kind:
            pass
        return frame

    def has(self, count: int) -> list[Any]:
        while len(self.messages) < count:
            self.next()
        return self.values

    @property
    def values(self) -> list[Any]:
        return [one["value"] for one in self.messages]


@contextmanager
def scan(url: str, topic: str, protocols: list[Any] | None = None, **request: Any) -> Iterator[Scan]:
    with connect(
        url.replace("http", "ws", 1) + "/v1/browse", subprotocols=protocols, max_size=None
    ) as socket:
        one = Scan(socket)
        one.send(type="browse", topic=topic, **request)
        yield one
