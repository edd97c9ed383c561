"""What retention may delete.

Where a leader moves the start of its log, each record before it either was older than retention.ms, by that leader's
own clock, or was in the way: without it, at least retention.bytes are left. (That the start is the leader's to move,
never goes back and is the same everywhere in the end is the witness's business.) And what is old goes, in time.
"""

from collections.abc import Mapping

from penstock.batch import read_header
from penstock.sim.entries import Entry, entries_of
from penstock.sim.host import WatchedReplica
from penstock.sim.outcome import Violation
from penstock.sim.policies import UNLIMITED, Policy

EXPIRY_MS = 3000
"""How late it may be: some rounds of housekeeping, and the grace."""


def check_expiry(
    policy: Policy, leader: WatchedReplica, batches: Mapping[int, Entry], *, now_ms: int
) -> None:
    """Nothing is there that has been too old for long, by the slowest clock of all who may have led meanwhile.
    `batches`: all that were ever committed, by offset."""
    for offset, entry in batches.items():
        age_ms = now_ms - read_header(entry.data).max_timestamp
        if offset >= leader.log.start_offset and age_ms > policy.retention_ms + EXPIRY_MS:
            raise Violation("what is old goes", f"{leader.name} still has {offset}, which is {age_ms} ms old")


def check_deletion(policy: Policy, one: WatchedReplica, deleted: list[bytes], start_offset: int) -> None:
    """`deleted`: the batches that were the start of the log of this leader until now."""
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
