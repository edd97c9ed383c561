"""Cliques without a coordinator: members share one cell with compare-and-set (a key of a NATS bucket, a variable).

Each member applies its own heartbeats to the state in the cell, and the members judge each other's leases:

    while True:
        data, revision = cell.get();  now_ms = monotonic clock, read *after* the answer has come
        state = decode_state(data) if data else CliqueState.begin(wall_ms)
        state, reply = apply_heartbeat(state, heartbeat, observer.silent(state, now_ms), wall_ms)
        if cell.put_if(revision, encode_state(state)):  core.replied(reply, now_ms); break
        sleep for a random part of conflict_pause_s(tries)

Invariants:
 1. A member is judged by an observer that has seen the same sequence number for SILENCE leases of that member, by its
    own monotonic clock. The member counts its lease from before it wrote that number, the observer from after it read
    it, so the lease has ended for the member first, as long as the speeds of their clocks differ by less than 20 %.
 2. The judgement is put in place of exactly the state that was observed: if the member has sent a heartbeat meanwhile,
    the revision differs and the write fails.
 3. No member uses a reply before its write has succeeded. A write of which the outcome is unknown is tried again with
    the same heartbeat: if it had succeeded, the heartbeat is known and changes nothing.
"""

from collections.abc import Mapping

from penstock.ring.clique_state import CliqueState
from penstock.ring.heartbeats import LIMITS, CliqueLimits, Heartbeat, HeartbeatReply

CONFLICT_PAUSE_S = 0.01
CONFLICT_PAUSE_MAX_S = 0.5
SILENCE = 1.25
"""Leases of silence after which a member is judged: the excess is for clocks with different speeds."""


def conflict_pause_s(tries: int) -> float:
    """The longest pause after another member was faster, so many times in turn. Without it, the member that has just
    won would be the quickest to try again, and the leases of others would end."""
    return min(CONFLICT_PAUSE_S * 2.0 ** min(tries - 1, 16), CONFLICT_PAUSE_MAX_S)


class SilenceObserver:
    """One member's memory of when it saw heartbeats of the others."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """By member id: the last sequence number, and when it was seen first."""

    def silent(self, state: CliqueState, now_ms: float) -> dict[str, str]:
        """The members whose leases are over, by worker. `now_ms` was read after the state (1)."""
        seen = {}
        for member in state.members.values():
            sequence, since_ms = self._seen.get(member.member_id, (0, now_ms))
            changed = sequence != member.sequence
            seen[member.member_id] = member.sequence, now_ms if changed else since_ms
        self._seen = seen
        return {
            worker: member.member_id
            for worker, member in state.members.items()
            if now_ms - seen[member.member_id][1] >= member.lease_ms * SILENCE
        }


def apply_heartbeat(
    state: CliqueState,
    heartbeat: Heartbeat,
    silent: Mapping[str, str],
    now_ms: int,
    limits: CliqueLimits = LIMITS,
) -> tuple[CliqueState, HeartbeatReply]:
    """The state after the heartbeat was taken and the silent members were removed. `now_ms` is wall time, for people
    only."""
    namesake = silent.get(heartbeat.worker, heartbeat.member_id)
    if namesake != heartbeat.member_id:
        state = state.succeed(namesake, heartbeat, now_ms).expire(heartbeat.worker, namesake, now_ms)
    # The heartbeat first: a newcomer that was introduced before these removals could not join after them.
    state, _ = state.heartbeat(heartbeat, now_ms, limits)
    for worker, member_id in silent.items():
        if member_id != heartbeat.member_id:
            state = state.expire(worker, member_id, now_ms)
    return state, state.answer(heartbeat)
