"""TransactionStore: the transactional ids of one partition, their writes, and what follows from each state.

A state is changed by `write`. Memory changes when the log has the new state, and then the store does what the state
asks for, also after a restart:

- Ongoing: a deadline for the timeout;
- PrepareCommit, PrepareAbort: the markers are sent, and when all are written the store writes CompleteCommit or
  CompleteAbort;
- Empty, CompleteCommit, CompleteAbort: the id expires after a time without a change.

Invariants, cited in the tests:

 1. An id has one write under way at most. A request that would need another one meanwhile is answered
    CONCURRENT_TRANSACTIONS, and its client repeats it.
 2. Nothing is told, and no marker is sent, before the log has the state from which it follows.
 3. A decided transaction keeps its outcome: markers with the other outcome are never sent. This follows from the table
    of transitions and from 1 and 2.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from penstock.config import Limits, TransactionSettings
from penstock.effects import PERSIST_RECORDS_MAX, Outbox, WhenPersisted
from penstock.timers import Timers
from penstock.transactions.records import encode_key, encode_value
from penstock.transactions.states import DEAD, DECIDED, IDLE, ONGOING, PREPARE_COMMIT, TransactionState
from penstock.transactions.transaction import NO_PARTITIONS, Transaction
from penstock.transactions.values import EndedTotals, SendMarkers
from penstock.types import TopicPartition

TIMEOUT = "timeout"
COMPLETION = "completion"
EXPIRY = ("expiry",)

WRITE_RETRY_MS = 1_000
"""How long the coordinator waits before it repeats a write of its own that failed: the disk may be full."""


class TransactionalId:
    """One id. `committed` is what the log has; None while its first record is being written."""

    __slots__ = ("committed", "markers_id", "transactional_id", "unmarked", "writing")

    def __init__(self, transactional_id: str, committed: Transaction | None = None) -> None:
        self.transactional_id = transactional_id
        self.committed = committed
        self.writing: TransactionState | None = None
        """The state that is being written."""
        self.unmarked: frozenset[TopicPartition] = NO_PARTITIONS
        """The partitions of a decided transaction whose marker is not known to be written."""
        self.markers_id = 0
        """The number of the last SendMarkers."""

    @property
    def is_busy(self) -> bool:
        """Whether the next change must wait: for a write (1), or for markers."""
        return self.writing is not None or (self.committed is not None and self.committed.state in DECIDED)


class TransactionStore:
    """Every public method of the coordinator that changes something ends by taking the effects from the outbox."""

    def __init__(self, settings: TransactionSettings, limits: Limits, ended: EndedTotals) -> None:
        self.settings = settings
        self.limits = limits
        self._ended = ended
        self.outbox = Outbox()
        self.timers = Timers()
        self._ids: dict[str, TransactionalId] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """The ids without a transaction, least recently changed first."""
        self._last_markers_id = 0

    # --- ids

    def find(self, transactional_id: str) -> TransactionalId | None:
        return self._ids.get(transactional_id)

    @property
    def is_full(self) -> bool:
        return len(self._ids) >= self.limits.max_transactional_ids

    def create(self, transactional_id: str) -> TransactionalId:
        """An id that is forgotten again if its first write fails."""
        created = self._ids[transactional_id] = TransactionalId(transactional_id)
        return created

    def snapshot(self) -> Iterator[TransactionalId]:
        """All ids that are stored. The caller may pause, and ids may come and go meanwhile."""
        return (each for each in list(self._ids.values()) if each.committed is not None)

    def not_idle(self) -> list[TransactionalId]:
        """The ids with a transaction or a write under way, without a walk over the idle ones, which are many."""
        return [self._ids[name] for name in self._ids.keys() - self._idle.keys()]

    # --- start

    def replay(self, transactional_id: str, value: Transaction | None) -> None:
        if value is None:
            self._ids.pop(transactional_id, None)
        else:
            self._ids[transactional_id] = TransactionalId(transactional_id, value)

    def loaded(self, now_ms: int) -> None:
        for each in sorted(self.snapshot(), key=_updated_ms):
            self._follow(now_ms, each)

    # --- writes

    def write(self, each: TransactionalId, value: Transaction, then: WhenPersisted) -> None:
        """Writes the next state of an id. `then` is called before the store does what the state asks for: a client
        hears of a commit before its markers are sent."""
        assert not each.writing, "invariant 1"
        self._start(each, value.state)

        def persisted(now_ms: int, ok: bool) -> None:
            each.writing = None
            if ok:
                each.committed = value
            then(now_ms, ok)
            self._follow(now_ms, each, retry=not ok)

        self.outbox.persist([(encode_key(each.transactional_id), encode_value(value))], persisted)

    def _start(self, each: TransactionalId, state: TransactionState) -> None:
        each.writing = state
        self._idle.pop(each.transactional_id, None)
        self.timers.cancel((TIMEOUT, each.transactional_id))

    def _follow(self, now_ms: int, each: TransactionalId, *, retry: bool = False) -> None:
        """Does what the committed state asks for. `retry`: a write has just failed, and is not repeated at once."""
        value = each.committed
        if value is None:
            del self._ids[each.transactional_id]
        elif value.state is ONGOING:
            self._plan_timeout(now_ms + WRITE_RETRY_MS if retry else now_ms, each, value)
        elif value.state in IDLE:
            self._idle[each.transactional_id] = None
            self._plan_expiry(now_ms + WRITE_RETRY_MS if retry else now_ms)
        elif retry:
            self.timers.set((COMPLETION, each.transactional_id), now_ms + WRITE_RETRY_MS)
        else:
            self._send_markers(now_ms, each, value)

    # --- timeouts

    def _plan_timeout(self, earliest_ms: int, each: TransactionalId, value: Transaction) -> None:
        due_ms = value.times_out_ms
        if due_ms is not None:
            self.timers.set((TIMEOUT, each.transactional_id), max(earliest_ms, due_ms))

    def timed_out(self, now_ms: int, each: TransactionalId) -> None:
        value = each.committed
        assert value is not None
        assert value.state is ONGOING
        self.write(each, value.fenced(now_ms, by_other=False), _no_reply)

    # --- markers

    def _send_markers(self, now_ms: int, each: TransactionalId, value: Transaction) -> None:
        each.unmarked = value.partitions
        if not each.unmarked:
            self._complete(now_ms, each)
            return
        self._last_markers_id += 1
        each.markers_id = self._last_markers_id
        self.outbox.send(
            SendMarkers(
                id=each.markers_id,
                transactional_id=each.transactional_id,
                producer=value.producer,
                commit=value.state is PREPARE_COMMIT,
                partitions=value.partitions,
            )
        )

    def markers_written(
        self, now_ms: int, transactional_id: str, markers_id: int, partitions: Iterable[TopicPartition]
    ) -> None:
        """A late report about an earlier transaction has another id. Without that check it would count for the present
        one, whose marker would be missing for ever: in V1 both have the same producer and epoch."""
        each = self._ids.get(transactional_id)
        if each is not None and each.markers_id == markers_id:
            each.unmarked = each.unmarked.difference(partitions)
            self.complete_if_marked(now_ms, each)

    def complete_if_marked(self, now_ms: int, each: TransactionalId) -> None:
        value = each.committed
        if value is not None and value.state in DECIDED and not each.unmarked and each.writing is None:
            self._complete(now_ms, each)

    def _complete(self, now_ms: int, each: TransactionalId) -> None:
        value = each.committed
        assert value is not None
        self.timers.cancel((COMPLETION, each.transactional_id))

        def written(now_ms: int, ok: bool) -> None:
            if ok and value.partitions:  # a client of V2 also ends transactions without any
                self._count(value.state)

        self.write(each, value.completed(now_ms), written)

    def _count(self, outcome: TransactionState) -> None:
        if outcome is PREPARE_COMMIT:
            self._ended.committed += 1
        else:
            self._ended.aborted += 1

    # --- expiry

    def _plan_expiry(self, earliest_ms: int) -> None:
        """One timer for all: the least recently changed id expires first."""
        first = next(iter(self._idle), None)
        if first is not None and EXPIRY not in self.timers:
            due_ms = _updated_ms(self._ids[first]) + self.settings.id_expiration_ms
            self.timers.set(EXPIRY, max(earliest_ms, due_ms))

    def expire(self, now_ms: int) -> None:
        """Deletes ids that were idle for long, in one write of bounded size; the rest follows when it is done."""
        limit_ms = now_ms - self.settings.id_expiration_ms
        oldest = (self._ids[name] for name in islice(self._idle, PERSIST_RECORDS_MAX))
        expired = [each for each in oldest if _updated_ms(each) <= limit_ms]
        for each in expired:
            self._start(each, DEAD)
        if not expired:
            self._plan_expiry(now_ms)
            return

        def persisted(now_ms: int, ok: bool) -> None:
            for each in reversed(expired):
                each.writing = None
                if ok:
                    del self._ids[each.transactional_id]
                else:
                    self._keep_first(each)
            self._plan_expiry(now_ms if ok else now_ms + WRITE_RETRY_MS)

        self.outbox.persist([(encode_key(each.transactional_id), None) for each in expired], persisted)

    def _keep_first(self, each: TransactionalId) -> None:
        self._idle[each.transactional_id] = None
        self._idle.move_to_end(each.transactional_id, last=False)


def _updated_ms(each: TransactionalId) -> int:
    assert each.committed is not None
    return each.committed.updated_ms


def _no_reply(now_ms: int, ok: bool) -> None:
    """The coordinator decided by itself: no client waits."""
