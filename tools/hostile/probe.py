"""Watches nodes from a process of its own: how long their event loops keep a small request waiting, and how much memory
they take. The process that attacks is busy and would measure itself.

Every PROBE_SECONDS a thread sends ApiVersions on a connection of its own and waits for the response; a healthy node
answers in less than a millisecond. On a busy machine a wait says little about the node: it may have been without a
core. So the probe also reads how long the thread of the node's event loop was running meanwhile.
"""

import multiprocessing
import signal
import socket
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import psutil

from penstock.kafka.wire import ApiKey, encode_request, join
from penstock.kafka.wire.messages.api_versions import ApiVersionsRequest
from tools.hostile.setups import OPEN_ACCESS, Access

PROBE_SECONDS = 0.01
SAMPLE_SECONDS = 0.02
RECONNECT_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
REQUEST = join(encode_request(ApiKey.API_VERSIONS, 0, 1, "probe", ApiVersionsRequest()))


class Watched(NamedTuple):
    """One node: its Kafka port, its process, and how clients reach it."""

    port: int
    pid: int
    access: Access = OPEN_ACCESS


class Observed(NamedTuple):
    """The worst of all watched nodes since `begin`."""

    stall_seconds: float
    """The longest that a request waited for its answer."""
    busy_seconds: float
    """The longest that the event loop's thread ran while a request waited; 0 where the system does not tell."""
    memory_bytes: int
    answers: int


class Probe:
    """The process, as the harness sees it."""

    def __init__(self, watched: list[Watched]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, watched), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()  # it is connected

    def __enter__(self) -> "Probe":
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self._process.join(PATIENCE_SECONDS)

    def begin(self) -> None:
        """Forgets what it has observed so far."""
        self._pipe.send("begin")
        self._pipe.recv()

    def observed(self) -> Observed:
        self._pipe.send("observed")
        observed: Observed = self._pipe.recv()
        return observed


def _serve(pipe: Connection, watched: list[Watched]) -> None:
    """The process: answers until the harness closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness gets it, too, and ends this process
    probes = [_LoopProbe(one) for one in watched]
    memory = _MemoryProbe([one.pid for one in watched])
    for probe in probes:
        probe.first_answer.wait(PATIENCE_SECONDS)
    pipe.send("ready")
    try:
        while True:
            if pipe.recv() == "begin":
                for probe in probes:
                    probe.forget()
                memory.forget()
                pipe.send("begun")
            else:
                stall = max(probe.worst_seconds() for probe in probes)
                busy = max(probe.busiest_seconds for probe in probes)
                answers = sum(probe.answers for probe in probes)
                pipe.send(Observed(stall, busy, memory.peak_bytes, answers))
    except (EOFError, OSError):
        return


class _LoopProbe:
    """Asks one node again and again."""

    def __init__(self, watched: Watched) -> None:
        self._port = watched.port
        self._access = watched.access
        self._context = watched.access.context
        self._loop_thread = Path(f"/proc/{watched.pid}/task/{watched.pid}/schedstat")
        """`penstock serve` has its event loop in the main thread."""
        self._socket: socket.socket | None = None
        self._worst = 0.0
        self.busiest_seconds = 0.0
        self._asked_at = 0.0
        """When the request was sent that is not answered; 0 if there is none."""
        self.answers = 0
        self.first_answer = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def forget(self) -> None:
        self._worst = self.busiest_seconds = 0.0
        self.answers = 0

    def worst_seconds(self) -> float:
        """With the request that still waits."""
        asked_at = self._asked_at
        return max(self._worst, time.monotonic() - asked_at if asked_at else 0.0)

    def _run(self) -> None:
        while True:
            begin, ran_before = time.monotonic(), self._ran_seconds()
            self._asked_at = self._asked_at or begin
            try:
                self._ask()
            except OSError:
                # The node has closed the connection, or is gone: the request waits until another one is answered.
                self._socket = None
                time.sleep(RECONNECT_SECONDS)
                continue
            now = time.monotonic()
            self._worst = max(self._worst, now - self._asked_at)
            self.busiest_seconds = max(self.busiest_seconds, self._ran_seconds() - ran_before)
            self._asked_at = 0.0
            self.answers += 1
            self.first_answer.set()
            time.sleep(max(0.0, begin + PROBE_SECONDS - now))

    def _ran_seconds(self) -> float:
        """How long the event loop's thread has run in its life; the first field of Linux' schedstat, in nanoseconds."""
        try:
            return int(self._loop_thread.read_bytes().split()[0]) / 1e9
        except OSError:
            return 0.0

    def _ask(self) -> None:
        if self._socket is None:
            self._socket = self._connected()
            for request in self._access.opening:
                self._call(request)
        self._call(REQUEST)

    def _connected(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), PATIENCE_SECONDS)
        return made if self._context is None else self._context.wrap_socket(made, server_hostname="localhost")

    def _call(self, request: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(request)
        left = int.from_bytes(self._receive(4), "big")
        self._receive(left)

    def _receive(self, count: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("closed by the node")
            data += part
        return data


class _MemoryProbe:
    """Samples the memory of processes."""

    def __init__(self, pids: list[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self.peak_bytes = 0
        threading.Thread(target=self._run, daemon=True).start()

    def forget(self) -> None:
        self.peak_bytes = 0

    def _run(self) -> None:
        while True:
            for process in self._processes:
                try:
                    self.peak_bytes = max(self.peak_bytes, process.memory_info().rss)
                except psutil.Error:
                    continue  # the process has ended: the harness notices it
            time.sleep(SAMPLE_SECONDS)
