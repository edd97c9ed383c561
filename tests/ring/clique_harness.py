"""A clique on a table top: workers, a coordinator whose writes the test commits, and a clock that the test moves."""

from collections.abc import Iterator
from itertools import count

from penstock.effects import Effect, Persist, Reply
from penstock.ring import SLOTS, CliqueLimits, Heartbeat, HeartbeatReply, Table
from penstock.ring.coordinator import CliqueCoordinator
from penstock.ring.member import MemberCore

LEASE_MS = 8_000
START_MS = 1_000_000_000
CLIQUE = "pricing"


class TestHost:
    """Hosts a coordinator: commits what it persists, at once or when the test says so, and collects its replies."""

    __test__ = False

    def __init__(self, limits: CliqueLimits | None = None) -> None:
        self.now_ms = START_MS
        self.limits = limits or CliqueLimits()
        self.log: dict[bytes, bytes | None] = {}
        self.writes: list[Persist] = []
        self.commits = True
        """Whether writes are committed at once."""
        self.replies: dict[object, object] = {}
        self.written = 0
        self._tokens = count(1)
        self.core = CliqueCoordinator(self.limits)
        self.carry_out(self.core.loaded(self.now_ms))

    def heartbeat(self, heartbeat: Heartbeat, wait_ms: int = 0, clique: str = CLIQUE) -> object:
        """The token under which the reply will be found."""
        token = next(self._tokens)
        self.carry_out(self.core.heartbeat(self.now_ms, token, clique, heartbeat, wait_ms))
        return token

    def table(self, known_epoch: int = 0, wait_ms: int = 0, clique: str = CLIQUE) -> object:
        token = next(self._tokens)
        self.carry_out(self.core.table(self.now_ms, token, clique, known_epoch, wait_ms))
        return token

    def reply(self, token: object) -> HeartbeatReply:
        reply = self.replies.pop(token)
        assert isinstance(reply, HeartbeatReply), reply
        return reply

    def newest_table(self, clique: str = CLIQUE) -> Table:
        table = self.replies.pop(self.table(clique=clique))
        assert isinstance(table, Table)
        return table

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token not in self.replies, "answered twice"
                self.replies[effect.token] = effect.result
            else:
                self.writes.append(effect)
        if self.commits:
            self.commit()

    def commit(self, ok: bool = True) -> None:
        """Commits all writes that wait, or lets them fail."""
        while self.writes:
            write = self.writes.pop(0)
            if ok:
                self.log.update(write.records)
                self.written += 1
            self.carry_out(self.core.persisted(self.now_ms, write.id, ok))

    def pass_time(self, ms: int) -> None:
        """Lets time pass, with a tick whenever one is due."""
        end_ms = self.now_ms + ms
        while (due_ms := self.core.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.core.tick(self.now_ms))
        self.now_ms = end_ms

    def fail_over(self) -> None:
        """Another node loads what was committed; requests that wait are never answered."""
        self.writes.clear()
        self.core = CliqueCoordinator(self.limits)
        for key, value in self.log.items():
            self.core.replay(key, value)
        self.carry_out(self.core.loaded(self.now_ms))


class Worker:
    """A worker whose callbacks finish at once, and that talks to the coordinator when the test says so."""

    def __init__(self, host: TestHost, name: str, lease_ms: int = LEASE_MS) -> None:
        self.host = host
        ids = _member_ids(name)
        self.core = MemberCore(
            worker=name,
            new_member_id=lambda: next(ids),
            now_ms=host.now_ms,
            lease_ms=lease_ms,
            streams=("orders",),
        )

    def heartbeat(self) -> HeartbeatReply:
        """One heartbeat and its reply."""
        reply = self.host.reply(self.host.heartbeat(self.core.heartbeat(self.host.now_ms)))
        self.take(reply)
        return reply

    def take(self, reply: HeartbeatReply) -> None:
        self.core.replied(reply, self.host.now_ms)
        self.work()

    def work(self) -> None:
        """on_release and on_acquire finish at once."""
        self.core.released(self.core.take_releasable(), self.host.now_ms)
        self.core.acquired(self.core.take_acquired())

    def join(self) -> None:
        while not self.core.is_member:
            self.heartbeat()

    @property
    def startable(self) -> set[int]:
        """The slots for which it could start a handler now."""
        return {slot for slot in range(SLOTS) if self.core.may_start(slot, self.host.now_ms) is not None}


_incarnations = count(1)


def _member_ids(name: str) -> Iterator[str]:
    return (f"{name}-{number}" for number in _incarnations)


def settle(*workers: Worker) -> None:
    """Heartbeats in turn until nothing changes any more."""
    while True:
        before = [worker.core.epoch for worker in workers]
        for worker in workers:
            worker.heartbeat()
        if before == [worker.core.epoch for worker in workers]:
            return
