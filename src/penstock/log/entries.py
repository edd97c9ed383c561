"""Entries that another replica sent: they are checked before the first byte is written.

The CRC of a batch covers neither its offset nor its term. So each entry must follow the one before it: offsets without
a gap (unless the sender says that compaction has been there), and the term that was last begun. A term begins with its
control entry, whose payload repeats term and offset under its CRC.
"""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from penstock.batch import HEADER_SIZE, BatchHeader, Buffer, check_header
from penstock.errors import BatchError, ErrorCode
from penstock.log.checkpoint import MAX_CONFIG_BYTES
from penstock.log.layout import CALLERS_OWN, CONTROL_HEAD, TERM_START
from penstock.log.state import read_control


class Entry(NamedTuple):
    """One entry, checked. Positions are in the bytes that were received."""

    header: BatchHeader
    start: int
    end: int
    is_control: bool
    payload: bytes | None
    """The content of a control entry of the caller's own (kind 1); None for any other entry."""


class ReceivedEntries(NamedTuple):
    """Entries that may follow the log's last one, in order."""

    entries: list[Entry]
    has_gaps: bool


def check_entries(
    data: Buffer, headers: Sequence[BatchHeader], *, end_offset: int, last_term: int, gaps_below: int
) -> ReceivedEntries:
    """The entries of `data`, whose `headers` were read from it. Raises BatchError, which names the first wrong entry,
    unless all of them are whole and may follow on a log that ends here."""
    view = memoryview(data)
    entries: list[Entry] = []
    position, has_gaps = 0, False
    for header in headers:
        try:
            entry = _check(view, position, header, last_term)
            base_offset = header.base_offset
            if base_offset != end_offset and not end_offset < base_offset <= gaps_below:
                _refuse(f"offset {base_offset} where {end_offset} must follow")
        except BatchError as problem:
            reason = f"entry {len(entries)} at byte {position}: {problem.message}"
            raise BatchError(reason, problem.code) from None
        has_gaps = has_gaps or base_offset != end_offset
        end_offset, last_term = header.next_offset, header.leader_epoch
        entries.append(entry)
        position = entry.end
    if position != len(view):
        _refuse(f"{len(view)} bytes: expected {position}, as the headers of the entries say")
    return ReceivedEntries(entries, has_gaps)


def _check(view: memoryview, position: int, header: BatchHeader, last_term: int) -> Entry:
    check_header(view, position, header)
    end = position + header.size
    if not header.is_zero_width:
        if header.leader_epoch != last_term:
            _refuse(f"term {header.leader_epoch} within term {last_term}")
        return Entry(header, position, end, False, None)
    try:
        kind, term = read_control(header, view[position + HEADER_SIZE : end])
    except ValueError as problem:
        _refuse(str(problem))
    if term < last_term or (kind == TERM_START) != (term > last_term):
        _refuse(f"a control entry of kind {kind} and term {term} within term {last_term}")
    payload = bytes(view[position + HEADER_SIZE + CONTROL_HEAD.size : end])
    if len(payload) > (MAX_CONFIG_BYTES if kind == CALLERS_OWN else 0):
        _refuse(f"a control entry of kind {kind} with {len(payload)} bytes")
    return Entry(header, position, end, True, payload if kind == CALLERS_OWN else None)


def _refuse(reason: str) -> NoReturn:
    raise BatchError(reason, ErrorCode.INVALID_RECORD)
