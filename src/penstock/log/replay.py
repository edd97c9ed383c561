"""Producers and transactions as of an offset, from the newest snapshot below it and the batches that follow."""

from collections.abc import Sequence

import msgspec

from penstock.batch import BatchHeader
from penstock.log.disk import Disk
from penstock.log.producers import UNSEEN, ProducerStates
from penstock.log.segment import Segment
from penstock.log.snapshot import Snapshot, newest_snapshot


def replay_producers(
    disk: Disk, folder: str, segments: Sequence[Segment], end_offset: int
) -> tuple[ProducerStates, bool]:
    """The producers' state as of `end_offset`, and whether it is complete. It is not, if the prefix was deleted and no
    snapshot covers it, because there was no space for one. It goes by offsets: positions in a snapshot that is older
    than a compaction are no longer valid. For the same reason the index of aborted transactions is not restored: only
    those are in it that ended behind the snapshot."""
    producers, start = ProducerStates(), segments[0].base_offset
    snapshot = _newest(disk, folder, segments, end_offset)
    if snapshot is not None:
        producers.restore(snapshot.producers, msgspec.structs.replace(snapshot.transactions, aborted=b""))
        start = snapshot.offset
    for segment in segments:
        if segment.next_offset > start:
            for position, header in segment.headers(segment.locate(start), segment.size):
                if header.base_offset >= end_offset:
                    break
                if header.producer_id >= 0:
                    _enter(producers, segment, position, header)
    return producers, snapshot is not None or start == 0


def _enter(producers: ProducerStates, segment: Segment, position: int, header: BatchHeader) -> None:
    """Only a marker has to be read: headers tell everything else."""
    batch = segment.file.read_at(position, header.size) if header.control else b""
    producers.enter(header, batch, UNSEEN, is_committed=True)


def _newest(disk: Disk, folder: str, segments: Sequence[Segment], end_offset: int) -> Snapshot | None:
    """The newest snapshot, on the disk or not saved yet."""
    unsaved = [
        s.base_snapshot for s in segments if s.base_snapshot is not None and s.base_offset <= end_offset
    ]
    newest = unsaved[-1] if unsaved else None
    saved = newest_snapshot(disk, folder, newest.offset if newest else segments[0].base_offset, end_offset)
    return saved or newest
