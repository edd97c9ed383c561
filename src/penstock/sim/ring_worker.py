"""A worker of the ring level: a `MemberCore`, its heartbeats, and handlers that run for a while.

It does what the runtime of `penstock.clique` does on Penstock: one handler at a time for each key, in the order of the
messages; a handler that raises runs again; `start` is asked right before each; an acknowledgement goes to the leader
when the handler has returned, and the slot counts as held until it is answered.
"""

from collections import deque
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.ring import HeartbeatReply
from penstock.ring.heartbeats import HEARTBEAT_TIMEOUTS_PER_LEASE
from penstock.ring.member import MemberCore
from penstock.sim.ring_checks import Running
from penstock.sim.ring_leader import Delivery, Session
from penstock.sim.scheduler import Event, Process

if TYPE_CHECKING:
    from penstock.sim.ring_world import RingWorld

LEASE_MS = 2_000
HEARTBEAT_TIMEOUT_S = LEASE_MS / 1000 / HEARTBEAT_TIMEOUTS_PER_LEASE
RECONNECT_S = 0.1
RETRY_S = 0.05
LOOK_AGAIN_S = 1e-6
LONG_S = (2.5, 5.0)
"""A handler that takes longer than a lease."""


class Execution(NamedTuple):
    """A handler that runs."""

    running: Running
    end: Event
    delivery: Delivery


class Lane:
    """The messages of one key, in order."""

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        self.running: Execution | None = None
        self.retries_at: Event | None = None
        """A handler has raised, and runs again then."""


class RingWorker(Process):
    """One process of a worker."""

    def __init__(self, world: "RingWorld", name: str, worker: str, random: Random, rate: float) -> None:
        super().__init__(name)
        self.world = world
        self._random = random
        self._rate = rate
        self.is_up = True
        self._lives = 0
        self._answered = 0
        """The number of the last heartbeat that was answered."""
        self.core = MemberCore(
            worker=worker, new_member_id=self._new_member_id, now_ms=self.now_ms, lease_ms=LEASE_MS
        )
        self._session: Session | None = None
        self._lanes: dict[str, Lane] = {}
        self._wake_up: Event | None = None
        self._lease_timer: Event | None = None
        self._unsettled: dict[int, tuple[Session, Delivery]] = {}
        """Acknowledgements that are not answered, by number: their slots are held."""
        self._acknowledged = 0
        self._awake()

    def _new_member_id(self) -> str:
        self._lives += 1
        return f"{self.name}.{self._lives}"

    @property
    def now_ms(self) -> float:
        return self.world.scheduler.time * 1000 * self._rate

    def _at(self, local_ms: float) -> float:
        """The world's time when this process's clock shows so much."""
        return local_ms / 1000 / self._rate

    # --- the process

    def crash(self) -> None:
        self.is_up = False
        self.world.scheduler.crash(self)
        self.world.witness.died(self)
        if self._session is not None:
            self._session.break_off(self._random)

    def leave(self) -> None:
        self.core.leave(self.now_ms)
        self._changed()

    def _end(self) -> None:
        """It has left, and nothing runs any more."""
        self.world.scheduler.note(self.name, "has left")
        self.world.tally.add("left")
        self.crash()

    # --- heartbeats

    def _awake(self) -> None:
        """Sends a heartbeat when it is time, and plans the next time."""
        if self.now_ms >= self.core.next_heartbeat_ms and not self.core.has_left:
            heartbeat = self.core.heartbeat(self.now_ms)
            self.world.tally.add("heartbeats")
            self.world.membership.heartbeat(self, heartbeat, self.replied)
            self.world.scheduler.after(HEARTBEAT_TIMEOUT_S, self, self._time_out, heartbeat.sequence)
        if self._wake_up is not None:
            self._wake_up.cancel()
        at = max(self._at(self.core.next_heartbeat_ms), self.world.scheduler.time + 0.001)
        self._wake_up = self.world.scheduler.at(at, self, self._awake)

    def _time_out(self, sequence: int) -> None:
        if sequence > self._answered:
            self.core.unanswered(self.now_ms)
            self._awake()

    def replied(self, reply: HeartbeatReply) -> None:
        if self.is_up:
            self._answered = max(self._answered, reply.sequence)
            before = self.core.table
            self.core.replied(reply, self.now_ms)
            if self.core.table is not before:
                self.world.witness.knows(self)
            self.world.scheduler.note(self.name, f"{reply.status} in epoch {reply.epoch}")
            self._changed()

    def _changed(self) -> None:
        """A reply, or the end of something, may have changed anything."""
        if not self.is_up:
            return
        self._watch_lease()
        self._drop_lost()
        self._release()
        self._acquire()
        self._connect()
        for key in list(self._lanes):
            self._try(key)
        if self.core.has_left and not self.core.running and not self._unsettled:
            self._end()
        else:
            self._awake()

    # --- slots

    def _acquire(self) -> None:
        slots = self.core.take_acquired()
        if slots:
            self._later(self._acquired, list(slots))

    def _acquired(self, slots: list[int]) -> None:
        self.core.acquired(slots)
        self._changed()

    def _release(self) -> None:
        slots = self.core.take_releasable()
        if slots:
            self._later(self._released, slots)

    def _released(self, slots: list[int]) -> None:
        self.core.released(slots, self.now_ms)
        self._changed()

    def _later(self, act: object, slots: list[int]) -> None:
        seconds = self._random.random() * self.world.mix.callback_s
        self.world.scheduler.after(seconds, self, act, slots)  # type: ignore[arg-type]

    def _drop_lost(self) -> None:
        """Forgets messages that the leader gives to the next owner, or gives again: their slot is not granted any
        more by the table by which they came, or a newer one. Those that came by a newer table wait for it."""
        table = self.core.table
        for lane in self._lanes.values():
            lane.waiting = deque(
                each
                for each in lane.waiting
                if (table is not None and table.epoch < each.epoch)
                or self.core.granted.get(each.message.slot) == each.epoch
            )

    # --- the leader

    def _connect(self) -> None:
        session = self._session
        if session is not None and session.member_id != self.core.member_id:
            session.send(session.leader, session.leader.close_session)
            self._forget_session(session)
        if self._session is None and self.core.is_member and not self.core.leaving:
            self._session = self.world.leader.open_session(self, self.core.member_id)

    def session_broke(self, session: Session) -> None:
        if session is self._session:
            self._forget_session(session)
            self.world.scheduler.after(RECONNECT_S, self, self._changed)

    def _forget_session(self, session: Session) -> None:
        """Its messages come again, over the next one; acknowledgements without an answer are given up."""
        self._session = None
        for lane in self._lanes.values():
            lane.waiting.clear()
        for number in [number for number, (sent, _) in self._unsettled.items() if sent is session]:
            self._settled(number)

    def deliver(self, session: Session, delivery: Delivery) -> None:
        if self.is_up and session is self._session:
            lane = self._lanes.setdefault(delivery.message.key, Lane())
            lane.waiting.append(delivery)
            self._drop_lost()
            self._try(delivery.message.key)

    # --- handlers

    def _try(self, key: str) -> None:
        """Starts the next message of a key, if it may."""
        lane = self._lanes[key]
        if lane.running is not None or lane.retries_at is not None or not lane.waiting:
            return
        delivery = lane.waiting[0]
        epoch = self.core.start(delivery.message.slot, self.now_ms)
        if epoch is None:
            return
        lane.waiting.popleft()
        mix, message = self.world.mix, delivery.message
        is_blocking = self._random.random() < mix.blocking
        running = self.world.witness.started(
            self, self.core.member_id, epoch, message, is_blocking=is_blocking
        )
        self.world.scheduler.note(self.name, f"starts {message} with {epoch}")
        self.world.tally.add("handlers started")
        is_long = not self.world.is_calm and self._random.random() < mix.long_handler
        seconds = self._random.uniform(*LONG_S) if is_long else mix.handler_s * self._random.random()
        end = self.world.scheduler.after(seconds, self, self._finish, key, delivery)
        lane.running = Execution(running, end, delivery)

    def _finish(self, key: str, delivery: Delivery) -> None:
        """A handler returns, or raises."""
        lane = self._lanes[key]
        assert lane.running is not None
        failed = not self.world.is_calm and self._random.random() < self.world.mix.failing
        self.world.witness.ended(lane.running.running, is_completed=not failed)
        lane.running = None
        if failed:
            self._repeat(lane, key, delivery)
        else:
            self._acknowledge(delivery)
            self._try(key)

    def _repeat(self, lane: Lane, key: str, delivery: Delivery) -> None:
        """The message keeps its place."""
        lane.waiting.appendleft(delivery)
        lane.retries_at = self.world.scheduler.after(RETRY_S, self, self._retry, key)
        self.core.finish(delivery.message.slot)
        self._changed()

    def _retry(self, key: str) -> None:
        self._lanes[key].retries_at = None
        self._drop_lost()
        self._try(key)

    def _acknowledge(self, delivery: Delivery) -> None:
        """To the session over which messages come now: if it is another one, the leader refuses."""
        session = self._session
        if session is None or session.is_broken:
            self.core.finish(delivery.message.slot)
            self._changed()
        else:
            self._acknowledged += 1
            self._unsettled[self._acknowledged] = session, delivery
            session.send(session.leader, session.leader.settle, delivery, self._acknowledged)

    def settled(self, session: Session, number: int) -> None:
        if self.is_up and number in self._unsettled:
            self._settled(number)
            self._changed()

    def _settled(self, number: int) -> None:
        _, delivery = self._unsettled.pop(number)
        self.core.finish(delivery.message.slot)

    # --- the lease

    def _watch_lease(self) -> None:
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        if self.now_ms >= self.core.lease_ends_ms:
            self._cancel_handlers()
        else:
            # Not at once: what is computed back from the worker's clock may be rounded to this very moment.
            at = max(self._at(self.core.lease_ends_ms), self.world.scheduler.time + LOOK_AGAIN_S)
            self._lease_timer = self.world.scheduler.at(at, self, self._changed)

    def _cancel_handlers(self) -> None:
        """The lease is over. Handlers that can be cancelled are; nothing stops the others, and they are excused."""
        self.world.witness.excuse(self, blocking_only=True)
        for lane in self._lanes.values():
            execution = lane.running
            if execution is not None and not execution.running.is_blocking:
                execution.end.cancel()
                lane.running = None
                lane.waiting.appendleft(execution.delivery)
                self.world.witness.ended(execution.running, is_completed=False)
                self.world.tally.add("handlers cancelled")
                self.world.scheduler.note(self.name, f"cancels {execution.delivery.message}")
                self.core.finish(execution.delivery.message.slot)
