"""Clients: producers, of which some repeat what they are not sure of as Kafka's do, and readers."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from penstock.batch import Record, build_batch
from penstock.sim.clock import EPOCH_MS
from penstock.sim.history import History, Write, is_whole
from penstock.sim.outcome import Tally
from penstock.sim.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from penstock.sim.checks import Witness

Answer = Callable[[str, int], None]
"""What became of a batch: "ok" and its offset; "refused" and who leads, if that is known; "unknown", which promises
nothing."""


class Place(Protocol):
    """One replica, or one node, as clients reach it. Whatever is asked of it happens in its process."""

    @property
    def process(self) -> Process: ...

    def produce(self, batch: bytes, answer: Answer) -> bool:
        """Whether it has taken the batch for the time being."""
        ...

    def read(self, offset: int, answer: Callable[[int, int, bytes], None]) -> None:
        """Start, watermark, and batches from `offset` on; nothing from who does not lead."""
        ...


class Partition(Protocol):
    """What clients write to and read from."""

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def tally(self) -> Tally: ...

    @property
    def places(self) -> "Sequence[Place]":
        """By node, from 1 on."""
        ...

    @property
    def history(self) -> History: ...

    @property
    def witness(self) -> "Witness": ...


REQUEST_TIMEOUT_S = 0.6
PADDING = (0, 0, 20, 200)
"""Bytes that make batches of different sizes, so that segments roll and windows fill."""


class Producer:
    """An idempotent producer: one batch after the other, each repeated, wherever a leader is, until acknowledged."""

    def __init__(self, world: Partition, number: int, random: Random) -> None:
        self._world = world
        self._number = number
        self._random = random
        self._count = 0
        self._sequence = 0
        self._write: Write | None = None
        self._batch = b""
        self._hint: Place | None = None
        self.stopped = False

    @property
    def busy(self) -> bool:
        return self._write is not None

    def wake(self) -> None:
        """Begins the next batch, unless one is under way."""
        if self._write is not None or self.stopped:
            return
        self._count += 1
        write = Write(
            f"p{self._number}-{self._count}",
            self._random.choice((1, 1, 2, 4)),
            self._world.scheduler.time,
            idempotent=True,
        )
        self._batch = make_batch(write, self._random, producer=(self._number, 0, self._sequence))
        self._sequence += write.count
        self._write = write
        self._world.history.begin(write)
        self._send(write)

    def _send(self, write: Write) -> None:
        if self._write is not write:
            return
        write.attempts += 1
        machine = self._hint or self._random.choice(self._world.places)
        self._hint = None
        attempt = write.attempts

        def answer(status: str, offset: int) -> None:
            self._world.scheduler.after(0.005, None, self._answered, write, attempt, machine, status, offset)

        delay = self._random.random() * 0.01
        self._world.scheduler.deliver(delay, machine.process, machine.produce, self._batch, answer)
        self._world.scheduler.after(REQUEST_TIMEOUT_S, None, self._send_again, write, attempt)

    def _answered(self, write: Write, attempt: int, machine: Place, status: str, offset: int) -> None:
        if status == "ok":
            # Also when it was asked again meanwhile: what is acknowledged is acknowledged.
            self._hint = machine
            self._world.history.ack(write, offset, self._world.scheduler.time)
            if self._write is write:
                self._write = None
        else:
            self._hint = self._world.places[offset - 1] if status == "refused" and offset > 0 else None
            self._world.scheduler.after(0.02, None, self._send_again, write, attempt)

    def _send_again(self, write: Write, attempt: int) -> None:
        if write.attempts == attempt:
            self._send(write)


class PlainProducer:
    """One that does not wait for answers and repeats nothing: it fills a leader's log also when nobody follows it."""

    busy = False

    def __init__(self, world: Partition, number: int, random: Random) -> None:
        self._world = world
        self._number = number
        self._random = random
        self._count = 0
        self._hint: Place | None = None
        self.stopped = False

    def wake(self) -> None:
        if self.stopped:
            return
        self._count += 1
        write = Write(f"q{self._number}-{self._count}", 1, self._world.scheduler.time, idempotent=False)
        self._world.history.begin(write)
        machine = self._hint or self._random.choice(self._world.places)
        self._hint = None
        batch = make_batch(write, self._random, producer=(-1, -1, -1))

        def answer(status: str, offset: int) -> None:
            self._world.scheduler.after(0.005, None, self._answered, write, machine, status, offset)

        self._world.scheduler.deliver(0.005, machine.process, self._produce, machine, batch, answer)

    def _produce(self, machine: Place, batch: bytes, answer: Answer) -> None:
        if machine.produce(batch, answer):
            self._hint = machine

    def _answered(self, write: Write, machine: Place, status: str, offset: int) -> None:
        if status == "ok":
            self._world.history.ack(write, offset, self._world.scheduler.time)
        elif status == "refused" and offset > 0:
            self._hint = self._world.places[offset - 1]


def make_batch(write: Write, random: Random, *, producer: tuple[int, int, int]) -> bytes:
    """`producer`: its id, its epoch and the sequence of the first record; -1 for one without."""
    padding = b"." * random.choice(PADDING)
    written_ms = EPOCH_MS + int(write.begun_at * 1000)
    rows = [Record(n, written_ms, padding, write.record_value(n)) for n in range(write.count)]
    producer_id, epoch, sequence = producer
    return build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


class Reader:
    """Reads from wherever it got to, from whoever says that it leads; and from the same one again, until that falls
    silent: as consumers do, which is how they meet leaders that are none any more."""

    def __init__(self, world: Partition, number: int, random: Random) -> None:
        self._world = world
        self._name = f"r{number}"
        self._random = random
        self._offset = 0
        self._place: Place | None = None
        self._waits = False

    def wake(self) -> None:
        if self._waits:
            self._place = None
        place = self._place or self._random.choice(self._world.places)
        acked_end = self._world.history.acked_end
        offset = self._offset
        self._waits = True

        def answer(start_offset: int, watermark: int, data: bytes) -> None:
            self._place, self._waits = place, False
            self._answered(offset, acked_end, start_offset, watermark, data)

        delay = self._random.random() * 0.01
        self._world.scheduler.deliver(delay, place.process, place.read, offset, answer)

    def _answered(self, offset: int, acked_end: int, start_offset: int, watermark: int, data: bytes) -> None:
        history = self._world.history
        history.watermark(reader=self._name, watermark=watermark, acked_end=acked_end)
        if not is_whole(data):
            self._world.tally.add("rotten batches that a reader refused")
            return
        at = max(offset, start_offset)
        self._offset = max(
            self._offset, history.read(self._world.witness, reader=self._name, offset=at, data=data)
        )
