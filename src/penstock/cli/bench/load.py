"""The orders and reports of load processes: one JSON line each."""

import mmap
import struct
from pathlib import Path
from typing import Final, Literal

import msgspec

Kind = Literal["produce", "consume", "latency"]
Role = Literal["produce", "consume", "send_paced", "receive_paced"]
Via = Literal["client", "confluent"]
"""Through Penstock's own client, or through confluent-kafka: its producer, and its share consumer."""
System = Literal["penstock", "group", "nats"]
"""A clique on Penstock, a plain consumer group on it, or a clique on NATS."""

PAYLOADS = 1000
"""Different payloads in a run: with 100 bytes each they exceed lz4's window, so repetition helps no codec."""
READY = b"ready\n"
GO = b"go\n"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every load process needs."""

    bootstrap: str
    topic: str
    messages: int = 100_000
    size_bytes: int = 100


class Load(Workload, frozen=True, kw_only=True):
    """The work of a process that produces or consumes."""

    role: Role
    partitions: int = 1
    rate_per_second: int = 1000
    """The rate of the roles that send at a steady rate."""
    settings: dict[str, str] = {}
    """Settings of librdkafka: acks, compression, linger and those of the user."""


class QueueLoad(Workload, frozen=True, kw_only=True):
    """The work of a process that publishes to a queue or works it off; `messages` are for all consumers together."""

    role: Literal["publish", "work_off"]
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
    """Messages that were sent before are not among the latencies."""


class PushLoad(Workload, frozen=True, kw_only=True):
    """One process' subscribers. They stay connected through all phases."""

    url: str
    """The URL of the broker's HTTP port."""
    names: list[str]
    """The names of the subscriptions, one for each subscriber."""
    credit: int = 1000


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """The next messages for the subscribers."""

    messages: int
    """The messages that every subscriber gets."""
    is_paced: bool = False
    """Messages carry when they were sent, and come slowly."""
    warm_up_seconds: float = 0.0
    """Messages that were sent before are not among the latencies."""


class CliqueLoad(Workload, frozen=True, kw_only=True):
    """One process of a clique's benchmark. `messages` are for all workers together; `topic` is the stream."""

    role: Literal["work", "consume", "publish", "ask"]
    carrier: str
    """The clique's carrier; for a plain consumer group the broker's address alone."""
    group: str
    """The name of the clique, or of the consumer group."""
    worker: str = ""
    questions: str = ""
    """The stream of requests."""
    keys: int = 1_000
    handler_us: int = 0
    """CPU that the handler uses for a message, beside its bookkeeping."""
    lease_ms: int = 8_000
    handled: str = ""
    """A file that all processes share: which messages are handled."""


class AskPhase(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Requests at a steady rate."""

    requests: int
    rate_per_second: int
    warm_up_seconds: float


class KillPhase(msgspec.Struct, frozen=True, kw_only=True, tag="kill"):
    """The worker to kill, and to ask one of its keys until another worker answers."""

    worker: str
    pid: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one load process. Subscribers count deliveries as messages."""

    messages: int
    bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float
    errors: int = 0
    error: str = ""
    """The first error, in words."""
    latencies_us: list[int] = []
    last_arrival_ns: int = 0
    """The time of the machine's monotonic clock, which all its processes share."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    done: int


class QueueStats:
    """How many messages each consumer has acknowledged: a file in memory, with a number for each of them.

    How many each consumer gets is not known beforehand, and a consumer that waited to see whether more comes would
    measure its own waiting. Every number has one writer, so no lock is needed.
    """

    COUNT: Final = struct.Struct("=q")

    def __init__(self, path: str, number: int) -> None:
        with Path(path).open("r+b") as file:
            self._counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._number = number

    @staticmethod
    def create(path: Path, consumers: int) -> None:
        path.write_bytes(QueueStats.COUNT.pack(0) * consumers)

    def add(self, count: int) -> None:
        self._counts[self._number] += count

    @property
    def total(self) -> int:
        return sum(self._counts)


class HandledMessages:
    """Which messages of a run are handled: a file in memory, with a byte for each message.

    A message that is delivered twice counts once, and the workers need no lock: they write different bytes, or the same
    value.
    """

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._marks = mmap.mmap(file.fileno(), 0)

    @staticmethod
    def create(path: Path, messages: int) -> None:
        path.write_bytes(bytes(messages))

    def mark(self, number: int) -> None:
        self._marks[number] = 1

    @property
    def count(self) -> int:
        return self._marks[:].count(1)
