"""The entries of a log, as they stand on its disk."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.batch import iter_headers
from penstock.log import Log
from penstock.sim.disk import SimDisk

READ_BYTES = 1 << 20
LOG_SUFFIX = ".log"


class Entry(NamedTuple):
    """One entry of a log."""

    start: int
    """Raft's index."""
    end: int
    term: int
    offset: int
    control: bool
    data: bytes


def entries_of(log: Log, start: int, end: int) -> Iterator[Entry]:
    """Those between two boundaries, read from the log's disk. Where compaction has been, some are missing."""
    index = start
    while index < end:
        data, following = log.entries.read_entries(index, READ_BYTES)
        controls = index - log.entries.offset_at(index)
        for position, header in iter_headers(data):
            control = header.is_zero_width
            at = header.base_offset + controls
            if at >= end:
                return
            content = data[position : position + header.size]
            width = 1 if control else header.last_offset_delta + 1
            yield Entry(at, at + width, header.leader_epoch, header.base_offset, control, content)
            controls += control
        if following <= index:
            return
        index = following


def old_segments(log: Log, disk: SimDisk, commit_index: int) -> list[str]:
    """Paths of segments that are committed, and that the log's checkpoint says, durably, to have been flushed. Rot in
    others cannot be told from a write that a crash has torn, or leaves a leader with another entry than its followers
    when it commits them."""
    if not disk.is_durable(f"{log.path}/checkpoint"):
        return []
    limit = min(log.files.checkpoint.facts.flushed.base_offset, log.entries.offset_at(commit_index) - 1)
    names = sorted(name for name in disk.list_dir(log.path) if name.endswith(LOG_SUFFIX))
    return [
        f"{log.path}/{name}"
        for name, following in pairwise(names)
        if int(following.removesuffix(LOG_SUFFIX)) <= limit
    ]
