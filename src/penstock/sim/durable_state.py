"""The content of the simulated disks, read byte by byte, without the code under test."""

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from penstock.log.disk import SECTOR_SIZE
from penstock.sim.disk import SimDisk
from penstock.sim.entries import LOG_SUFFIX, Entry
from penstock.types import GroupId, Replica

if TYPE_CHECKING:
    from penstock.sim.checks import Watched

VOTES_PATHS = ("meta/votes.0", "meta/votes.1")

_GROUP = Struct(">16si")
_VOTE = Struct(">qiQ")
"""The middle of a record in the store of votes: topic and partition; then term, node, incarnation."""


_SLOT = Struct(">8xq8xqq")
"""Of a slot of the checkpoint: sequence, first_base and start_controls. An unwritten slot has zeros."""


class DiskFinder(Protocol):
    """Finds the disks of replicas, also of those that do not run or no longer exist."""

    def disk_of(self, replica: Replica) -> SimDisk | None: ...

    def folders_of(self, replica: Replica, folder: str) -> list[str]:
        """The folders with the replica's files: the group's folder, or where they were moved to when it ended."""
        ...

    def running(self, replica: Replica) -> "Watched | None": ...


class DurableState:
    """The durable entries and votes of one group."""

    def __init__(self, group: GroupId, disks: DiskFinder, folder: str) -> None:
        self._disks = disks
        self._folder = folder
        self._key = _GROUP.pack(group.topic_id.bytes, group.partition)

    def holds(self, replica: Replica, entry: Entry) -> bool:
        disk = self._disks.disk_of(replica)
        if disk is None:
            return False
        folders = self._disks.folders_of(replica, self._folder)
        return any(_is_in(disk, folder, entry) for folder in folders)

    def holds_vote(self, disk: SimDisk, term: int, candidate: Replica) -> bool:
        """Whether the vote is on the disk, or a later term, in which it no longer matters."""
        for path in VOTES_PATHS:
            content = disk.durable_content(path)
            position = content.find(self._key)
            while position >= 0:
                found, node, incarnation = _VOTE.unpack_from(content, position + len(self._key))
                if found > term or (found, node, incarnation) == (term, *candidate):
                    return True
                position = content.find(self._key, position + 1)
        return False


def _is_in(disk: SimDisk, folder: str, entry: Entry) -> bool:
    names = [name for name in disk.durable_names(folder) if name.endswith(LOG_SUFFIX)]
    bases = [int(name.removesuffix(LOG_SUFFIX)) for name in names]
    number = bisect_right(bases, entry.offset)
    if bases and (number == 0 or entry.end <= _first_index(disk, folder, bases[0])):
        # The prefix with this entry is deleted, which only happens to committed entries.
        return True
    # A control entry may be at the end of the segment before.
    return any(
        entry.data in disk.durable_content(f"{folder}/{name}")
        for name in reversed(names[max(number - 2, 0) : number])
    )


def _first_index(disk: SimDisk, folder: str, first_base: int) -> int:
    """Raft's index of the first entry in the log's files, as the durable checkpoint says; 0 if it says nothing. Control
    entries at the end of a deleted prefix have the offset with which the files begin."""
    content = disk.durable_content(f"{folder}/checkpoint")
    slots = [_SLOT.unpack_from(content, at) for at in range(0, len(content), SECTOR_SIZE)]
    _, base, controls = max(slots, default=(0, 0, 0))
    return base + controls if base == first_base else 0
