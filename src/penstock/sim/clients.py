"""Clients: readers, and producers, of which some retry unanswered writes as Kafka's producers do."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from penstock.batch import Record, build_batch, iter_headers, read_records
from penstock.sim.clock import EPOCH_MS
from penstock.sim.history import History, Write, is_whole
from penstock.sim.outcome import EventCounts
from penstock.sim.scheduler import Process, Scheduler
from penstock.types import Replica

if TYPE_CHECKING:
    from penstock.sim.checks import Witness

Answer = Callable[[str, int], None]
"""The outcome of a batch: "ok" and its offset; "refused" and the leader, if it is known; or "unknown", which promises
nothing."""


class Server(Protocol):
    """One replica, or one node, as clients reach it. Its process executes the requests."""

    @property
    def process(self) -> Process: ...

    @property
    def me(self) -> Replica | None: ...

    def produce(self, batch: bytes, answer: Answer) -> bool:
        """Whether it has accepted the batch, which may still be refused."""
        ...

    def read(self, offset: int, answer: Callable[[int, int, bytes], None]) -> None:
        """Start, watermark, and batches from `offset` on; nothing from a replica that does not lead."""
        ...


class Partition(Protocol):
    """The partition that clients write to and read from."""

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def tally(self) -> EventCounts: ...

    @property
    def servers(self) -> "Sequence[Server]":
        """The replicas or nodes, in the order of their node ids."""
        ...

    @property
    def history(self) -> History: ...

    @property
    def witness(self) -> "Witness": ...

    @property
    def keyed(self) -> bool:
        """Whether records have one of a few keys, and some delete what has it."""
        ...


REQUEST_TIMEOUT_S = 0.6
PADDING = (0, 0, 20, 200)
"""Bytes that make batches of different sizes, so that segments roll and windows fill."""
KEYS = tuple(b"key %d" % number for number in range(6))
TOMBSTONES = 0.15
MARK = "mark"
"""The header that tells a tombstone from all others, as values do with other records."""


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
        self._hint: Server | None = None
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
        self._batch = make_batch(
            write, self._random, producer=(self._number, 0, self._sequence), keyed=self._world.keyed
        )
        self._sequence += write.count
        self._write = write
        self._world.history.begin(write)
        self._send(write)

    def _send(self, write: Write) -> None:
        if self._write is not write:
            return
        write.attempts += 1
        machine = self._hint or self._random.choice(self._world.servers)
        self._hint = None
        attempt = write.attempts

        def answer(status: str, offset: int) -> None:
            self._world.scheduler.after(0.005, None, self._answered, write, attempt, machine, status, offset)

        delay = self._random.random() * 0.01
        self._world.scheduler.deliver(delay, machine.process, machine.produce, self._batch, answer)
        self._world.scheduler.after(REQUEST_TIMEOUT_S, None, self._send_again, write, attempt)

    def _answered(self, write: Write, attempt: int, machine: Server, status: str, offset: int) -> None:
        if status == "ok":
            # Also when it was asked again meanwhile: what is acknowledged is acknowledged.
            self._hint = machine
            self._world.history.ack(write, offset, self._world.scheduler.time)
            if self._write is write:
                self._write = None
        else:
            self._hint = self._world.servers[offset - 1] if status == "refused" and offset > 0 else None
            self._world.scheduler.after(0.02, None, self._send_again, write, attempt)

    def _send_again(self, write: Write, attempt: int) -> None:
        if write.attempts == attempt:
            self._send(write)


class PlainProducer:
    """Does not wait for answers and repeats nothing: it fills a leader's log also when the leader has no followers."""

    busy = False

    def __init__(self, world: Partition, number: int, random: Random) -> None:
        self._world = world
        self._number = number
        self._random = random
        self._count = 0
        self._hint: Server | None = None
        self.stopped = False

    def wake(self) -> None:
        if self.stopped:
            return
        self._count += 1
        write = Write(f"q{self._number}-{self._count}", 1, self._world.scheduler.time, idempotent=False)
        self._world.history.begin(write)
        machine = self._hint or self._random.choice(self._world.servers)
        self._hint = None
        batch = make_batch(write, self._random, producer=(-1, -1, -1), keyed=self._world.keyed)

        def answer(status: str, offset: int) -> None:
            self._world.scheduler.after(0.005, None, self._answered, write, machine, status, offset)

        self._world.scheduler.deliver(0.005, machine.process, self._produce, machine, batch, answer)

    def _produce(self, machine: Server, batch: bytes, answer: Answer) -> None:
        if machine.produce(batch, answer):
            self._hint = machine

    def _answered(self, write: Write, machine: Server, status: str, offset: int) -> None:
        if status == "ok":
            self._world.history.ack(write, offset, self._world.scheduler.time)
        elif status == "refused" and offset > 0:
            self._hint = self._world.servers[offset - 1]


def make_batch(write: Write, random: Random, *, producer: tuple[int, int, int], keyed: bool) -> bytes:
    """`producer`: its id, its epoch and the sequence of the first record; -1 for one without."""
    padding = b"." * random.choice(PADDING)
    written_ms = EPOCH_MS + int(write.begun_at * 1000)
    if keyed:
        rows = [_keyed_record(n, written_ms, write.record_value(n), random) for n in range(write.count)]
    else:
        rows = [Record(n, written_ms, padding, write.record_value(n)) for n in range(write.count)]
    producer_id, epoch, sequence = producer
    return build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def _keyed_record(number: int, written_ms: int, mark: bytes, random: Random) -> Record:
    key = random.choice(KEYS)
    if random.random() < TOMBSTONES:
        return Record(number, written_ms, key, None, ((MARK, mark),))
    return Record(number, written_ms, key, mark)


class Reader:
    """Reads on from its offset, from a replica that answers as leader, and stays with that one until it falls silent,
    as consumers do. So it also asks leaders that were replaced without their knowledge."""

    def __init__(self, world: Partition, number: int, random: Random) -> None:
        self._world = world
        self._name = f"r{number}"
        self._random = random
        self._offset = 0
        self._server: Server | None = None
        self._waits = False

    def wake(self) -> None:
        if self._waits:
            self._server = None
        server = self._server or self._random.choice(self._world.servers)
        acked_end = self._world.history.acked_end
        offset = self._offset
        self._waits = True

        def answer(start_offset: int, watermark: int, data: bytes) -> None:
            self._server, self._waits = server, False
            if self._is_rotten(server, data):
                self._world.tally.add("rotten batches that a reader met")
            else:
                self._answered(offset, acked_end, start_offset, watermark, data)

        delay = self._random.random() * 0.01
        self._world.scheduler.deliver(delay, server.process, server.read, offset, answer)

    def _is_rotten(self, server: Server, data: bytes) -> bool:
        """It refuses what has a wrong checksum. Of rot in what a checksum does not cover (a batch's offset and term)
        clients get wrong records until a scrub finds it, and no check is broken by that."""
        if not is_whole(data):
            return True
        witness = self._world.witness
        return server.me is not None and server.me == witness.rotten and bool(_first_wrong(witness, data))

    def _answered(self, offset: int, acked_end: int, start_offset: int, watermark: int, data: bytes) -> None:
        history = self._world.history
        history.watermark(reader=self._name, watermark=watermark, acked_end=acked_end)
        at = max(offset, start_offset)
        self._offset = max(
            self._offset, history.read(self._world.witness, reader=self._name, offset=at, data=data)
        )


def _first_wrong(witness: "Witness", data: bytes) -> str:
    """Why the first wrong one of these batches is wrong; "" if all were committed like this."""
    found = (
        witness.wrong_with(header.base_offset, data[position : position + header.size])
        for position, header in iter_headers(data)
    )
    return next((wrong for wrong in found if wrong), "")


class KeyedReader(Reader):
    """Reads a compacted partition from its start to its end, again and again, and keeps the last word on each key."""

    def __init__(self, world: Partition, number: int, random: Random, *, keeps_tombstones: bool) -> None:
        super().__init__(world, number, random)
        self._keeps_tombstones = keeps_tombstones
        self._seen: dict[bytes, Record] = {}

    def _answered(self, offset: int, acked_end: int, start_offset: int, watermark: int, data: bytes) -> None:
        if offset != self._offset:
            # An answer that took so long that the next one overtook it.
            return
        super()._answered(offset, acked_end, start_offset, watermark, data)
        for position, _ in iter_headers(data):
            for record in read_records(data, position):
                self._seen[record.key or b""] = record
        # Compaction may have taken all that is left up to the watermark.
        if self._offset >= watermark or not data:
            self._end_of_pass(watermark)

    def _end_of_pass(self, end: int) -> None:
        committed_keys = self._world.witness.committed_keys
        assert committed_keys is not None
        committed_keys.check_fold(self._name, self._seen, end, keeps_tombstones=self._keeps_tombstones)
        self._world.tally.add("compacted partitions read from start to end")
        self._seen.clear()
        self._offset = 0
