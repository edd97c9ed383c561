"""The log: what a partition stores, on disk and in memory, and how it comes back after a crash.

Start with `layout`: it has the format byte by byte and the argument of recovery.
"""

from penstock.log.compaction import CompactionPlan
from penstock.log.data_folder import DataFolder
from penstock.log.disk import Disk, File
from penstock.log.flush import FlushTicket
from penstock.log.log import Appended, Log
from penstock.log.memory_disk import MemoryDisk
from penstock.log.os_disk import OsDisk
from penstock.log.reset import Prefix
from penstock.log.scrub import ScrubPlan
from penstock.log.votes import SavedVote, VoteStore

__all__ = [
    "Appended",
    "CompactionPlan",
    "DataFolder",
    "Disk",
    "File",
    "FlushTicket",
    "Log",
    "MemoryDisk",
    "OsDisk",
    "Prefix",
    "SavedVote",
    "ScrubPlan",
    "VoteStore",
]
