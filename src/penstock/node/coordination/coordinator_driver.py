"""One group coordinator at work, on the partition that keeps its state.

A coordinator takes facts and gives effects back. Here the effects are carried out: replies end the waiting requests,
records are appended to the coordinator's partition and reported back once they are committed, and one timer wakes it at
its next deadline. It lives as long as this node leads the partition, in one term: the next leader reads the same
records and goes on from there.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

from penstock.batch import Record, build_batch, check_batch
from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.groups import Coordinator, Effect, Persist, Reply
from penstock.groups.values import Records
from penstock.node.clock import Clock, SteadyClock
from penstock.node.coordination.replay import stored_records
from penstock.node.replication.partition import Partition
from penstock.types import Term

log = logging.getLogger("penstock.groups")

T = TypeVar("T")

RECORDS_PER_TURN = 100
"""How many records a coordinator replays before others get their turn of the loop: about a millisecond's work."""
PARCEL_BYTES = 256 * 1024
"""Of keys and values that are appended in one batch: far below what a partition takes at once."""

Question = Callable[[int, object], Iterable[Effect]]
"""Takes the time and a token for the reply."""


class CoordinatorDriver:
    """A coordinator and its partition."""

    def __init__(self, core: Coordinator, partition: Partition, clock: Clock) -> None:
        self.core = core
        self.term: Term = partition.term
        self._partition = partition
        self._stopped = False
        self._asked: dict[asyncio.Future[object], None] = {}
        """Questions that wait for their reply."""
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._steady = SteadyClock(clock)
        self._writes: deque[_Write] = deque()
        """All that are under way, oldest first."""
        self._unwritten: list[_Unwritten] = []
        """Of these, what is appended at the end of this turn of the loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms: int | None = None

    @property
    def now_ms(self) -> int:
        return self._steady.now_ms()

    @property
    def has_lease(self) -> bool:
        """Whether nobody else can coordinate now: one who may have been replaced knows old offsets at best."""
        return self._partition.has_lease

    def load(self) -> None:
        """Replays the partition into the coordinator, at once. It serves from `begin` on."""
        for record in stored_records(self._partition):
            self.core.replay(record.key or b"", record.value)

    async def load_gently(self) -> None:
        """The same, while the node goes on to serve others. Nothing is appended meanwhile: all that could be committed
        in this partition comes from this coordinator."""
        for count, record in enumerate(stored_records(self._partition)):
            self.core.replay(record.key or b"", record.value)
            if count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)

    def begin(self) -> None:
        """All is replayed, and the metadata is new enough to judge it."""
        self.core.loaded(self.now_ms)
        self._set_timer()
        # This may be within a decision of the partition's own group, where nothing can be appended yet.
        self._loop.call_soon(self._tidy)

    def _tidy(self) -> None:
        if not self._stopped:
            self.carry_out(self.core.tidy(self.now_ms))

    def stop(self) -> None:
        """Somebody else coordinates from now on: whoever waits is sent to look for it."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        moved = KafkaError(ErrorCode.NOT_COORDINATOR, f"{self._partition.name} is led by another node now")
        for future in self._asked:
            if not future.done():
                future.set_exception(moved)

    async def ask(self, kind: type[T], question: Question) -> T:
        """Puts a question and waits for its reply, which may come much later. KafkaError if this stops meanwhile."""
        future: asyncio.Future[object] = self._loop.create_future()
        self._asked[future] = None
        try:
            self.carry_out(question(self.now_ms, future))
            return cast(T, await future)
        finally:
            del self._asked[future]

    def carry_out(self, effects: Iterable[Effect]) -> None:
        if self._stopped:
            return
        for effect in effects:
            match effect:
                case Reply(token=token, result=result):
                    future = cast("asyncio.Future[object]", token)
                    if not future.done():  # its client may have gone
                        future.set_result(result)
                case Persist():
                    self._persist(effect)
        self._set_timer()

    def _persist(self, effect: Persist) -> None:
        """Outcomes are reported in the order of the writes, whenever they become known."""
        self._writes.append(_Write(effect.id))
        if not self._unwritten:
            self._loop.call_soon(self._write)
        self._unwritten.append((self._writes[-1], effect.records))

    def _write(self) -> None:
        """Appends what was asked for in this turn of the loop. A thousand that commit at once are one batch: it is the
        batch that costs, not what is in it."""
        unwritten, self._unwritten = self._unwritten, []
        if self._stopped:
            return
        for some in _parcels(unwritten):
            self._append([write for write, _ in some], [row for _, records in some for row in records])

    def _append(self, writes: "Sequence[_Write]", records: Sequence[tuple[bytes, bytes | None]]) -> None:
        stamp_ms = self._clock.wall_ms()
        rows = [Record(i, stamp_ms, key, value, ()) for i, (key, value) in enumerate(records)]
        batch = memoryview(bytearray(build_batch(rows)))
        try:
            committed = self._partition.committed_at(self._partition.append(batch, check_batch(batch)))
        except PenstockError as refused:
            log.error("%s: %s", self._partition.name, refused)
            self._settle(writes, False)
            return
        if committed is None:
            self._settle(writes, True)
        else:
            committed.add_done_callback(lambda done: self._settle(writes, done.exception() is None))

    def _settle(self, writes: "Iterable[_Write]", ok: bool) -> None:
        for write in writes:
            write.ok = ok
        while self._writes and self._writes[0].ok is not None:
            settled = self._writes.popleft()
            self.carry_out(self.core.persisted(self.now_ms, settled.id, bool(settled.ok)))

    def _set_timer(self) -> None:
        due_ms = self.core.next_deadline_ms
        if due_ms == self._timer_due_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due_ms
        if due_ms is not None:
            delay = max(0.0, (due_ms - self.now_ms) / 1000)
            self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer_due_ms = None
        self.carry_out(self.core.tick(self.now_ms))


class _Write:
    """A write that is under way: `ok` once its outcome is known."""

    __slots__ = ("id", "ok")

    def __init__(self, persist_id: int) -> None:
        self.id = persist_id
        self.ok: bool | None = None


_Unwritten = tuple[_Write, Records]


def _parcels(unwritten: Iterable[_Unwritten]) -> Iterator[list[_Unwritten]]:
    """In batches of about PARCEL_BYTES; what is larger by itself is a batch of its own."""
    parcel: list[_Unwritten] = []
    room = PARCEL_BYTES
    for one in unwritten:
        size = sum(len(key) + len(value or b"") for key, value in one[1])
        if parcel and size > room:
            yield parcel
            parcel, room = [], PARCEL_BYTES
        parcel.append(one)
        room -= size
    if parcel:
        yield parcel
