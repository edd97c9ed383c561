"""How long a broker takes to start: from the process to the first Metadata answer that names a broker.

The question is packed by hand, because a client library's own start and its patience between attempts would be
most of what is measured.
"""

import socket
import struct
import subprocess
import time

TIMEOUT_S = 60.0
RETRY_S = 0.005
METADATA_KEY, METADATA_VERSION = 3, 1
ALL_TOPICS = -1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def seconds_until_serving(process: "subprocess.Popen[bytes]", port: int) -> float:
    """To be called right after the process was started."""
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < TIMEOUT_S:
        if process.poll() is not None:
            raise TimeoutError(f"it ended with code {process.returncode}")
        if knows_a_broker(port):
            return elapsed
        time.sleep(RETRY_S)  # no event reports that a port opens
    raise TimeoutError(f"no answer within {TIMEOUT_S:.0f} s")


def knows_a_broker(port: int) -> bool:
    """Whether a Metadata request is answered with at least one broker."""
    header = struct.pack(">hhih", METADATA_KEY, METADATA_VERSION, 1, -1)  # correlation id 1, no client id
    request = header + struct.pack(">i", ALL_TOPICS)
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(12)  # length, correlation id, number of brokers
            return len(answer) == 12 and struct.unpack(">iii", answer)[2] > 0
    except OSError:
        return False
