"""Transcripts: commands and their effects, as text that a person can follow.

A line that begins with `>` is a command, with `>>` one whose output is not shown. The lines after it are the effects of
the replicas, in order. `play` runs the commands and compares the whole text.

    elect N            N's deadline comes, everything is saved, flushed and delivered until N leads
    tick N             the clock moves to N's deadline
    wait S             the clock moves by S seconds, each replica whose deadline passes is ticked
    save N, flush N    N's disk saves its hard state, or flushes its log
    propose N W...     N writes batches of these widths, each on its own
    deliver A B        the oldest message from A to B arrives;  `deliver` alone: all, and those that they cause
    drop A B, repeat A B, swap A B     the oldest message from A to B is lost, comes twice, is overtaken by the next
    settle             save, flush and deliver until nothing is left
    heartbeat A        A's heartbeat reaches every replica that is not cut off, and so do the answers; a change goes on
    refuse N, accept N N finds the entries that it receives damaged, or intact again
    full N, free N     N's disk takes no entries, or takes them again
    cut N, join N      N is cut off from all others, and back again
    crash N, start N   N loses what was not flushed or saved
    transfer A B       A hands over to B
    abandon A          A waits no longer for newcomers
    alone A            A continues as the only member
    change A V.. / L.. A makes these the voters and those the learners
    delete N I         N deletes its log's prefix up to I
    state              role and log of every replica
"""

from collections.abc import Callable
from textwrap import dedent

from penstock.raft import GroupConfig, Message, RaftRefused, RaftSettings, Role
from penstock.types import Replica
from tests.raft.machine import SETTINGS, Machine, describe_message, replica

HEARTBEAT_S = 0.001
"""The clock moves by this much before each heartbeat: a heartbeat that was sent before something differs from a later
one."""


class ScriptedGroup:
    """Replicas 1 to n on one clock. Timeouts are fixed: replica n waits for (1 + n/10) s."""

    def __init__(self, voters: int, *, others: int = 0, settings: RaftSettings = SETTINGS) -> None:
        self.now = 100.0
        self.lines: list[str] = []
        self.quiet = False
        self.wires: dict[tuple[Replica, Replica], list[Message]] = {}
        self.cut: list[Replica] = []
        self.settings = settings
        self.machines: dict[int, Machine] = {}
        founding = GroupConfig(tuple(replica(node) for node in range(1, voters + 1)))
        for node in range(1, voters + others + 1):
            self.machines[node] = self._machine(replica(node), founding if node <= voters else None)
            self.machines[node].start(self.now)

    def _machine(self, me: Replica, founding: GroupConfig | None) -> Machine:
        return Machine(
            me, founding, self._send, settings=self.settings, jitter=lambda: me.node / 10, note=self._note
        )

    def wipe(self, node: int, life: int) -> None:
        """The node comes back with an empty folder: another replica."""
        self.machines[node] = self._machine(replica(node, life), None)
        self.machines[node].start(self.now)

    def play(self, transcript: str) -> None:
        expected = dedent(transcript).strip().splitlines()
        self.lines = []
        for line in expected:
            if line.startswith(">"):
                self.lines.append(line)
                self._run(line)
        assert "\n".join(self.lines) == "\n".join(expected)

    def _run(self, line: str) -> None:
        self.quiet = line.startswith(">>")
        verb, *words = line.lstrip("> ").split()
        command: Callable[..., None] = getattr(self, f"_do_{verb}")
        command(*words)
        self.quiet = False

    def _note(self, line: str) -> None:
        if not self.quiet:
            self.lines.append(line)

    def _send(self, sender: Replica, to: Replica, message: Message) -> None:
        if sender not in self.cut and to not in self.cut:
            self.wires.setdefault((sender, to), []).append(message)

    def _arrive(self, sender: Replica, to: Replica, message: Message) -> None:
        machine = self.machines[to.node]
        if machine.core is not None and machine.me == to:
            machine.do(self.now, machine.raft.step(self.now, sender, message))

    # ---- commands

    def _do_elect(self, node: str) -> None:
        machine = self.machines[int(node)]
        self._do_tick(node)
        self._do_settle()
        assert machine.raft.role is Role.LEADER, f"{node} was not elected"

    def _do_tick(self, node: str) -> None:
        machine = self.machines[int(node)]
        self.now = max(self.now, machine.raft.next_deadline)
        machine.do(self.now, machine.raft.tick(self.now))

    def _do_wait(self, seconds: str) -> None:
        end = self.now + float(seconds)
        while True:
            running = [machine for machine in self.machines.values() if machine.core is not None]
            first = min(running, key=lambda machine: machine.raft.next_deadline)
            if first.raft.next_deadline > end:
                break
            self.now = max(self.now, first.raft.next_deadline)
            first.do(self.now, first.raft.tick(self.now))
        self.now = end

    def _do_save(self, node: str) -> None:
        machine = self.machines[int(node)]
        while machine.unsaved:
            machine.save(self.now)

    def _do_flush(self, node: str) -> None:
        self.machines[int(node)].flush(self.now)

    def _do_propose(self, node: str, *widths: str) -> None:
        for width in widths:
            self.machines[int(node)].propose(self.now, int(width))

    def _wire(self, sender: str, to: str) -> list[Message]:
        return self.wires[self.machines[int(sender)].me, self.machines[int(to)].me]

    def _do_deliver(self, sender: str = "", to: str = "") -> None:
        if sender:
            message = self._wire(sender, to).pop(0)
            self._arrive(self.machines[int(sender)].me, self.machines[int(to)].me, message)
            return
        while any(self.wires.values()):
            for (source, target), messages in list(self.wires.items()):
                if messages:
                    self._arrive(source, target, messages.pop(0))

    def _do_drop(self, sender: str, to: str) -> None:
        self._note(f"lost: {sender} -> {to} {describe_message(self._wire(sender, to).pop(0))}")

    def _do_repeat(self, sender: str, to: str) -> None:
        wire = self._wire(sender, to)
        wire.insert(0, wire[0])

    def _do_swap(self, sender: str, to: str) -> None:
        wire = self._wire(sender, to)
        wire[0], wire[1] = wire[1], wire[0]

    def _do_settle(self) -> None:
        while True:
            self._do_deliver()
            running = [machine for machine in self.machines.values() if machine.core is not None]
            busy = [machine for machine in running if machine.unsaved]
            dirty = [machine for machine in running if machine.log.flushed_index < machine.log.end_index]
            for machine in busy:
                machine.save(self.now)
            for machine in dirty:
                machine.flush(self.now)
            if not busy and not dirty and not any(self.wires.values()):
                return

    def _do_heartbeat(self, node: str) -> None:
        leader = self.machines[int(node)]
        heartbeat = leader.raft.heartbeat()
        self.now += HEARTBEAT_S
        for peer in self.machines.values():
            if peer is leader or peer.core is None or peer.me in self.cut or leader.me in self.cut:
                continue
            peer.do(self.now, peer.raft.step_heartbeat(self.now, leader.me, heartbeat))
            if peer.raft.heard(self.now, leader.me, heartbeat.term, leader.settings.lease_s):
                leader.raft.answered(self.now, peer.me, heartbeat.term)
            else:
                leader.do(self.now, leader.raft.refused(self.now, peer.me, peer.raft.term))
        if leader.raft.changing and leader.raft.next_deadline <= self.now:
            leader.do(self.now, leader.raft.tick(self.now))

    def _do_full(self, node: str) -> None:
        self.machines[int(node)].full = True

    def _do_free(self, node: str) -> None:
        self.machines[int(node)].full = False

    def _do_refuse(self, node: str) -> None:
        self.machines[int(node)].refuses = True

    def _do_accept(self, node: str) -> None:
        self.machines[int(node)].refuses = False

    def _do_cut(self, node: str) -> None:
        me = self.machines[int(node)].me
        self.cut.append(me)
        for (sender, to), messages in self.wires.items():
            if me in (sender, to):
                messages.clear()

    def _do_join(self, node: str) -> None:
        self.cut.remove(self.machines[int(node)].me)

    def _do_crash(self, node: str) -> None:
        self.machines[int(node)].crash()

    def _do_start(self, node: str) -> None:
        self.machines[int(node)].start(self.now)

    def _do_transfer(self, node: str, to: str) -> None:
        self._try(node, lambda machine: machine.raft.transfer(self.now, self.machines[int(to)].me))

    def _do_change(self, node: str, *words: str) -> None:
        split = words.index("/") if "/" in words else len(words)
        voters = tuple(self.machines[int(word)].me for word in words[:split])
        learners = tuple(self.machines[int(word)].me for word in words[split + 1 :])
        self._try(node, lambda machine: machine.raft.change_config(self.now, voters, learners))

    def _do_abandon(self, node: str) -> None:
        self._try(node, lambda machine: machine.raft.abandon_change(self.now))

    def _do_alone(self, node: str) -> None:
        self._try(node, lambda machine: machine.raft.continue_alone(self.now))

    def _try(self, node: str, act: Callable[[Machine], list]) -> None:
        machine = self.machines[int(node)]
        try:
            machine.do(self.now, act(machine))
        except RaftRefused as refused:
            self._note(f"refused: {refused}")

    def _do_delete(self, node: str, index: str) -> None:
        self.machines[int(node)].delete_prefix(self.now, int(index))

    def _do_state(self) -> None:
        for node, machine in self.machines.items():
            log = machine.log
            place = f"log {log.first_index}..{log.end_index}@{log.last_term} flushed {log.flushed_index}"
            if machine.core is None:
                self._note(f"{node} is down, {place}")
                continue
            raft = machine.raft
            self._note(f"{node} {raft.role.value} in {raft.term}, {place}, commit {raft.commit_index}")
