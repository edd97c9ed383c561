"""Ports that tests may listen on, and find free again after a restart."""

import fcntl
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

PORTS = range(12_000, 30_000)
"""Below the ports that systems give to outgoing connections: while a node is down, no client may get its port."""

_taken: dict[int, IO[bytes]] = {}
"""By port, a file that this process has locked: tests run in several processes, and each takes ports of its own."""
_random = random.Random()


def free_port() -> int:
    """A port without a listener, neither TCP nor UDP, that no test has been given before."""
    folder = Path(tempfile.gettempdir(), "penstock-test-ports")
    folder.mkdir(exist_ok=True)
    while True:
        port = _random.choice(PORTS)
        if port in _taken:
            continue
        lock = (folder / str(port)).open("wb")
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp, suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            tcp.bind(("127.0.0.1", port))
            udp.bind(("127.0.0.1", port))
            _taken[port] = lock
            return port
        lock.close()


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]
