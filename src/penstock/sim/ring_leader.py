"""The leader of the partition of the ring level: a real `QueuePartition` with lanes, and sessions with workers.

A session is like a connection: what one side sends arrives in order, or the session breaks, which the two sides
notice at different times. The leader follows the table of the clique over the lossy network, so it may know an old
one.
"""

from array import array
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ErrorCode
from penstock.node.cliques.tables import lanes_of
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings
from penstock.queue.values import AckKind, ScanResult
from penstock.ring import SLOTS, Table
from penstock.sim.clock import EPOCH_MS
from penstock.sim.ring_checks import Message
from penstock.sim.scheduler import Process
from penstock.types import Term

if TYPE_CHECKING:
    from penstock.sim.ring_worker import RingWorker
    from penstock.sim.ring_world import RingWorld

SETTINGS = QueueSettings(lanes=SLOTS, delivery_limit=0, lease_ms=3_600_000)
"""Messages come back when their slot moves or their session breaks, never by time: the runtime of workers renews."""
TABLE_EVERY_S = 0.7
"""When a question for the table that got no answer is asked again."""
SESSION_CREDIT = 8
"""Messages that a worker holds at once: few, so that most wait at the leader."""
NOTICE_S = (0.01, 0.3, 1.5)
"""When a side notices that a session is broken."""
_ACCEPT = bytes((AckKind.ACCEPT,))


class Delivery(NamedTuple):
    """A message as a worker gets it."""

    message: Message
    epoch: int
    """The slot epoch by which the leader gives it."""


class Session:
    """One worker's connection to one life of the leader, for one member id."""

    def __init__(self, number: int, worker: "RingWorker", leader: "RingLeader", member_id: str) -> None:
        self.name = f"session{number}"
        self.worker = worker
        self.leader = leader
        self.member_id = member_id
        self.is_broken = False
        self._last_at: dict[Process, float] = {}

    def send(self, receiver: Process, act: Callable[..., None], *args: object) -> None:
        """In order, after what was sent before in this direction."""
        if not self.is_broken:
            scheduler, mix = self.leader.world.scheduler, self.leader.world.mix
            at = max(scheduler.time + mix.latency_s, self._last_at.get(receiver, 0.0))
            self._last_at[receiver] = at
            scheduler.deliver(at - scheduler.time, receiver, self._arrive, act, *args)

    def _arrive(self, act: Callable[..., None], *args: object) -> None:
        if not self.is_broken:
            act(self, *args)

    def break_off(self, random: Random) -> None:
        """Nothing arrives any more; both sides notice it, each in its own time."""
        if not self.is_broken:
            self.is_broken = True
            scheduler = self.leader.world.scheduler
            scheduler.deliver(random.choice(NOTICE_S), self.worker, self.worker.session_broke, self)
            scheduler.deliver(random.choice(NOTICE_S), self.leader, self.leader.session_broke, self)


class SettlementToken(NamedTuple):
    """An acknowledgement that waits to be durable."""

    session: Session
    number: int


class RingLeader(Process):
    """Hands the messages of each slot to its owner."""

    def __init__(self, world: "RingWorld", random: Random) -> None:
        super().__init__("leader")
        self.world = world
        self._random = random
        self._stored: dict[bytes, bytes] = {}
        self._sessions: dict[str, Session] = {}
        self._made = 0
        self._term = 1
        self._table: Table | None = None
        self.queue = QueuePartition(SETTINGS, term=Term(1), start_offset=0)
        self._asks = 0
        self._ask_for_table()

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + int(self.world.scheduler.time * 1000)

    @property
    def is_done(self) -> bool:
        """Whether every message is settled, and stored."""
        return self.queue.start_offset == len(self.world.witness.messages)

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def crash(self) -> None:
        """The next leader begins with what was stored, and knows no table."""
        self.world.scheduler.crash(self)
        for session in self.sessions:
            session.break_off(self._random)
        self._sessions.clear()
        self._term += 1
        self._table = None
        if self._stored:
            self.queue = QueuePartition.restore(SETTINGS, term=Term(self._term), records=self._stored)
        else:
            self.queue = QueuePartition(SETTINGS, term=Term(self._term), start_offset=0)
        self.read()
        self._ask_for_table()

    def read(self) -> None:
        """There are new messages."""
        messages = self.world.witness.messages[self.queue.next_offset :]
        if messages:
            lanes = array("H", [message.slot for message in messages])
            self.queue.extend(self.now_ms, messages[-1].offset + 1, ScanResult(lanes=lanes))
            self._deliver()

    # --- the table

    def _ask_for_table(self) -> None:
        known = self._table.epoch if self._table is not None else 0
        self._asks += 1
        self.world.membership.table(self, known, partial(self._take_table, self._asks))
        self.world.scheduler.after(TABLE_EVERY_S, self, self._ask_again, self._asks)

    def _ask_again(self, asked: int) -> None:
        if asked == self._asks:
            self._ask_for_table()

    def _take_table(self, asked: int, table: Table) -> None:
        if self._table is None or table.epoch > self._table.epoch:
            self._table = table
            self.queue.assign(self.now_ms, lanes_of(table))
            self.world.scheduler.note(self.name, f"knows table {table.epoch}")
            self._deliver()
        self._ask_again(asked)

    # --- sessions

    def open_session(self, worker: "RingWorker", member_id: str) -> Session:
        self._made += 1
        session = Session(self._made, worker, self, member_id)
        session.send(self, self._attach)
        return session

    def _attach(self, session: Session) -> None:
        self._sessions[session.name] = session
        self.queue.attach(session.name, session.member_id)
        self._deliver()

    def close_session(self, session: Session) -> None:
        """Its worker is another member now."""
        self.queue.release_member(self.now_ms, session.name)
        self._sessions.pop(session.name, None)
        session.is_broken = True
        self._deliver()

    def session_broke(self, session: Session) -> None:
        if self._sessions.pop(session.name, None) is not None:
            self.queue.release_member(self.now_ms, session.name)
            self._deliver()

    def _deliver(self) -> None:
        table = self._table
        for session in self.sessions:
            room = SESSION_CREDIT - self.queue.held_by(session.name)
            if room <= 0 or table is None:
                continue
            for got in self.queue.acquire(self.now_ms, session.name, room):
                for message in self.world.witness.messages[got.first : got.last + 1]:
                    owner = table.owner_of(message.slot)
                    assert owner is not None
                    session.send(session.worker, session.worker.deliver, Delivery(message, owner.epoch))

    def settle(self, session: Session, delivery: Delivery, number: int) -> None:
        """A worker acknowledges. It is answered when that is durable, or refused."""
        message = delivery.message
        result = self.queue.acknowledge(
            self.now_ms,
            session.name,
            message.offset,
            message.offset,
            _ACCEPT,
            epoch=delivery.epoch,
            token=SettlementToken(session, number),
        )
        if result.error != ErrorCode.NONE:
            self.world.tally.add("acknowledgement refused")
            session.send(session.worker, session.worker.settled, number)
            return
        owner = self._table.owner_of(message.slot) if self._table is not None else None
        is_owner = owner is not None and (owner.member_id, owner.epoch) == (session.member_id, delivery.epoch)
        self.world.witness.accepted(message, is_owner=is_owner, by=session.member_id)
        self._save()
        self._deliver()

    def _save(self) -> None:
        changes = self.queue.take_changes()
        if changes is not None:
            self.world.scheduler.after(
                self.world.mix.write_s, self, self._saved, changes.number, changes.records
            )

    def _saved(self, number: int, records: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            self._stored.pop(key, None)
            if value is not None:
                self._stored[key] = value
        for token in self.queue.saved(number):
            assert isinstance(token, SettlementToken)
            token.session.send(token.session.worker, token.session.worker.settled, token.number)
        self._save()
