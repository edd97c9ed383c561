"""How workers of the ring level reach the state of their clique: over a coordinator that fails over, or over a cell
with compare-and-set.

Both take a heartbeat and send the reply over a network that loses, repeats and delays. A coordinator's log is one
dictionary that all nodes share: a write is in it when it is committed, and a node that does not lead commits nothing.
Consensus itself is the business of the other levels.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.effects import Effect, Persist, Reply
from penstock.ring import Heartbeat, HeartbeatReply, Table
from penstock.ring.clique_state import CliqueState
from penstock.ring.coordinator import CliqueCoordinator
from penstock.ring.heartbeats import HEARTBEAT_TIMEOUTS_PER_LEASE
from penstock.ring.observer import SilenceObserver, apply_heartbeat, conflict_pause_s
from penstock.ring.state_codec import decode_state, encode_state
from penstock.sim.clock import EPOCH_MS
from penstock.sim.scheduler import Process

if TYPE_CHECKING:
    from penstock.sim.ring_world import RingWorld

CLIQUE = "sim"
HEARTBEAT_WAIT_MS = 400
TABLE_WAIT_MS = 1_000
ELECTION_S = (0.2, 1.0)
"""How long there is no coordinator after one has failed."""

TakeReply = Callable[[HeartbeatReply], None]
TakeTable = Callable[[Table], None]


class Waiting(NamedTuple):
    """A request that waits for its reply."""

    sender: Process
    take: Callable[..., None]


class Membership(Protocol):
    """What workers and the leader of the partition ask."""

    def heartbeat(self, sender: Process, heartbeat: Heartbeat, take: TakeReply) -> None: ...

    def table(self, sender: Process, known_epoch: int, take: TakeTable) -> None: ...


class CoordinatorNode(Process):
    """A node that can host the coordinator."""

    def __init__(self, world: "RingWorld", number: int, rate: float) -> None:
        super().__init__(f"node{number}")
        self._world = world
        self._rate = rate
        self.term = 0
        """In which it leads, if it is the world's term."""
        self.core: CliqueCoordinator | None = None
        self._tick_at: int | None = None

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + int(self._world.scheduler.time * self._rate * 1000)

    @property
    def serves(self) -> bool:
        """A leader that was replaced finds its lease ended."""
        return self.core is not None and self.term == self._world.coordinators.term

    def lead(self, term: int, log: dict[bytes, bytes | None]) -> None:
        """Loads what was committed."""
        self.term = term
        self.core = CliqueCoordinator()
        for key, value in log.items():
            self.core.replay(key, value)
        self._carry_out(self.core.loaded(self.now_ms))

    def stop(self) -> None:
        """The process has died, or hosts no coordinator any more."""
        self.core = None

    # --- requests

    def receive_heartbeat(self, sender: Process, data: Heartbeat, take: TakeReply) -> None:
        if self.serves and self.core is not None:
            token = Waiting(sender, take)
            self._carry_out(self.core.heartbeat(self.now_ms, token, CLIQUE, data, HEARTBEAT_WAIT_MS))

    def receive_table_request(self, sender: Process, known_epoch: int, take: TakeTable) -> None:
        if self.serves and self.core is not None:
            token = Waiting(sender, take)
            self._carry_out(self.core.table(self.now_ms, token, CLIQUE, known_epoch, TABLE_WAIT_MS))

    # --- effects

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._world.coordinators.append(self, effect)
            elif isinstance(effect, Reply):
                self._reply(effect)
        self._set_timer()

    def _reply(self, effect: Reply) -> None:
        token = effect.token
        assert isinstance(token, Waiting)
        if isinstance(effect.result, (HeartbeatReply, Table)):
            self._world.network.send(self, token.sender, token.take, effect.result)

    def report(self, term: int, write: Persist, ok: bool) -> None:
        """A write is committed, or has failed."""
        if self.core is not None and self.term == term:
            self._carry_out(self.core.persisted(self.now_ms, write.id, ok))

    def _set_timer(self) -> None:
        due_ms = self.core.next_deadline_ms if self.core is not None else None
        if due_ms is None or due_ms == self._tick_at:
            return
        self._tick_at = due_ms
        seconds = max(0.0, (due_ms - self.now_ms) / 1000 / self._rate)
        self._world.scheduler.after(seconds + 0.0005, self, self._tick, self.term, due_ms)

    def _tick(self, term: int, due_ms: int) -> None:
        if self._tick_at == due_ms:
            self._tick_at = None
        if self.core is not None and self.term == term:
            self._carry_out(self.core.tick(self.now_ms))


class Coordinators:
    """The nodes of the state topic, one of which leads."""

    def __init__(self, world: "RingWorld", random: Random, rates: list[float]) -> None:
        self._world = world
        self._random = random
        self.term = 0
        self._log: dict[bytes, bytes | None] = {}
        self._pending: list[tuple[CoordinatorNode, int, Persist]] = []
        """Writes that are appended and not committed, oldest first."""
        self.nodes = [CoordinatorNode(world, number, rate) for number, rate in enumerate(rates, start=1)]
        self.leader: CoordinatorNode = self.nodes[0]
        self._elect(self.leader)

    # --- Membership

    def heartbeat(self, sender: Process, heartbeat: Heartbeat, take: TakeReply) -> None:
        node = self._node()
        self._world.network.send(sender, node, node.receive_heartbeat, sender, heartbeat, take)

    def table(self, sender: Process, known_epoch: int, take: TakeTable) -> None:
        node = self._node()
        self._world.network.send(sender, node, node.receive_table_request, sender, known_epoch, take)

    def _node(self) -> CoordinatorNode:
        """Mostly the leader; some ask where it was before."""
        return self.leader if self._random.random() < 0.9 else self._random.choice(self.nodes)

    # --- the log

    def append(self, node: CoordinatorNode, write: Persist) -> None:
        entry = node, node.term, write
        mix = self._world.mix
        if node.term != self.term:
            # It was replaced, and learns that no majority follows it any more.
            self._world.scheduler.deliver(mix.latency_s, node, node.report, node.term, write, False)
            return
        self._pending.append(entry)
        seconds = mix.write_s * (0.5 + self._random.random())
        ok = self._world.is_calm or self._random.random() >= mix.failed_write
        self._world.scheduler.after(seconds, None, self._written, entry, ok)

    def _written(self, entry: tuple[CoordinatorNode, int, Persist], ok: bool) -> None:
        if entry not in self._pending:
            return  # its leader was replaced
        self._pending.remove(entry)
        node, term, write = entry
        if ok:
            self._commit(write)
        self._world.scheduler.deliver(0.0, node, node.report, term, write, ok)

    def _commit(self, write: Persist) -> None:
        self._log.update(write.records)
        for _, value in write.records:
            if value is not None:
                self._world.witness.committed(decode_state(value))

    # --- changes of the leader

    def fail_over(self) -> None:
        """Another node leads. The one before may go on for a while without knowing it. Of the writes that it had not
        committed, some of the first ones are in the log of the next leader."""
        before = self.leader
        self.term += 1
        survivors = self._random.randint(0, len(self._pending))
        lost = self._pending[survivors:]
        for _, _, write in self._pending[:survivors]:
            self._commit(write)
        self._pending.clear()
        for node, term, write in lost:
            self._world.scheduler.deliver(self._random.uniform(0, 2), node, node.report, term, write, False)
        if self._random.random() < 0.3:
            before.stop()
        other = self._random.choice([node for node in self.nodes if node is not before])
        self.leader = other
        seconds = 0.1 if self._world.is_calm else self._random.uniform(*ELECTION_S)
        self._world.scheduler.after(seconds, None, self._elect, other)

    def _elect(self, node: CoordinatorNode) -> None:
        if node is self.leader:
            self.term += 1
            node.lead(self.term, self._log)


class Cell:
    """One value with compare-and-set, and the members that judge each other by it."""

    def __init__(self, world: "RingWorld", random: Random) -> None:
        self._world = world
        self._random = random
        self._data = encode_state(CliqueState.begin(EPOCH_MS))
        self._revision = 1
        self._server = Process("cell")
        self._observers: dict[str, SilenceObserver] = {}

    def heartbeat(self, sender: Process, heartbeat: Heartbeat, take: TakeReply) -> None:
        """Reads, applies, writes, and again if another was faster, until the next heartbeat is sent instead."""
        until = self._world.scheduler.time + heartbeat.lease_ms / 1000 / HEARTBEAT_TIMEOUTS_PER_LEASE
        self._try(CellWrite(sender, heartbeat, take, until), 0)

    def _try(self, write: "CellWrite", conflicts: int) -> None:
        if self._world.is_running(write.sender, write.heartbeat) and self._world.scheduler.time < write.until:
            self._read(write.sender, lambda data, revision: self._apply(write, conflicts, data, revision))

    def table(self, sender: Process, known_epoch: int, take: TakeTable) -> None:
        def read(data: bytes, revision: int) -> None:
            table = decode_state(data).table
            if table.epoch > known_epoch:
                take(table)

        self._read(sender, read)

    def _read(self, sender: Process, then: Callable[[bytes, int], None]) -> None:
        answer = once(then)

        def read() -> None:
            self._world.network.send(self._server, sender, answer, self._data, self._revision)

        self._world.network.send(sender, self._server, read)

    def _apply(self, write: "CellWrite", conflicts: int, data: bytes, revision: int) -> None:
        """In the sender's process, with its clock."""
        sender, heartbeat = write.sender, write.heartbeat
        if not self._world.is_running(sender, heartbeat):
            return
        state = decode_state(data)
        observer = self._observers.setdefault(sender.name, SilenceObserver())
        silent = observer.silent(state, self._world.clock_of(sender))
        state, reply = apply_heartbeat(state, heartbeat, silent, EPOCH_MS)

        def written(ok: bool) -> None:
            if ok:
                write.take(reply)
                return
            pause_s = conflict_pause_s(conflicts + 1) * self._random.random()
            self._world.scheduler.after(pause_s, sender, self._try, write, conflicts + 1)

        answer = once(written)

        def put() -> None:
            ok = self._put(revision, state)
            self._world.network.send(self._server, sender, answer, ok)

        self._world.network.send(sender, self._server, put)

    def _put(self, revision: int, state: CliqueState) -> bool:
        if revision != self._revision:
            return False
        self._data, self._revision = encode_state(state), revision + 1
        self._world.witness.committed(state)
        return True


class CellWrite(NamedTuple):
    """A heartbeat on its way into the cell."""

    sender: Process
    heartbeat: Heartbeat
    take: TakeReply
    until: float
    """When its sender gives it up."""


def once(act: Callable[..., None]) -> Callable[..., None]:
    """Takes the first answer to a request, however often it comes."""
    answers: list[object] = []

    def take(*args: object) -> None:
        answers.append(None)
        if len(answers) == 1:
            act(*args)

    return take
