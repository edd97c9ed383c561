"""What simulated nodes log: it goes into the trace, and what they log as a bug is one."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.errors import CorruptLog, PenstockError
from penstock.sim.scheduler import Scheduler

FoundBug = Callable[[str, BaseException | None], None]
FoundRot = Callable[[str], None]
"""Told of what nodes take for rot: they may mend it before anybody looks."""


@contextmanager
def listening(scheduler: Scheduler, found_bug: FoundBug, found_rot: FoundRot) -> Iterator[None]:
    """Nothing of it is printed meanwhile."""
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

    def emit(self, record: logging.LogRecord) -> None:
        # Not in the digest: a line may hold what only a process knows, such as an address in memory.
        self._scheduler.note("log", record.getMessage(), b"")
        if isinstance(record.args, tuple) and any(isinstance(one, CorruptLog) for one in record.args):
            self._found_rot(record.getMessage())
        if record.exc_info and not isinstance(record.exc_info[1], PenstockError):
            self._found_bug(record.getMessage(), record.exc_info[1])
