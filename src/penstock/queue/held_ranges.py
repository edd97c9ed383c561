"""The ranges of deliveries, and those of acknowledgements, in parts of one lease and one kind each."""

from collections import Counter
from collections.abc import Iterator

from penstock.queue.chunk import Chunk
from penstock.queue.leases import Lease, Leases
from penstock.queue.offset_table import OffsetTable
from penstock.queue.states import CHUNK_SIZE, LEASED, runs
from penstock.queue.values import Acquired

Held = tuple[Chunk, int, int, Lease]
"""A part of a chunk (index, end index) that belongs to one lease."""


def held_ranges(table: OffsetTable, leases: Leases, member: str, first: int, last: int) -> list[Held] | None:
    """The range in parts of one lease each; None unless the member holds all of it."""
    if first == last:
        return _held_one(table, leases, member, first)
    held: list[Held] = []
    for number, start, stop in table.spans(first, last + 1):
        chunk = table.chunks.get(number)
        if chunk is None or chunk.owners is None:
            return None
        while start < stop:
            if chunk.state[start] != LEASED:
                return None
            lease = leases.at(chunk.owners[start])
            if lease.member != member:
                return None
            end = chunk.lease_end(start, stop)
            held.append((chunk, start, end, lease))
            start = end
    return held


def _held_one(table: OffsetTable, leases: Leases, member: str, offset: int) -> list[Held] | None:
    """The same for one offset, in a third of the time."""
    number, index = divmod(offset, CHUNK_SIZE)
    chunk = table.chunks.get(number)
    if chunk is None or chunk.owners is None or chunk.state[index] != LEASED:
        return None
    lease = leases.at(chunk.owners[index])
    return [(chunk, index, index + 1, lease)] if lease.member == member else None


def still_valid(leases: Leases, piece: Held) -> bool:
    """Whether all of a part that was held a moment ago still belongs to its lease."""
    chunk, start, stop, lease = piece
    if chunk.owners is None or chunk.state[start] != LEASED or leases.at(chunk.owners[start]) is not lease:
        return False
    return chunk.lease_end(start, stop) == stop


def by_kind(held: list[Held], kinds: bytes) -> Iterator[tuple[int, Held]]:
    """The parts, split where the kind changes."""
    if len(kinds) == 1:
        for piece in held:
            yield kinds[0], piece
        return
    cells, at = bytearray(kinds), 0
    for chunk, start, stop, lease in held:
        for first, end, kind in runs(cells, at, at + stop - start):
            yield kind, (chunk, start + first - at, start + end - at, lease)
        at += stop - start


def renew(leases: Leases, member: str, pieces: list[Held], until_ms: int) -> None:
    """A lease that is renewed as a whole is extended; a part of a lease gets a lease of its own."""
    totals: Counter[int] = Counter()
    for _, start, stop, lease in pieces:
        totals[lease.slot] += stop - start
    whole = {lease.slot for *_, lease in pieces if totals[lease.slot] == lease.held}
    fresh: Lease | None = None
    for chunk, start, stop, lease in pieces:
        if lease.slot in whole:
            leases.renew(lease, until_ms)
            continue
        fresh = fresh or leases.open(member, until_ms)
        leases.take(chunk, start, stop)
        leases.give(fresh, chunk, start, stop)


def add_range(acquired: list[Acquired], new: Acquired) -> None:
    """Merges ranges that meet at the border of two chunks."""
    if acquired and acquired[-1].last + 1 == new.first and acquired[-1].deliveries == new.deliveries:
        new = new._replace(first=acquired.pop().first)
    acquired.append(new)
