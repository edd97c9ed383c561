"""A process' CPU and memory, from Linux' /proc. None on other systems, and for processes of other users."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
LISTENING = "0A"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    cpu_seconds: float
    """User and system time of all threads since the process began, in steps of a clock tick (10 ms)."""
    rss_bytes: int
    peak_rss_bytes: int


def usage(pid: int | None) -> Usage | None:
    if pid is None:
        return None
    try:
        # The second field is the command's name in brackets, and may hold spaces: count from behind it.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        status = (PROC / str(pid) / "status").read_text()
        return Usage(
            cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND,
            rss_bytes=_kilobytes(status, "VmRSS"),
            peak_rss_bytes=_kilobytes(status, "VmHWM"),
        )
    except (OSError, AttributeError):
        return None


def _kilobytes(status: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def listener_pid(port: int) -> int | None:
    """The process that listens on a TCP port of this machine, if we may see it."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for folder in PROC.glob("[0-9]*/fd") if wanted else ():
        with suppress(OSError):
            for descriptor in folder.iterdir():
                with suppress(OSError):
                    if os.readlink(descriptor) in wanted:
                        return int(folder.parent.name)
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
