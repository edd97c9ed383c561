"""Retention and compaction keep up with a producer that never pauses."""

from pathlib import Path

from penstock.batch import Record, build_batch, check_batch
from penstock.config import TopicConfig
from penstock.log import Log
from penstock.log.os_disk import OsDisk
from penstock.types import Term

SEGMENT_BYTES = 10_000
ROUNDS = 40


def write_and_tidy(log: Log, now_ms: int, keys: int) -> None:
    """One round as the node does it: appends for more than a segment, a flush, retention, compaction, chores."""
    for number in range(6):
        rows = [Record(i, now_ms, b"key %d" % ((number + i) % keys), b"x" * 200, ()) for i in range(10)]
        batch = bytearray(build_batch(rows))
        log.writer.append(batch, check_batch(batch), Term(0), now_ms)
    ticket = log.flushes.begin()
    assert ticket is not None
    ticket.run()
    log.flushes.finish(ticket)
    log.retention.apply(now_ms)
    plan = log.compactor.plan(now_ms)
    if plan is not None:
        plan.run()
        log.compactor.finish(plan)
    chores = log.maintenance.next_task()
    if chores is not None:
        chores()


def test_files_of_expired_segments_are_removed_although_new_ones_expire_in_every_round(
    tmp_path: Path,
) -> None:
    config = TopicConfig(segment_bytes=SEGMENT_BYTES, retention_bytes=2 * SEGMENT_BYTES)
    log = Log.open(OsDisk(str(tmp_path)), "t-0", config)
    for number in range(ROUNDS):
        write_and_tidy(log, 1_700_000_000_000 + number, keys=5)
    assert len(list((tmp_path / "t-0").glob("*.log"))) < ROUNDS // 2
    log.close()


def test_a_topic_is_compacted_although_segments_roll_in_every_round(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=SEGMENT_BYTES, cleanup_compact=True, cleanup_delete=False)
    log = Log.open(OsDisk(str(tmp_path)), "t-0", config)
    for number in range(ROUNDS):
        write_and_tidy(log, 1_700_000_000_000 + number, keys=5)
    assert log.size_bytes < ROUNDS * SEGMENT_BYTES // 4
    log.close()
