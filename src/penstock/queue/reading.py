"""Adding records that were read from the log: from UNREAD to the state of each offset.

The order of the steps matters. Chunks are opened for existing records before next_offset moves, because an opened chunk
treats everything below next_offset as done. Gaps come before the rest, so that a time or key for an offset without a
record has no effect. Lanes come before all that makes an offset available; times before keys, and keys
before the rest, which is available. A part of the log that is
one large gap opens no chunk.

Restored state takes precedence: an offset that is done, or on its way to the dead letters, stays so.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

from penstock.queue.chunk import Chunk
from penstock.queue.offset_table import OffsetTable
from penstock.queue.states import AVAILABLE, CHUNK_SIZE, DEFERRED, DONE, UNREAD, runs
from penstock.queue.timers import DUE, EXPIRES, event
from penstock.queue.values import ScanResult


def add_records(table: OffsetTable, now_ms: int, end_offset: int, scan: ScanResult) -> None:
    """Adds the records from the table's next_offset to before end_offset."""
    first = table.next_offset
    present = list(_between(scan.gaps, first, end_offset))
    for start, stop in present:
        for number, _, _ in table.spans(start, stop):
            table.open(number)
    table.next_offset = end_offset
    for gap_first, gap_last in scan.gaps:
        _finish_gap(table, max(first, gap_first), min(end_offset, gap_last + 1))
    if scan.lanes is not None:
        _set_lanes(table, first, end_offset, scan.lanes)
    _set_times(table, now_ms, first, end_offset, scan)
    _set_keys(table, first, scan.keys)
    for start, stop in present:
        _set_unread(table, start, stop, AVAILABLE)
    table.advance()


def _between(gaps: Sequence[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a range outside the gaps, as (start, stop)."""
    for gap_first, gap_last in gaps:
        if first < min(gap_first, end):
            yield first, min(gap_first, end)
        first = max(first, gap_last + 1)
    if first < end:
        yield first, end


def _finish_gap(table: OffsetTable, first: int, stop: int) -> None:
    """There are no records. The next read of the log will find the same gap, so it need not be stored."""
    for chunk, start, end in table.pieces(first, stop) if first < stop else ():
        table.open(chunk.number)
        changed = chunk.number in table.changed
        for index, behind, state in runs(chunk.state, start, end):
            if state == UNREAD:
                table.finish(chunk, index, behind)
        if not changed:
            table.changed.pop(chunk.number, None)


def _set_unread(table: OffsetTable, first: int, stop: int, state: int) -> None:
    """UNREAD offsets of the range get this state."""
    for chunk, start, end in table.pieces(first, stop):
        for index, behind, before in runs(chunk.state, start, end):
            if before == UNREAD:
                table.set_state(chunk, index, behind, state)


def _set_times(table: OffsetTable, now_ms: int, first: int, end_offset: int, scan: ScanResult) -> None:
    events: defaultdict[int, list[int]] = defaultdict(list)
    for offset, due_ms in scan.deferred:
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = table.chunks.get(number)
        if due_ms <= now_ms or chunk is None or not first <= offset < end_offset:
            continue
        if chunk.state[index] == UNREAD:
            table.set_state(chunk, index, index + 1, DEFERRED)
            events[number].append(event(due_ms, DUE, index))
    for offset, at_ms in scan.expiring:
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = table.chunks.get(number)
        if chunk is None or not first <= offset < end_offset:
            continue
        if at_ms <= now_ms:
            table.expire(chunk, index, index + 1)
        elif chunk.state[index] != DONE:
            events[number].append(event(at_ms, EXPIRES, index))
    for chunk, start, stop in table.pieces(first, end_offset):
        for index, due_ms in _still_delayed(chunk, start, stop, now_ms):
            table.set_state(chunk, index, index + 1, DEFERRED)
            events[chunk.number].append(event(due_ms, DUE, index))
    for number, new in events.items():
        if number in table.chunks:
            table.schedule(table.chunks[number], new)


def _still_delayed(chunk: Chunk, start: int, stop: int, now_ms: int) -> Iterator[tuple[int, int]]:
    """(index, due_ms) of messages whose retry delay an earlier leader stored, and is not over."""
    for first, length, due_ms in chunk.stored_delays if chunk.reached else ():
        for index in range(max(first, start), min(first + length, stop)):
            if due_ms > now_ms and chunk.state[index] == UNREAD:
                yield index, due_ms


def _set_lanes(table: OffsetTable, first: int, end_offset: int, lanes: "array[int]") -> None:
    for chunk, start, stop in table.pieces(first, end_offset):
        at = chunk.base + start - first
        chunk.set_lanes(start, lanes[at : at + stop - start])


def _set_keys(table: OffsetTable, first: int, keys: Sequence[int | None]) -> None:
    for offset, key in enumerate(keys, first):
        if key is None:
            continue
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = table.chunks.get(number)
        if chunk is not None and chunk.state[index] != DONE:
            table.append_key(chunk, index, key)
