"""The files of a log's segments: removing them, and replacing several by one."""

from penstock.log.disk import Disk
from penstock.log.layout import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, offsets_of, sidecar, swap_range


def remove_segment(disk: Disk, folder: str, base_offset: int) -> None:
    """The .log file goes last: indexes without it are harmless, it without indexes costs a scan."""
    remove_indexes(disk, folder, base_offset)
    disk.remove(sidecar(folder, base_offset, LOG_SUFFIX))


def remove_indexes(disk: Disk, folder: str, base_offset: int) -> None:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        disk.remove(sidecar(folder, base_offset, suffix))


def finish_swap(disk: Disk, folder: str, name: str) -> None:
    """Puts a compacted segment in the place of those it replaces. May be repeated at any point."""
    base, end = swap_range(name)
    for old in offsets_of(disk.list_dir(folder), LOG_SUFFIX):
        if base < old < end:
            remove_segment(disk, folder, old)
    remove_indexes(disk, folder, base)
    disk.sync_dir(folder)
    disk.rename(f"{folder}/{name}", sidecar(folder, base, LOG_SUFFIX))
    disk.sync_dir(folder)
