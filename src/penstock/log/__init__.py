"""The log of a partition: its storage on disk or in memory, and its recovery after a crash.

Start with `layout`, which has the format byte by byte and explains recovery, then `log`, which lists the objects that
work on a log.
"""

from penstock.log.cold_range import ColdRange
from penstock.log.data_folder import DataFolder
from penstock.log.disk import Disk, File
from penstock.log.flush_state import FlushTicket
from penstock.log.log import Log
from penstock.log.memory_disk import MemoryDisk
from penstock.log.reset import Prefix
from penstock.log.votes import SavedVote, VoteStore
from penstock.log.writer import Appended

__all__ = [
    "Appended",
    "ColdRange",
    "DataFolder",
    "Disk",
    "File",
    "FlushTicket",
    "Log",
    "MemoryDisk",
    "Prefix",
    "SavedVote",
    "VoteStore",
]
