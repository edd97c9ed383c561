"""What a clique promises, checked at every step of the ring level.

The witness sees every state that was committed, every handler that starts and ends, and every acknowledgement that a
leader accepts. It knows the truth because it sees all of it at once, which no node or worker in
the simulated world does.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from math import ceil
from typing import Protocol

from penstock.ring import SLOTS
from penstock.ring.clique_state import CliqueState
from penstock.ring.member import MemberCore
from penstock.sim.outcome import Violation
from penstock.sim.scheduler import Process


class Message:
    """One message of a stream."""

    __slots__ = ("completed", "key", "number", "offset", "slot")

    def __init__(self, offset: int, key: str, slot: int, number: int) -> None:
        self.offset = offset
        self.key = key
        self.slot = slot
        self.number = number
        """Counts the messages of its key, from 0."""
        self.completed = 0
        """How many handlers have returned."""

    def __str__(self) -> str:
        return f"{self.key}/{self.number}"


class Running:
    """A handler that runs."""

    __slots__ = ("is_blocking", "is_excused", "message", "process")

    def __init__(self, process: Process, message: Message, *, is_blocking: bool) -> None:
        self.process = process
        self.message = message
        self.is_blocking = is_blocking
        self.is_excused = False
        """Nothing could have stopped it: its process was paused while it ran, or it cannot be cancelled and the lease
        of its worker ended."""


class Claimant(Protocol):
    """A process that may claim slots."""

    @property
    def core(self) -> MemberCore: ...
    @property
    def now_ms(self) -> float: ...


class RingWitness:
    """Checks the promises of a clique: one owner at a time, in order, at least once, little moves."""

    def __init__(self) -> None:
        self.state: CliqueState | None = None
        """The newest that was committed."""
        self.messages: list[Message] = []
        self._by_key: dict[str, list[Message]] = defaultdict(list)
        self._running: dict[str, list[Running]] = defaultdict(list)
        self._tokens: dict[int, tuple[int, str]] = {}
        """By slot: the highest fencing token that a handler was given, and the member that had it."""
        self._removed: set[str] = set()
        """Member ids that were members once and are not any more."""
        self.claimants: Callable[[], Iterable[Claimant]] = tuple
        """Gives the processes that run."""

    # --- the clique

    def committed(self, state: CliqueState) -> None:
        """A state became durable."""
        before, self.state = self.state, state
        if before is not None and state.epoch == before.epoch:
            return  # only a heartbeat was counted
        _check_shares(state)
        if before is None:
            return
        if state.epoch < before.epoch:
            raise Violation("epochs only grow", f"{before.epoch} is followed by {state.epoch}")
        ids = {member.member_id for member in state.members.values()}
        if back := sorted(ids & self._removed):
            raise Violation("a removed member does not come back", f"{back} in epoch {state.epoch}")
        self._removed |= {member.member_id for member in before.members.values()} - ids
        _check_moves(before, state)
        for claimant in self.claimants():
            self._check_lost(claimant, before, state)

    def _check_lost(self, claimant: "Claimant", before: CliqueState, after: CliqueState) -> None:
        """A member that lost slots in this moment does not work on them any more: it let go of them, or its lease is
        over by its own clock."""
        core, worker = claimant.core, claimant.core.worker
        if not before.has_member(worker, core.member_id):
            return
        stays = after.has_member(worker, core.member_id)
        for slot, owner in enumerate(before.owners):
            if owner != worker or (stays and after.owners[slot] == worker):
                continue
            if stays and core.epoch < before.revoked.get(slot, after.epoch):
                raise Violation(
                    "only a member that knows of a handover lets go",
                    f"{core.member_id} lost slot {slot} in epoch {after.epoch} and knows {core.epoch}",
                )
            if core.may_start(slot, claimant.now_ms) is not None:
                raise Violation(
                    "an owner stops before the next one begins",
                    f"{core.member_id} lost slot {slot} in epoch {after.epoch} and may start handlers",
                )

    def knows(self, claimant: "Claimant") -> None:
        """A worker has taken up a table. While its lease lasts, all that the table grants is its own."""
        core, state = claimant.core, self.state
        if state is None or claimant.now_ms >= core.lease_ends_ms:
            return
        stays = state.has_member(core.worker, core.member_id)
        lost = [slot for slot in core.granted if not stays or state.owners[slot] != core.worker]
        if lost:
            raise Violation(
                "a table grants only what is the worker's own",
                f"{core.member_id} takes up table {core.epoch} with {len(lost)} slots of others, such as {lost[0]}",
            )

    # --- handlers

    def published(self, key: str, slot: int) -> Message:
        of_key = self._by_key[key]
        message = Message(len(self.messages), key, slot, len(of_key))
        self.messages.append(message)
        of_key.append(message)
        return message

    def started(
        self, process: Process, member_id: str, epoch: int, message: Message, *, is_blocking: bool
    ) -> Running:
        """A handler starts."""
        self._check_owner(member_id, epoch, message)
        self._check_alone(process, message)
        self._check_order(message)
        self._check_token(member_id, epoch, message)
        running = Running(process, message, is_blocking=is_blocking)
        self._running[message.key].append(running)
        return running

    def ended(self, running: Running, *, is_completed: bool) -> None:
        """A handler returned, raised, was cancelled or died with its process."""
        self._running[running.message.key].remove(running)
        running.message.completed += is_completed

    def excuse(self, process: Process, *, blocking_only: bool = False) -> None:
        """The handlers of this process could not be stopped from now on."""
        for running in self._handlers_of(process):
            running.is_excused |= running.is_blocking or not blocking_only

    def died(self, process: Process) -> None:
        for running in self._handlers_of(process):
            self.ended(running, is_completed=False)

    def _handlers_of(self, process: Process) -> list[Running]:
        return [each for some in self._running.values() for each in some if each.process is process]

    def accepted(self, message: Message, *, is_owner: bool, by: str) -> None:
        """A leader has accepted an acknowledgement. `is_owner`: whether its sender owns the slot in the epoch in
        which it was given the message, by the leader's own table."""
        if not message.completed:
            raise Violation("a message is acknowledged after its handler has returned", f"{message} by {by}")
        if not is_owner:
            raise Violation("a leader refuses acknowledgements of an old epoch", f"{message} by {by}")

    def _check_owner(self, member_id: str, epoch: int, message: Message) -> None:
        """An owner may start with an earlier token of its own: it has not been told yet that a handover was called
        off."""
        state, slot = self.state, message.slot
        owner = None if state is None else state.owners[slot]
        if state is not None and owner is not None:
            now, token = state.members[owner].member_id, state.slot_epochs[slot]
            if now == member_id and epoch <= token:
                return
        raise Violation(
            "a handler starts only at the owner of its slot",
            f"{message} at {member_id} with {epoch}; slot {slot} belongs to {owner}, by {state and state.members}",
        )

    def _check_alone(self, process: Process, message: Message) -> None:
        for other in self._running[message.key]:
            if other.process is process or not other.is_excused:
                raise Violation(
                    "one handler at a time for each key",
                    f"{message} at {process.name} while {other.message} runs at {other.process.name}",
                )

    def _check_order(self, message: Message) -> None:
        if message.number and not self._by_key[message.key][message.number - 1].completed:
            raise Violation("in order per key", f"{message} starts before the one before it has completed")

    def _check_token(self, member_id: str, epoch: int, message: Message) -> None:
        highest, holder = self._tokens.get(message.slot, (0, ""))
        if epoch < highest or (epoch == highest and member_id != holder):
            raise Violation(
                "fencing tokens grow from owner to owner",
                f"slot {message.slot}: {member_id} has {epoch} after {holder} had {highest}",
            )
        self._tokens[message.slot] = epoch, member_id


def _check_shares(state: CliqueState) -> None:
    staying = [worker for worker, member in state.members.items() if not member.leaving]
    loads = Counter(state.targets)
    if staying and (set(loads) != set(staying) or max(loads.values()) - min(loads.values()) > 1):
        raise Violation("shares are even", f"{dict(loads)}")


def _check_moves(before: CliqueState, after: CliqueState) -> None:
    """Each member that joined or left since has moved at most one share. Of several transitions that became durable
    together only the last state is known, and members may have come and gone in between."""
    old, new = _staying(before), _staying(after)
    transitions = after.epoch - before.epoch
    changes = len(old ^ new) if transitions == 1 else max(len(old ^ new), transitions)
    moved = sum(
        one != other for one, other in zip(before.targets, after.targets, strict=True) if one is not None
    )
    if new and moved > changes * ceil(SLOTS / (len(old & new) + 1)):
        raise Violation("little moves", f"{moved} slots with {changes} changes from {len(old)} members")


def _staying(state: CliqueState) -> set[tuple[str, str]]:
    return {(worker, member.member_id) for worker, member in state.members.items() if not member.leaving}
