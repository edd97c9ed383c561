"""Taking in what was read from the log: from UNREAD to whatever each offset is.

The order matters. Chunks are opened for what is there, before next_offset moves: an opened chunk takes everything below
it for done. Gaps come before the rest, so that a note about an offset that is not there means nothing. Times come
before keys, and keys before what is left, which is available. A part of the log that is one large gap opens no chunk.

What was restored is stronger than what is read: an offset that is done, or on its way to the dead letters, stays so.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from penstock.queue.agenda import DUE, EXPIRES, event
from penstock.queue.board import Board
from penstock.queue.chunk import Chunk
from penstock.queue.states import AVAILABLE, CHUNK_SIZE, DEFERRED, DONE, UNREAD, runs
from penstock.queue.values import Notes


def read_on(board: Board, now_ms: int, end_offset: int, notes: Notes) -> None:
    """From the board's next_offset to before end_offset."""
    first = board.next_offset
    present = list(_between(notes.gaps, first, end_offset))
    for start, stop in present:
        for number, _, _ in board.spans(start, stop):
            board.open(number)
    board.next_offset = end_offset
    for gap_first, gap_last in notes.gaps:
        _skip(board, max(first, gap_first), min(end_offset, gap_last + 1))
    _set_times(board, now_ms, first, end_offset, notes)
    _set_keys(board, first, notes.keys)
    for start, stop in present:
        _turn(board, start, stop, AVAILABLE)
    board.advance()


def _between(gaps: Sequence[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    """What the gaps leave of a range, as (start, stop)."""
    for gap_first, gap_last in gaps:
        if first < min(gap_first, end):
            yield first, min(gap_first, end)
        first = max(first, gap_last + 1)
    if first < end:
        yield first, end


def _skip(board: Board, first: int, stop: int) -> None:
    """Nothing is there. The log will say so again, so it need not be stored."""
    for chunk, start, end in board.pieces(first, stop) if first < stop else ():
        board.open(chunk.number)
        changed = chunk.number in board.changed
        for index, behind, state in runs(chunk.state, start, end):
            if state == UNREAD:
                board.finish(chunk, index, behind)
        if not changed:
            board.changed.pop(chunk.number, None)


def _turn(board: Board, first: int, stop: int, state: int) -> None:
    """What is still UNREAD in the range gets its state."""
    for chunk, start, end in board.pieces(first, stop):
        for index, behind, before in runs(chunk.state, start, end):
            if before == UNREAD:
                board.shift(chunk, index, behind, state)


def _set_times(board: Board, now_ms: int, first: int, end_offset: int, notes: Notes) -> None:
    events: defaultdict[int, list[int]] = defaultdict(list)
    for offset, due_ms in notes.deferred:
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = board.chunks.get(number)
        if due_ms <= now_ms or chunk is None or not first <= offset < end_offset:
            continue
        if chunk.state[index] == UNREAD:
            board.shift(chunk, index, index + 1, DEFERRED)
            events[number].append(event(due_ms, DUE, index))
    for offset, at_ms in notes.expiring:
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = board.chunks.get(number)
        if chunk is None or not first <= offset < end_offset:
            continue
        if at_ms <= now_ms:
            board.expire(chunk, index, index + 1)
        elif chunk.state[index] != DONE:
            events[number].append(event(at_ms, EXPIRES, index))
    for chunk, start, stop in board.pieces(first, end_offset):
        for index, due_ms in _still_resting(chunk, start, stop, now_ms):
            board.shift(chunk, index, index + 1, DEFERRED)
            events[chunk.number].append(event(due_ms, DUE, index))
    for number, new in events.items():
        if number in board.chunks:
            board.schedule(board.chunks[number], new)


def _still_resting(chunk: Chunk, start: int, stop: int, now_ms: int) -> Iterator[tuple[int, int]]:
    """(index, due_ms) of what has come back under another leader and is to be tried later."""
    for first, length, due_ms in chunk.rested if chunk.reached else ():
        for index in range(max(first, start), min(first + length, stop)):
            if due_ms > now_ms and chunk.state[index] == UNREAD:
                yield index, due_ms


def _set_keys(board: Board, first: int, keys: Sequence[int | None]) -> None:
    for offset, key in enumerate(keys, first):
        if key is None:
            continue
        number, index = divmod(offset, CHUNK_SIZE)
        chunk = board.chunks.get(number)
        if chunk is not None and chunk.state[index] != DONE:
            board.join_lane(chunk, index, key)
