"""Lines of a node's log that no client should be able to cause."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

SIGNS = ("a bug", "Traceback", "never retrieved", "AssertionError", "MemoryError")
HELD = "the event loop was held for"
SAID_BEFORE = "the traceback is above"
WHERE = '  File "'
NAMES = re.compile(r"[^ ]*[0-9][^ ]*")
KIND_WORDS = 8
KINDS_SHOWN = 4
STAMP = re.compile(r"^[0-9-]+ [0-9:,]+ ")


def find_bugs(lines: Sequence[str]) -> list[str]:
    """One report for each: the line, and the end of the traceback that follows it."""
    found: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if any(sign in line for sign in SIGNS) and SAID_BEFORE not in line:
            before = lines[at - 2] if line.startswith("Traceback") and at > 1 else line
            where = ""
            while at < len(lines) and _is_traceback(lines[at]):
                where = lines[at] if lines[at].startswith(WHERE) else where
                at += 1
            error = lines[at] if where and at < len(lines) else ""
            at += bool(error)
            parts = (STAMP.sub("", before), error, where)
            found.append(" | ".join(part.strip() for part in parts if part.strip()))
    return found


def frequent_kinds(lines: Iterable[str]) -> str:
    """The kinds of lines that are logged most often, and how often. Lines that differ in names only count as one."""
    kinds = Counter(" ".join(NAMES.sub("…", STAMP.sub("", line)).split()[:KIND_WORDS]) for line in lines)
    return "; ".join(f"{count} x {kind}" for kind, count in kinds.most_common(KINDS_SHOWN))


def find_stalls(lines: Sequence[str]) -> list[str]:
    """What the node's watchdog says about its event loop."""
    return [STAMP.sub("", line).strip() for line in lines if HELD in line]


def _is_traceback(line: str) -> bool:
    return line.startswith((" ", "Traceback")) or not line.strip()
