"""Captures the log lines of simulated nodes for the trace. A line that reports a bug fails the seed."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import CorruptLog, PenstockError
from penstock.sim.scheduler import Scheduler

FoundBug = Callable[[str, BaseException | None], None]
FoundRot = Callable[[str], None]
"""Called when a node reports damage: it may repair the replica before the checks look at it."""


@contextmanager
def listening(scheduler: Scheduler, found_bug: FoundBug, found_rot: FoundRot) -> Iterator[None]:
    """While the context lasts, the lines are not printed."""
    logger = logging.getLogger("penstock")
    before = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [_Listener(scheduler, found_bug, found_rot)], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.propagate, logger.handlers = before[1:]
        logger.setLevel(before[0])


class _Listener(logging.Handler):
    def __init__(self, scheduler: Scheduler, found_bug: FoundBug, found_rot: FoundRot) -> None:
        super().__init__()
        self._found_rot = found_rot
        self._scheduler = scheduler
        self._found_bug = found_bug
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread != self._thread:
            return  # of a real node in this process
        # Not in the digest: a line may hold what only a process knows, such as an address in memory.
        self._scheduler.note("log", record.getMessage(), b"")
        if isinstance(record.args, tuple) and any(isinstance(one, CorruptLog) for one in record.args):
            self._found_rot(record.getMessage())
        if record.exc_info and not isinstance(record.exc_info[1], PenstockError):
            self._found_bug(record.getMessage(), record.exc_info[1])
