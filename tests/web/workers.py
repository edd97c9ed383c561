"""Workers of queues over WebSocket, for tests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from penstock.batch import iter_headers, read_records

PATIENCE_SECONDS = 60.0
LENGTH = Struct(">I")


class Worker:
    """A connection to /v1/work that has sent its first frame."""

    def __init__(self, socket: ClientConnection, wish: dict[str, Any]) -> None:
        self._socket = socket
        self._number = 0
        self._kept: list[dict[str, Any]] = []
        self.working: dict[str, Any] = {}
        """The last frame about partitions."""
        self.socket = socket
        self.say(type="work", **wish)

    def say(self, **frame: Any) -> None:
        self._socket.send(json.dumps(frame))

    def hear(self, kind: str = "", *, within: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next frame, of this kind if one is named: others are kept until they are asked for."""
        for at, frame in enumerate(self._kept):
            if kind in ("", frame["type"]):
                return self._kept.pop(at)
        while True:
            frame = self._next(within)
            if frame["type"] == "working":
                self.working = frame
            if kind in ("", frame["type"]):
                return frame
            self._kept.append(frame)

    def _next(self, within: float) -> dict[str, Any]:
        said = self._socket.recv(within)
        if isinstance(said, str):
            found: dict[str, Any] = json.loads(said)
            return found
        size = LENGTH.unpack_from(said)[0]
        head: dict[str, Any] = json.loads(said[LENGTH.size : LENGTH.size + size])
        head["records"] = said[LENGTH.size + size :]
        return head

    def unheard(self, kind: str) -> int:
        """Frames of this kind that arrived while the test waited for others."""
        return sum(frame["type"] == kind for frame in self._kept)

    def jobs(self, count: int) -> list[dict[str, Any]]:
        """So many jobs, or a few more."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.hear("jobs")["jobs"]
        return found

    def settle(
        self, jobs: list[dict[str, Any]], how: str = "accept", **more: Any
    ) -> dict[int, dict[str, Any]]:
        """Settles each job so, and returns the responses when all are there."""
        places: dict[tuple[str, int], list[int]] = {}
        for job in jobs:
            places.setdefault((job["topic"], job["partition"]), []).append(job["offset"])
        for (topic, partition), offsets in places.items():
            self._number += 1
            ranges = [[offset, offset] for offset in offsets]
            say = {"topic": topic, "partition": partition, how: ranges, **more}
            self.say(type="settle", number=self._number, **say)
        answers = [self.hear("settled") for _ in places]
        return {answer["number"]: answer for answer in answers}

    def ending(self) -> tuple[dict[str, Any], int]:
        """The last frame, and the close code."""
        last: dict[str, Any] = {}
        try:
            while True:
                last = self.hear()
        except ConnectionClosed as closed:
            return last, closed.rcvd.code if closed.rcvd is not None else 0


@contextmanager
def working(http_url: str, queue: str, *topics: str, **more: Any) -> Iterator[Worker]:
    """A worker as long as the block lasts, or until it closes its socket itself."""
    url = http_url.replace("http://", "ws://") + "/v1/work"
    with connect(url, max_size=None, open_timeout=PATIENCE_SECONDS) as socket:
        yield Worker(socket, {"queue": queue, "topics": list(topics), **more})


def opened(frame: dict[str, Any]) -> dict[int, Any]:
    """The values of a binary frame's records that are this worker's, by offset."""
    data = frame["records"]
    records = {
        record.offset: json.loads(record.value or b"null")
        for position, _ in iter_headers(data)
        for record in read_records(data, position)
    }
    return {at: records[at] for first, last, _ in frame["acquired"] for at in range(first, last + 1)}
