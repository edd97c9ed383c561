"""One record published by HTTP, one request at a time, beside request/reply of NATS: the server's CPU and the time.

Both servers keep their data in memory, and each has one connection. The requests are written to plain sockets, so that
the time of a client library is not measured. Publishing by HTTP is answered when the record is stored and committed.
Two figures of NATS stand beside it:

    request/reply    the server passes the request to a program that answers, and passes the answer back; nothing is
                     stored. The CPU is the server's alone, without that of the program
    JetStream        a message is published to a stream in memory, and the server confirms that it is stored

The CPU is that of all threads of the server, over the number of requests; the median of several turns, and the systems
take turns.

    python benchmarks/http_publish.py [--json]
    python benchmarks/before_after.py REVISION --only http     the same at an earlier revision, in turns
"""

import argparse
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from cpu_time import cpu_ns
from penstock_launcher import Penstock

from penstock.cli.bench.nats_server import own_nats

TURNS = 5
REQUESTS = 1_000
TIMEOUT_S = 60
VALUE = b"x" * 100
JSON_BODY = b'{"records":[{"key":"customer-7","value":"' + VALUE + b'"}]}'
HTTP, HTTP_BINARY, NATS, JETSTREAM = (
    "HTTP publish, JSON",
    "HTTP publish, bytes",
    "NATS request/reply",
    "JetStream publish",
)
SUBJECT, STORED, INBOX = b"asked", b"stored", b"inbox"


class Load:
    """One kind of request, on a connection of its own."""

    def __init__(self, pid: int, ask: Callable[[], None]) -> None:
        self.pid = pid
        self.ask = ask
        self.cpu_us: list[float] = []
        self.p50_us: list[float] = []

    def turn(self, *, counts: bool) -> None:
        times = []
        before = cpu_ns(self.pid)
        for _ in range(REQUESTS):
            began = time.perf_counter_ns()
            self.ask()
            times.append(time.perf_counter_ns() - began)
        used = cpu_ns(self.pid) - before
        if counts:
            self.cpu_us.append(used / REQUESTS / 1000)
            self.p50_us.append(median(times) / 1000)


# --- HTTP


def http_ask(port: int, content_type: bytes, body: bytes) -> Callable[[], None]:
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = (
        b"POST /v1/topics/orders/records HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        b"Content-Type: %s\r\nContent-Length: %d\r\n\r\n" % (port, content_type, len(body))
    )
    request, answers = head + body, connection.makefile("rb")

    def ask() -> None:
        connection.sendall(request)
        status, length = answers.readline(), 0
        while (line := answers.readline()) != b"\r\n":
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        answer = answers.read(length)
        assert status.startswith(b"HTTP/1.1 200"), (status, answer)

    return ask


@contextmanager
def http_loads() -> Iterator[dict[str, Load]]:
    with tempfile.TemporaryDirectory() as folder:
        node = Penstock(Path(folder), "--memory")
        node.start()
        try:
            json_ask = http_ask(node.http_port, b"application/json", JSON_BODY)
            binary_ask = http_ask(node.http_port, b"application/octet-stream", VALUE)
            yield {HTTP: Load(node.pid, json_ask), HTTP_BINARY: Load(node.pid, binary_ask)}
        finally:
            node.stop()


# --- NATS


class NatsConnection:
    """Just enough of NATS' protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol"""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._socket = socket.create_connection((address.hostname, address.port or 4222), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()  # INFO
        self._socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
        assert self._lines.readline() == b"PONG\r\n"

    def subscribe(self, subject: bytes) -> None:
        self._socket.sendall(b"SUB %s 1\r\nPING\r\n" % subject)
        assert self._lines.readline() == b"PONG\r\n"

    def publish(self, subject: bytes, data: bytes, reply: bytes = b"") -> None:
        self._socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data))

    def next(self) -> tuple[bytes, bytes] | None:
        """The reply subject and the data of the next message; None at the end of the connection."""
        while line := self._lines.readline():
            if line.startswith(b"MSG "):
                words = line.split()
                data = self._lines.read(int(words[-1]) + 2)[:-2]
                return (words[3] if len(words) == 5 else b""), data
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
        return None

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def answer_all(responder: NatsConnection) -> None:
    while (asked := responder.next()) is not None:
        responder.publish(asked[0], b"ok")


def nats_ask(asker: NatsConnection, subject: bytes) -> Callable[[], None]:
    def ask() -> None:
        asker.publish(subject, VALUE, INBOX)
        assert asker.next() is not None

    return ask


@contextmanager
def nats_loads() -> Iterator[dict[str, Load]]:
    with own_nats() as server, ExitStack() as stack:
        assert server.pid is not None
        asker, responder = (stack.enter_context(closing(NatsConnection(server.bootstrap))) for _ in range(2))
        asker.subscribe(INBOX)
        responder.subscribe(SUBJECT)
        threading.Thread(target=answer_all, args=[responder], daemon=True).start()
        stream = {"name": "S", "subjects": [STORED.decode()], "storage": "memory", "retention": "limits"}
        asker.publish(b"$JS.API.STREAM.CREATE.S", json.dumps(stream).encode(), INBOX)
        made = asker.next()
        assert made is not None, "NATS has closed the connection"
        assert b"error" not in made[1], made[1]
        yield {
            NATS: Load(server.pid, nats_ask(asker, SUBJECT)),
            JETSTREAM: Load(server.pid, nats_ask(asker, STORED)),
        }


def measure(turns: int, *, with_nats: bool) -> dict[str, Load]:
    with ExitStack() as stack:
        loads = stack.enter_context(http_loads())
        if with_nats:
            loads |= stack.enter_context(nats_loads())
        for turn in range(turns + 1):
            for load in loads.values():
                load.turn(counts=turn > 0)  # the first turn is for code that is loaded on demand
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="the broker's figures alone")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    loads = measure(options.turns, with_nats=not options.json)
    if options.json:
        print(json.dumps({f"{name}, us of CPU": median(load.cpu_us) for name, load in loads.items()}))
        return
    beside = loads[NATS]
    print(f"{'request':<22} {'us of CPU':>10} {'to NATS':>8} {'p50 us':>8} {'to NATS':>8}")
    for name, load in loads.items():
        cpu, p50 = median(load.cpu_us), median(load.p50_us)
        ratios = cpu / median(beside.cpu_us), p50 / median(beside.p50_us)
        print(f"{name:<22} {cpu:>10.1f} {ratios[0]:>8.2f} {p50:>8.1f} {ratios[1]:>8.2f}")


if __name__ == "__main__":
    main()
