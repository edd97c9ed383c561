"""CliqueCoordinator: all cliques of one partition of the state topic, as a durable core (`penstock.effects`).

Requests come in with a token, and each is answered exactly once by a Reply effect:

    heartbeat(now_ms, token, clique, heartbeat, wait_ms)           -> HeartbeatReply     a worker's report
    table(now_ms, token, clique, known_epoch, wait_ms)   -> Table | None  for leaders; None if the clique is not stored
    describe(now_ms, clique), listed(now_ms), outlines()                  answered from memory, directly

With `wait_ms` a reply that has no news is held back until there are some, at most so long (heartbeats: at most a
quarter of the lease), so that handovers are quick. News for a worker are changes of its own slots: if all were told of
each step of a handover, a clique of n workers would send n * n tables when one joins. A refused request raises
KafkaError at once.

Stored: one record per clique, key `int16 1 | name in UTF-8`, value as in `state_codec.py`. A clique without members
keeps its record for a week: so its epochs go on, and workers that come back after all of them had stopped find their
slots.

Invariants (those of `clique_state.py` are cited as S1...):
 1. No worker is told a state that is not committed, and memory holds only committed states. While a write of a clique
    is under way its next requests wait, and are then taken together: one write for many workers that join at once.
 2. A member's lease is over here when the coordinator has not taken a heartbeat of it for `lease_ms`, counted from the
    receipt. The worker counts from the sending of that heartbeat, so its lease has ended before (S2).
 3. A coordinator that has just loaded gives all members a whole lease: its predecessor may have taken a heartbeat a
    moment before. It answered none after this one was elected, because a leader without a lease does not serve
    (`CoreHost.serves`).
 4. A coordinator that was paused itself does the same: heartbeats may be waiting to be read.
 5. A newcomer whose name is taken, and who goes on asking, succeeds to the slots when the lease of the other one ends.
"""

from collections.abc import Iterable
from struct import Struct

import msgspec

from penstock.effects import Effect, Outbox
from penstock.errors import ErrorCode, KafkaError, UnknownFormat
from penstock.ring.clique_changes import CliqueCounters, Members, gone, tell_changes
from penstock.ring.clique_state import CliqueState, changed_workers
from penstock.ring.descriptions import CliqueDescription, CliqueOutline, describe_clique, outline_clique
from penstock.ring.heartbeats import (
    LIMITS,
    CliqueLimits,
    Heartbeat,
    HeartbeatReply,
    HeartbeatStatus,
    check_clique_name,
)
from penstock.ring.state_codec import decode_state, encode_state
from penstock.timers import Timers
from penstock.types import NO_EVENTS, EventSink

IDLE_RETENTION_MS = 7 * 24 * 3_600_000
"""How long a clique without members is remembered."""
PAUSE_TOLERANCE_MS = 500
"""A deadline that is noticed later than this found the coordinator paused (4)."""
TABLE_WAIT_MS_MAX = 30_000
"""The longest that a question for the table is held back."""
HEARTBEAT_WAITS_PER_LEASE = 4
NEWCOMER_ASKS_PER_LEASE = 2
"""A newcomer that has not asked for its taken name for longer than this part of its lease has given up."""
WRITE_RETRY_MS = 1_000
"""When a deadline is looked at again whose consequence could not be stored."""
LEASE, WAIT, IDLE = "lease", "wait", "idle"

_KEY = Struct(">h")
_KEY_VERSION = 1


class _TableRequest(msgspec.Struct, frozen=True, kw_only=True):
    token: object
    known_epoch: int


class _HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    token: object
    heartbeat: Heartbeat
    wait_ms: int


class _Clique:
    """One clique and those who wait for it."""

    def __init__(self, name: str, state: CliqueState, *, is_stored: bool) -> None:
        self.name = name
        self.state = state
        """As committed (1)."""
        self.is_stored = is_stored
        """Whether there is a record of it: a clique that is only asked about leaves none."""
        self.is_writing = False
        self.requests: list[_HeartbeatRequest] = []
        """Not taken yet."""
        self.newcomers: dict[str, tuple[Heartbeat, int]] = {}
        """By worker: the newest heartbeat of one whose name is taken, and when it came (5)."""
        self.overdue: dict[str, int] = {}
        """By member id: slots that a member reports as overdue (`Heartbeat.overdue`); none without an entry."""
        self.waiting: dict[str, _HeartbeatRequest | _TableRequest] = {}
        """Replies that are held back for want of news."""


class CliqueCoordinator:
    """Times are milliseconds that never go back; the host calls `tick` at `next_deadline_ms`."""

    applies_early = False
    topics_version = -1

    def __init__(
        self,
        limits: CliqueLimits = LIMITS,
        events: EventSink = NO_EVENTS,
        counters: CliqueCounters | None = None,
    ) -> None:
        self._limits = limits
        self._events = events
        self.counters = counters or CliqueCounters()
        self._outbox = Outbox()
        self._cliques: dict[str, _Clique] = {}
        self._timers = Timers()
        self._waits = 0
        """Numbers the replies that are held back."""

    # --- requests

    def heartbeat(
        self, now_ms: int, token: object, clique: str, heartbeat: Heartbeat, wait_ms: int = 0
    ) -> list[Effect]:
        """Replies with a HeartbeatReply, when what it says is committed."""
        heartbeat.check(self._limits)
        hosted = self._cliques.get(clique) or self._new(now_ms, clique)
        hosted.requests.append(_HeartbeatRequest(token=token, heartbeat=heartbeat, wait_ms=wait_ms))
        self._advance(now_ms, hosted)
        return self._outbox.take()

    def table(
        self, now_ms: int, token: object, clique: str, known_epoch: int, wait_ms: int = 0
    ) -> list[Effect]:
        """Replies with the newest Table, or with None for a clique that is not stored. If it is not newer than
        `known_epoch`, the reply waits for a newer one, at most `wait_ms`."""
        hosted = self._stored(clique)
        if hosted is None:
            self._outbox.reply(token, None)
        elif hosted.state.epoch > known_epoch or wait_ms <= 0:
            self._outbox.reply(token, hosted.state.table)
        else:
            request = _TableRequest(token=token, known_epoch=known_epoch)
            self._hold_back(hosted, request, now_ms + min(wait_ms, TABLE_WAIT_MS_MAX))
        return self._outbox.take()

    def describe(self, now_ms: int, clique: str) -> CliqueDescription | None:
        """None for a clique that is not stored."""
        hosted = self._stored(clique)
        if hosted is None:
            return None
        left_ms = {
            member.member_id: self._lease_left_ms(now_ms, hosted, worker)
            for worker, member in hosted.state.members.items()
        }
        return describe_clique(clique, hosted.state, left_ms, hosted.overdue)

    def listed(self, now_ms: int) -> list[CliqueDescription]:
        """All cliques that are stored, also those without members."""
        described = (self.describe(now_ms, name) for name in sorted(self._cliques))
        return [each for each in described if each is not None]

    def outlines(self) -> list[CliqueOutline]:
        """The same in brief."""
        return [
            outline_clique(name, hosted.state)
            for name, hosted in sorted(self._cliques.items())
            if hosted.is_stored
        ]

    def _stored(self, name: str) -> _Clique | None:
        hosted = self._cliques.get(name)
        return hosted if hosted is not None and hosted.is_stored else None

    def _new(self, now_ms: int, name: str) -> _Clique:
        """A clique that is not stored before a worker has joined: the first heartbeat of a worker only introduces
        it."""
        check_clique_name(name)
        if len(self._cliques) >= self._limits.max_cliques:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"there are {len(self._cliques)} cliques on this partition already: "
                f"expected at most {self._limits.max_cliques} (limits.max_cliques)",
            )
        return _Clique(name, CliqueState.begin(now_ms), is_stored=False)

    # --- called by the host

    def replay(self, key: bytes, value: bytes | None) -> None:
        name = decode_key(key)
        if value is None:
            self._cliques.pop(name, None)
        else:
            self._cliques[name] = _Clique(name, decode_state(value), is_stored=True)

    def loaded(self, now_ms: int) -> list[Effect]:
        """Gives every member a whole lease (3)."""
        self._renew_all(now_ms)
        for hosted in self._cliques.values():
            self._plan_forgetting(now_ms, hosted)
        return self._outbox.take()

    @property
    def next_deadline_ms(self) -> int | None:
        return self._timers.next_ms

    def tick(self, now_ms: int) -> list[Effect]:
        self._notice_pause(now_ms)
        for kind, name, *rest in list(self._timers.due(now_ms)):
            hosted = self._cliques.get(name)
            if hosted is None:
                continue
            if kind == WAIT:
                self._answer_waiting(hosted, rest[0])
            elif kind == IDLE:
                self._forget(now_ms, hosted)
            else:
                self._advance(now_ms, hosted)
        return self._outbox.take()

    def persisted(self, now_ms: int, persist_id: int, ok: bool) -> list[Effect]:
        self._outbox.persisted(now_ms, persist_id, ok)
        return self._outbox.take()

    def _notice_pause(self, now_ms: int) -> None:
        """A deadline that should have been noticed long ago says that the coordinator was paused (4). Leases end only
        in `tick`, so this comes in time."""
        due_ms = self._timers.next_ms
        if due_ms is not None and now_ms - due_ms > PAUSE_TOLERANCE_MS:
            self._renew_all(now_ms)

    def _renew_all(self, now_ms: int) -> None:
        for hosted in self._cliques.values():
            for worker, member in hosted.state.members.items():
                self._timers.set((LEASE, hosted.name, worker, member.member_id), now_ms + member.lease_ms)

    # --- one clique

    def _advance(self, now_ms: int, hosted: _Clique) -> None:
        """Takes the requests that wait, and removes members whose leases are over; after a write that is under way
        (1)."""
        if hosted.is_writing:
            return
        requests, hosted.requests = hosted.requests, []
        state = hosted.state
        for request in requests:
            state, _ = state.heartbeat(request.heartbeat, now_ms, self._limits)
            self._renew(now_ms, hosted.name, state, request.heartbeat)
            _note_overdue(hosted, request.heartbeat)
        heard = state
        state = self._without_expired(now_ms, hosted, state)
        if state is hosted.state:
            self._answer(now_ms, hosted, requests)
        else:
            self._write(hosted, state, requests, expired=gone(heard, state))

    def _renew(self, now_ms: int, name: str, state: CliqueState, heartbeat: Heartbeat) -> None:
        """A heartbeat of a member was received: its lease counts from now (2)."""
        if state.has_member(heartbeat.worker, heartbeat.member_id):
            lease_ms = state.members[heartbeat.worker].lease_ms
            self._timers.set((LEASE, name, heartbeat.worker, heartbeat.member_id), now_ms + lease_ms)

    def _without_expired(self, now_ms: int, hosted: _Clique, state: CliqueState) -> CliqueState:
        for worker, member in list(state.members.items()):
            if (LEASE, hosted.name, worker, member.member_id) in self._timers:
                continue
            newcomer = self._newcomer(now_ms, hosted, worker)
            if newcomer is not None:
                state = state.succeed(member.member_id, newcomer, now_ms)
                self._renew(now_ms, hosted.name, state, newcomer)
            state = state.expire(worker, member.member_id, now_ms)
        return state

    def _newcomer(self, now_ms: int, hosted: _Clique, worker: str) -> Heartbeat | None:
        """The one that waits for this name and has asked for it lately (5)."""
        heartbeat, asked_ms = hosted.newcomers.pop(worker, (None, 0))
        if heartbeat is None or now_ms - asked_ms > heartbeat.lease_ms / NEWCOMER_ASKS_PER_LEASE:
            return None
        return heartbeat

    def _write(
        self, hosted: _Clique, state: CliqueState, requests: list[_HeartbeatRequest], *, expired: Members
    ) -> None:
        hosted.is_writing = True
        self._cliques[hosted.name] = hosted

        def written(now_ms: int, ok: bool) -> None:
            hosted.is_writing = False
            if ok:
                self.counters.count(hosted.state, state, expired)
                tell_changes(self._events, hosted.name, hosted.state, state, expired)
                self._committed(now_ms, hosted, state, requests)
            else:
                self._not_written(now_ms, hosted, requests)
            self._advance(now_ms, hosted)

        self._outbox.persist([(encode_key(hosted.name), encode_state(state))], written)

    def _committed(
        self, now_ms: int, hosted: _Clique, state: CliqueState, requests: list[_HeartbeatRequest]
    ) -> None:
        concerned = changed_workers(hosted.state, state)
        hosted.state, hosted.is_stored = state, True
        present = {member.member_id for member in state.members.values()} if hosted.overdue else set()
        hosted.overdue = {one: count for one, count in hosted.overdue.items() if one in present}
        for request in requests:
            # The write may have taken longer than the lease that counts from the receipt.
            self._renew(now_ms, hosted.name, state, request.heartbeat)
        self._answer(now_ms, hosted, requests)
        for number, waiting in list(hosted.waiting.items()):
            if isinstance(waiting, _TableRequest) or waiting.heartbeat.worker in concerned:
                self._answer_waiting(hosted, number)
        self._plan_forgetting(now_ms, hosted)

    def _not_written(self, now_ms: int, hosted: _Clique, requests: list[_HeartbeatRequest]) -> None:
        """The state is as it was. Leases that are over are looked at again a little later, not in a circle."""
        refused = KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "the state of the clique could not be written"
        )
        for request in requests:
            self._outbox.reply(request.token, refused)
        for worker, member in hosted.state.members.items():
            lease = (LEASE, hosted.name, worker, member.member_id)
            if lease not in self._timers:
                self._timers.set(lease, now_ms + WRITE_RETRY_MS)
        if not hosted.is_stored:
            del self._cliques[hosted.name]

    # --- replies

    def _answer(self, now_ms: int, hosted: _Clique, requests: Iterable[_HeartbeatRequest]) -> None:
        for request in requests:
            heartbeat, reply = request.heartbeat, hosted.state.answer(request.heartbeat)
            if reply.status is HeartbeatStatus.NAME_TAKEN:
                reply = self._ask_again(now_ms, hosted, heartbeat, reply)
            if reply.status is HeartbeatStatus.OK and reply.table is None and request.wait_ms > 0:
                self._replace_waiting(hosted, heartbeat)
                wait_ms = min(request.wait_ms, reply.lease_ms // HEARTBEAT_WAITS_PER_LEASE)
                self._hold_back(hosted, request, now_ms + wait_ms)
            else:
                self._outbox.reply(request.token, reply)

    def _ask_again(
        self, now_ms: int, hosted: _Clique, heartbeat: Heartbeat, reply: HeartbeatReply
    ) -> HeartbeatReply:
        """The newcomer is noted, and asks again when the lease of the other one has ended."""
        if hosted.state.may_join(heartbeat):
            hosted.newcomers[heartbeat.worker] = heartbeat, now_ms
        left_ms = self._lease_left_ms(now_ms, hosted, heartbeat.worker)
        return msgspec.structs.replace(reply, retry_ms=max(1, left_ms))

    def _lease_left_ms(self, now_ms: int, hosted: _Clique, worker: str) -> int:
        member = hosted.state.members[worker]
        due_ms = self._timers.deadline_ms((LEASE, hosted.name, worker, member.member_id))
        return 0 if due_ms is None else max(0, due_ms - now_ms)

    def _hold_back(self, hosted: _Clique, request: _HeartbeatRequest | _TableRequest, until_ms: int) -> None:
        self._waits += 1
        number = str(self._waits)
        hosted.waiting[number] = request
        self._timers.set((WAIT, hosted.name, number), until_ms)

    def _replace_waiting(self, hosted: _Clique, heartbeat: Heartbeat) -> None:
        """A member has one reply held back at most: its next heartbeat sets free the one before."""
        for number, request in list(hosted.waiting.items()):
            if isinstance(request, _HeartbeatRequest) and request.heartbeat.member_id == heartbeat.member_id:
                self._answer_waiting(hosted, number)

    def _answer_waiting(self, hosted: _Clique, number: str) -> None:
        request = hosted.waiting.pop(number)
        self._timers.cancel((WAIT, hosted.name, number))
        state = hosted.state
        answer = state.table if isinstance(request, _TableRequest) else state.answer(request.heartbeat)
        self._outbox.reply(request.token, answer)

    # --- cliques without members

    def _plan_forgetting(self, now_ms: int, hosted: _Clique) -> None:
        if hosted.state.members:
            self._timers.cancel((IDLE, hosted.name))
        else:
            due_ms = hosted.state.changed_ms + IDLE_RETENTION_MS
            self._timers.set((IDLE, hosted.name), max(now_ms, due_ms))

    def _forget(self, now_ms: int, hosted: _Clique) -> None:
        """Deletes the record of a clique that had no members for a week."""
        if hosted.is_writing or hosted.state.members:
            return
        hosted.is_writing = True

        def written(now_ms: int, ok: bool) -> None:
            hosted.is_writing = False
            if ok:
                del self._cliques[hosted.name]
                hosted.state, hosted.is_stored = CliqueState.begin(now_ms), False
            else:
                self._timers.set((IDLE, hosted.name), now_ms + WRITE_RETRY_MS)
            self._advance(now_ms, hosted)

        self._outbox.persist([(encode_key(hosted.name), None)], written)


def _note_overdue(hosted: _Clique, heartbeat: Heartbeat) -> None:
    if heartbeat.overdue and hosted.state.has_member(heartbeat.worker, heartbeat.member_id):
        hosted.overdue[heartbeat.member_id] = heartbeat.overdue
    else:
        hosted.overdue.pop(heartbeat.member_id, None)


def encode_key(clique: str) -> bytes:
    return _KEY.pack(_KEY_VERSION) + clique.encode()


def decode_key(key: bytes) -> str:
    """UnknownFormat for the key of a later version."""
    if key[: _KEY.size] != _KEY.pack(_KEY_VERSION):
        raise UnknownFormat(f"a record of cliques has the key {key[:16].hex()}: expected one of version 1")
    try:
        return key[_KEY.size :].decode()
    except UnicodeDecodeError:
        raise UnknownFormat(f"a record of cliques has a name that is not UTF-8: {key[:80].hex()}") from None
