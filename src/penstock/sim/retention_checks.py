"""Checks what retention deletes.

When a leader moves the start of its log, each record before the start either was older than retention.ms, by that
leader's own clock, or was too much: without it, at least retention.bytes are left. Records that are too old are deleted
in bounded time. (The witness checks that only a leader moves the start, that it never goes back and that all replicas
end with the same one.)
"""

from collections.abc import Mapping

from penstock.batch import read_header
from penstock.sim.entries import Entry, entries_of
from penstock.sim.host import WatchedReplica
from penstock.sim.outcome import Violation
from penstock.sim.policies import UNLIMITED, Policy

EXPIRY_MS = 3000
"""How late retention may be: some rounds of housekeeping, and the grace."""


def check_expiry(
    policy: Policy, leader: WatchedReplica, batches: Mapping[int, Entry], *, now_ms: int
) -> None:
    """No record has been too old for long, by the slowest clock of all nodes that may have led meanwhile. `batches` are
    all that were ever committed, by offset."""
    for offset, entry in batches.items():
        age_ms = now_ms - read_header(entry.data).max_timestamp
        if offset >= leader.log.start_offset and age_ms > policy.retention_ms + EXPIRY_MS:
            raise Violation("what is old goes", f"{leader.name} still has {offset}, which is {age_ms} ms old")


def check_deletion(policy: Policy, one: WatchedReplica, deleted: list[bytes], start_offset: int) -> None:
    """`deleted`: the batches that this leader has just removed from the start of its log."""
    newest_ms = max((read_header(batch).max_timestamp for batch in deleted), default=-1)
    age_ms = one.host.clock.wall_ms() - newest_ms
    if policy.retention_ms != UNLIMITED and age_ms > policy.retention_ms:
        return
    left = sum(
        len(entry.data)
        for entry in entries_of(one.log, one.log.entries.first_index, one.log.entries.end_index)
        if entry.offset >= start_offset
    )
    if policy.retention_bytes == UNLIMITED or left < policy.retention_bytes:
        raise Violation(
            "retention deletes what is old or too much",
            f"{one.name} starts at {start_offset}: what it deleted was {age_ms} ms old, {left} bytes are left, "
            f"and the topic has {policy.topic_defaults()}",
        )
