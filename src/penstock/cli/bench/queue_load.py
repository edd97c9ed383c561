"""What a process is told that publishes to a queue or works it off, and how several know together when all is done."""

import mmap
import struct
from pathlib import Path
from typing import Final, Literal

from penstock.cli.bench.load import Work

Via = Literal["client", "confluent"]
"""Through Penstock's own client, or through confluent-kafka: its producer, and its share consumer."""
QueueRole = Literal["publish", "work_off"]

COUNT: Final = struct.Struct("=q")


class QueueLoad(Work, frozen=True, kw_only=True):
    """One process' part. `messages` is what all consumers have to take together."""

    role: QueueRole
    via: Via
    group: str = ""
    number: int = 0
    """Which of the consumers this is."""
    prefetch: int = 1000
    tally: str = ""
    """A file that the consumers share."""
    is_paced: bool = False
    """Messages carry when they were sent, and come slowly."""
    warm_up_seconds: float = 0.0
    """What was sent so early has no part in the latencies."""


class QueueStats:
    """How many messages each consumer has acknowledged: a file in memory, with a place for each of them.

    Nobody knows beforehand who gets how many, and a consumer that waited to see whether more comes would measure its
    own waiting. Every place has one writer, so no lock is needed.
    """

    def __init__(self, path: str, number: int) -> None:
        with Path(path).open("r+b") as file:
            self._places = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._number = number

    @staticmethod
    def create(path: Path, consumers: int) -> None:
        path.write_bytes(COUNT.pack(0) * consumers)

    def add(self, count: int) -> None:
        self._places[self._number] += count

    @property
    def total(self) -> int:
        return sum(self._places)
