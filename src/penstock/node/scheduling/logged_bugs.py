"""Guards one round of work that a task repeats. An exception that ends such a task is noticed by nobody: the task is
kept until the node stops, and asyncio reports the exception only after that."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("penstock.node")


@contextmanager
def logged_bugs(work: str) -> Iterator[None]:
    """Logs an exception of the block with its traceback, and goes on behind the block. The simulator takes such a line
    for a bug, as it does an exception that nobody catches."""
    try:
        yield
    except Exception:
        log.exception("a bug in %s; the rest goes on", work)
