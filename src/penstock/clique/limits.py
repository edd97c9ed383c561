"""A limit on everything that other processes can make a clique's worker hold or do: its value and the reason for it.

A broker has limits of its own (docs/configuration.md); these are the worker's. Those that an application may want to
change are arguments of `Clique` and have these defaults.
"""

from typing import Final

from penstock.clique.errors import OverLimit

KEY_BYTES_MAX: Final = 32 * 1024
"""A key is hashed for every message and kept as long as one of its messages waits. Kafka's clients send far shorter
ones."""
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""One message, encoded. NATS takes 1 MiB by default, Penstock what the topic allows."""
STREAMS_MAX: Final = 256
"""Streams that one worker handles: each is a subscription, or a topic of the clique's queue."""
IN_FLIGHT_MAX: Final = 10_000
"""Messages that a worker holds at once: running, waiting for an earlier one of their key, or being forwarded."""
BUFFERED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of these messages."""
CONCURRENCY_MAX: Final = 10_000
REQUESTS_MAX: Final = 10_000
"""Requests of one clique that wait for their response."""
CHAIN_DEPTH_MAX: Final = 8
"""Requests from inside a responder to a responder, and so on. Deeper ones are an endless recursion."""
REMEMBERED_MAX: Final = 100_000
"""Messages that were handled, and whose acknowledgement may have been lost, are remembered by id so that they do not
run twice. An id takes about 150 bytes."""
PUBLISHERS_MAX: Final = 100_000
"""Publishers, by slot, whose order a worker keeps (ordering.py)."""


def check_size(what: str, size: int, most: int, name: str) -> None:
    """Raises OverLimit, which names the limit."""
    if size > most:
        raise OverLimit(f"{what} has {size} bytes: the limit is {most} ({name})")
