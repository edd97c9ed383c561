"""Which changes to store next, and which acknowledgements wait for them.

Changes are written in *rounds*. A round has everything that changed since the round before: the head, and the chunks
that differ from their stored form. Acknowledgements that arrived before a round began are answered when its last part
is saved. A round may take several writes, one at a time.

Any prefix of the writes is safe. The head of a round is in its first write, with the start offset of when the round
began; a chunk is written as it is when its turn comes; and done offsets stay done. So no stored prefix calls an offset
done that is not, and every acknowledgement that was answered is in it. The records of settlements that chunks contain
from now on are deleted in the last write of the round: until then the settlement counts, afterwards the chunks do.
"""

import heapq

from penstock.queue.offset_table import OffsetTable
from penstock.queue.state_records import HEAD_SUFFIX, Head, chunk_suffix, encode_chunk, encode_head
from penstock.queue.states import CHUNK_SIZE, DONE
from penstock.queue.values import StateChanges
from penstock.types import Term

MAX_CHUNKS_PER_WRITE = 128
MAX_BYTES_PER_WRITE = 768 * 1024
"""A chunk takes at most 17,130 bytes, so a write is below the 1 MB that a topic accepts by default."""

MAX_DELETED_PER_ROUND = 500
"""Settlements that were applied; more are deleted with the next round. A write of up to 1,000 records is one batch."""

_DONE_CHUNK = encode_chunk(bytearray((DONE,)) * CHUNK_SIZE, bytearray(CHUNK_SIZE))


class StateWriter:
    """Produces the records of changed chunks, and keeps the tokens of acknowledgements until they are saved."""

    def __init__(self, term: Term) -> None:
        self.saved_start_offset: int | None = None
        """The start offset of the last saved head: the queue needs no record below it."""
        self._term = term
        self._written_start_offset: int | None = None
        """The start offset in the last head of this term, saved or being written. None makes the first round write a
        head, which tells the leader of the state topic about the term."""
        self._number = 0
        self._under_way = False
        self._tokens: list[object] = []
        """Acknowledgements that wait for the next round."""
        self._round: list[int] = []
        """Chunks still to be written in this round, the last first."""
        self._round_start = 0
        self._round_tokens: list[object] = []
        self._applied: list[bytes] = []
        """The suffixes of settlements that were applied and are still stored."""
        self._round_applied: list[bytes] = []
        self._stored: dict[int, bool] = {}
        """Whether a chunk has a record; for all chunks that had one and are not below the start offset."""
        self._stored_order: list[int] = []
        """The same numbers as a heap."""

    def restored(self, start_offset: int, chunks: list[int]) -> None:
        """Records that exist from before this term."""
        self.saved_start_offset = start_offset
        self._stored = dict.fromkeys(chunks, True)
        self._stored_order = sorted(chunks)

    def wait(self, token: object) -> None:
        self._tokens.append(token)

    def delete(self, suffix: bytes) -> None:
        """This settlement was applied to the table: the next round stores that, and deletes it."""
        self._applied.append(suffix)

    def take(self, table: OffsetTable) -> StateChanges | None:
        if self._under_way:
            return None
        records: list[tuple[bytes, bytes | None]] = []
        if not self._round:
            self._begin(table, records)
        size = chunk_records = 0
        while self._round and chunk_records < MAX_CHUNKS_PER_WRITE and size < MAX_BYTES_PER_WRITE:
            if self._record(table, self._round.pop(), records):
                chunk_records += 1
                size += len(records[-1][1] or b"")
        if not self._round:
            records += [(suffix, None) for suffix in self._round_applied]
            self._round_applied.clear()
        if not records:
            assert not self._round_tokens
            return None
        self._number += 1
        self._under_way = True
        return StateChanges(self._number, records)

    def saved(self, number: int) -> list[object]:
        """A write is committed. Returns the tokens of the acknowledgements that are durable with it."""
        if not self._under_way or number != self._number:
            raise ValueError(f"write {number} is not under way")
        self._under_way = False
        self.saved_start_offset = self._written_start_offset
        if self._round:
            return []
        tokens, self._round_tokens = self._round_tokens, []
        return tokens

    def _begin(self, table: OffsetTable, records: list[tuple[bytes, bytes | None]]) -> None:
        self._round_start = table.start_offset
        self._round_tokens, self._tokens = self._tokens, []
        self._round_applied = self._applied[:MAX_DELETED_PER_ROUND]
        del self._applied[:MAX_DELETED_PER_ROUND]
        if self._written_start_offset != self._round_start:
            self._written_start_offset = self._round_start
            head = Head(self._term, self._round_start)
            records.append((HEAD_SUFFIX, encode_head(head)))
        start_chunk = self._round_start // CHUNK_SIZE
        numbers = [number for number in table.changed if number >= start_chunk]
        table.changed.clear()
        while self._stored_order and self._stored_order[0] < start_chunk:
            passed = heapq.heappop(self._stored_order)
            if self._stored[passed]:
                numbers.append(passed)
            else:
                del self._stored[passed]
        self._round = sorted(numbers, reverse=True)

    def _record(self, table: OffsetTable, number: int, records: list[tuple[bytes, bytes | None]]) -> bool:
        """Adds the chunk's record, if it needs one; returns whether it did."""
        value = self._value(table, number)
        if value is None and not self._stored.get(number):
            return False
        records.append((chunk_suffix(number), value))
        if number < self._round_start // CHUNK_SIZE:
            del self._stored[number]
            return True
        if number not in self._stored:
            heapq.heappush(self._stored_order, number)
        self._stored[number] = value is not None
        return True

    def _value(self, table: OffsetTable, number: int) -> bytes | None:
        since = self._round_start - number * CHUNK_SIZE
        if since >= CHUNK_SIZE:
            return None
        chunk = table.chunks.get(number)
        if chunk is None:
            return _DONE_CHUNK
        return encode_chunk(chunk.state, chunk.stored_deliveries(), max(0, since), chunk.delayed())
