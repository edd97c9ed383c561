"""TransactionStore: the transactional ids of one partition, their writes, and what follows from each state.

A state is changed by `write`. Memory changes when the log has the new state, and then the store does what the state
asks for, also after a restart:

- Ongoing: a deadline for the timeout;
- PrepareCommit, PrepareAbort: the markers are sent, and when all are written the state is CompleteCommit or
  CompleteAbort;
- Empty, CompleteCommit, CompleteAbort: the id expires after a time without a change.

CompleteCommit and CompleteAbort decide nothing: they follow from the outcome and the markers, which the logs have. So
they are in memory first, and are written with the id's next change, in one batch with it, or a moment later. A
coordinator that dies before that leaves a decided transaction to the next one, which sends the markers again.

Several ids may change in one write (`write_all`), which is one batch of the log: after a crash all have changed, or
none.

Invariants, cited in the tests:

 1. An id has one write under way at most. A request that would need another one meanwhile is answered
    CONCURRENT_TRANSACTIONS, and its client repeats it.
 2. Nothing is told, and no marker is sent, before the log has the state from which it follows; what a completion allows
    follows from the outcome.
 3. A decided transaction keeps its outcome: markers with the other outcome are never sent. This follows from the table
    of transitions and from 1 and 2.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from penstock.config import Limits, TransactionSettings
from penstock.effects import PERSIST_RECORDS_MAX, KeyValue, Outbox, WhenPersisted
from penstock.timers import Timers
from penstock.transactions.attempt_pools import AttemptPools
from penstock.transactions.records import encode_key, encode_value
from penstock.transactions.states import DEAD, DECIDED, IDLE, ONGOING, PREPARE_COMMIT, TransactionState
from penstock.transactions.transaction import NO_PARTITIONS, Transaction
from penstock.transactions.values import EndedTotals, ErrorResult, SendMarkers
from penstock.types import TopicPartition

TIMEOUT = "timeout"
OWNER_TIMEOUT = "owner timeout"
COMPLETION = "completion"
EXPIRY = ("expiry",)

WRITE_RETRY_MS = 1_000
"""How long the coordinator waits before it repeats a write of its own that failed: the disk may be full."""
COMPLETION_DELAY_MS = 100
"""How long a completion waits for the id's next change. A producer that commits without a pause begins its next
transaction within milliseconds, and one flush serves both."""


class TransactionalId:
    """One id. `committed` is what the log has; None while its first record is being written. The log may not have a
    completion yet."""

    __slots__ = ("committed", "is_unwritten", "markers_id", "transactional_id", "unmarked", "writing")

    def __init__(self, transactional_id: str, committed: Transaction | None = None) -> None:
        self.transactional_id = transactional_id
        self.committed = committed
        self.is_unwritten = False
        """Whether `committed` is a completion that the log does not have yet."""
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
        self.pools = AttemptPools()
        self._waiting: dict[str, list[object]] = {}
        """Tokens of requests that wait until an id is not busy any more."""

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

    def when_free(self, token: object, transactional_id: str) -> None:
        """Answers as soon as the id can take the next change, or is not known."""
        each = self._ids.get(transactional_id)
        if each is not None and each.is_busy:
            self._waiting.setdefault(transactional_id, []).append(token)
        else:
            self.outbox.reply(token, ErrorResult())

    def _release(self, transactional_id: str) -> None:
        for token in self._waiting.pop(transactional_id, ()):
            self.outbox.reply(token, ErrorResult())

    # --- start

    def replay(self, transactional_id: str, value: Transaction | None) -> None:
        known = self._ids.pop(transactional_id, None)
        if known is not None:
            self.pools.remove(transactional_id, known.committed)
        if value is not None:
            self._ids[transactional_id] = TransactionalId(transactional_id, value)
            self.pools.add(transactional_id, value)

    def loaded(self, now_ms: int) -> None:
        for each in sorted(self.snapshot(), key=_updated_ms):
            self._follow(now_ms, each)
        for owner in self.pools.owners():
            self.touch(now_ms, owner)

    # --- writes

    def write(self, each: TransactionalId, value: Transaction, then: WhenPersisted) -> None:
        """Writes the next state of an id. `then` is called before the store does what the state asks for: a client
        hears of a commit before its markers are sent."""
        self.write_all([(each, value)], then)

    def write_all(self, changes: Sequence[tuple[TransactionalId, Transaction]], then: WhenPersisted) -> None:
        """Writes the next states of several ids: all of them, or none."""
        records: list[KeyValue] = []
        for each, value in changes:
            assert each.writing is None, "invariant 1"
            records += _unwritten(each)
            if value is not each.committed:
                records.append(_record(each, value))
            self._start(each, value.state)
        assert len(records) <= PERSIST_RECORDS_MAX, "more would be several batches"

        def persisted(now_ms: int, ok: bool) -> None:
            for each, value in changes:
                each.writing = None
                if ok:
                    self._change(each, value, is_unwritten=False)
            then(now_ms, ok)
            for each, _ in changes:
                self._follow(now_ms, each, retry=not ok)
                if not each.is_busy:
                    self._release(each.transactional_id)

        self.outbox.persist(records, persisted)

    def _change(self, each: TransactionalId, value: Transaction, *, is_unwritten: bool) -> None:
        self.pools.remove(each.transactional_id, each.committed)
        each.committed, each.is_unwritten = value, is_unwritten
        self.pools.add(each.transactional_id, value)

    def _start(self, each: TransactionalId, state: TransactionState) -> None:
        each.writing = state
        self._idle.pop(each.transactional_id, None)
        self.timers.cancel((TIMEOUT, each.transactional_id))
        self.timers.cancel((COMPLETION, each.transactional_id))

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
            if each.is_unwritten:
                delay_ms = WRITE_RETRY_MS if retry else COMPLETION_DELAY_MS
                self.timers.set((COMPLETION, each.transactional_id), now_ms + delay_ms)
        else:
            self._send_markers(now_ms, each, value)

    # --- timeouts

    def _plan_timeout(self, earliest_ms: int, each: TransactionalId, value: Transaction) -> None:
        due_ms = value.times_out_ms
        if due_ms is not None:
            # The node that began it may have had a clock that was ahead of this one by hours.
            due_ms = min(due_ms, earliest_ms + value.timeout_ms)
            self.timers.set((TIMEOUT, each.transactional_id), max(earliest_ms, due_ms))

    def timed_out(self, now_ms: int, each: TransactionalId) -> None:
        value = each.committed
        assert value is not None
        assert value.state is ONGOING
        self.write(each, value.fenced(now_ms, by_other=False), _no_reply)

    def touch(self, now_ms: int, owner: str) -> None:
        """A sign of life of an owner: its attempts are not aborted before their timeout. Signs of life are in memory
        only; loading is one."""
        pool = self.pools.find(owner)
        if pool is not None and pool.lent:
            self.timers.set((OWNER_TIMEOUT, owner), now_ms + pool.timeout_ms)

    def look_again(self, now_ms: int, owner: str) -> None:
        """Attempts of a lost owner could not be aborted now."""
        self.timers.set((OWNER_TIMEOUT, owner), now_ms + WRITE_RETRY_MS)

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
            if not each.unmarked and each.committed is not None and each.committed.state in DECIDED:
                self._complete(now_ms, each)

    def _complete(self, now_ms: int, each: TransactionalId) -> None:
        value = each.committed
        assert value is not None
        assert not each.writing, "nothing is written between the outcome and the last marker"
        if value.partitions:  # a client of V2 also ends transactions without any
            self._count(value.state)
        self._change(each, value.completed(now_ms), is_unwritten=True)
        self._follow(now_ms, each)
        self._release(each.transactional_id)

    def write_completion(self, each: TransactionalId) -> None:
        """No change of the id has come that could have been written with it."""
        assert each.committed is not None
        self.write(each, each.committed, _no_reply)

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
                    self.pools.remove(each.transactional_id, each.committed)
                else:
                    self._keep_first(each)
                self._release(each.transactional_id)
            self._plan_expiry(now_ms if ok else now_ms + WRITE_RETRY_MS)

        records = [one for each in expired for one in (*_unwritten(each), _record(each, None))]
        self.outbox.persist(records, persisted)

    def _keep_first(self, each: TransactionalId) -> None:
        self._idle[each.transactional_id] = None
        self._idle.move_to_end(each.transactional_id, last=False)


def _record(each: TransactionalId, value: Transaction | None) -> KeyValue:
    return encode_key(each.transactional_id), None if value is None else encode_value(value)


def _unwritten(each: TransactionalId) -> list[KeyValue]:
    """The completion that the log does not have yet, if there is one: it goes before the next change."""
    return [_record(each, each.committed)] if each.is_unwritten else []


def _updated_ms(each: TransactionalId) -> int:
    assert each.committed is not None
    return each.committed.updated_ms


def _no_reply(now_ms: int, ok: bool) -> None:
    """The coordinator decided by itself: no client waits."""
