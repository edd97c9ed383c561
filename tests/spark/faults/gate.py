"""A point in the middle of a task where it can be held, so that a fault hits it there and not before or after.

A gate is a folder. While it has a file `shut`, tasks whose rows come to the gate stop there and leave a file `held-...`
with the process id of the Python worker that waits. Opened, it lets everything through for good.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

Through = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Gate:
    """The test's side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.shut()

    def shut(self) -> None:
        for old in self.folder.glob("held-*"):
            old.unlink()
        (self.folder / "shut").touch()

    def open(self) -> None:
        (self.folder / "shut").unlink(missing_ok=True)

    def held(self) -> list[int]:
        """The processes that wait now, or did so when they were killed."""
        return sorted(int(path.name.rpartition("-")[2]) for path in self.folder.glob("held-*"))

    def holds(self, tasks: int) -> bool:
        return len(self.held()) == tasks


def rows_through(folder: str, after_rows: int, from_batch: int = 0) -> Through:
    """For mapInArrow: a task stops after so many rows, in this and later micro-batches.

    A nested function, because workers get such by value and need not find this module.
    """

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        seen = 0
        for batch in batches:
            if number >= from_batch and seen >= after_rows:
                wait()
            seen += batch.num_rows
            yield batch

    wait = waiting_at(folder)
    return through


def waiting_at(folder: str, timeout_s: float = 600.0) -> Callable[[], None]:
    """Returns from a call when the gate is open. The timeout is for workers whose test has ended."""

    def wait() -> None:
        shut, until_s = Path(folder) / "shut", time.monotonic() + timeout_s
        if not shut.exists():
            return
        (Path(folder) / f"held-{os.getpid()}").touch()
        while shut.exists() and time.monotonic() < until_s:
            time.sleep(0.02)

    return wait


def failing_first(folder: str, after_rows: int) -> Through:
    """For mapInArrow: the first attempt of each task stops at the gate after so many rows, and then fails."""

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        seen = 0
        for batch in batches:
            if seen >= after_rows and context.attemptNumber() == 0:
                wait()
                raise RuntimeError("the first attempt fails, as the test wants it")
            seen += batch.num_rows
            yield batch

    wait = waiting_at(folder)
    return through
