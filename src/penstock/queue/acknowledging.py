"""Applies acknowledgements, many at once: in a queue whose lanes have owners, the messages of one member are seldom
next to each other, so that a thousand of them are a thousand ranges.

Each acknowledgement is applied by itself, in order, as if the others were not there. Only the work that concerns a
whole chunk or the whole partition is done once, at the end: closing chunks, moving the start offset, renewing leases.
"""

from collections.abc import Callable, Iterable

from penstock.errors import ErrorCode
from penstock.queue.chunk import Chunk
from penstock.queue.held_ranges import Held, by_kind, held_ranges, renew, still_valid
from penstock.queue.lane_leases import LaneLeases
from penstock.queue.leases import Leases
from penstock.queue.offset_table import OffsetTable
from penstock.queue.values import AckKind, Acknowledgement, AckResults

Settle = Callable[[int, int, Held, int | None], None]
"""Applies one kind to a part of a lease: the time, the kind, the part, the delay of a release."""

# As plain integers, for the same reason as the states.
_RENEW = int(AckKind.RENEW)
_DONE_KINDS = frozenset((bytes((AckKind.GAP,)), bytes((AckKind.ACCEPT,))))


class Acknowledging:
    """`settle` applies kinds other than done and renew."""

    def __init__(self, table: OffsetTable, leases: Leases, lanes: LaneLeases | None, settle: Settle) -> None:
        self._table = table
        self._leases = leases
        self._lanes = lanes
        self._settle = settle

    def apply(
        self,
        now_ms: int,
        member: str,
        acks: Iterable[Acknowledgement],
        *,
        lease_ms: int,
        epoch: int | None,
    ) -> AckResults:
        errors: list[ErrorCode] = []
        done: dict[int, Chunk] = {}
        renewals = _Renewals(self._leases, member, now_ms + lease_ms)
        waits = False
        for ack in acks:
            held, error = self._check(member, ack, epoch)
            errors.append(error)
            if held is None:
                continue
            if ack.kinds in _DONE_KINDS:
                for chunk, start, stop, _ in held:
                    self._table.mark_done(chunk, start, stop)
                    done[chunk.number] = chunk
                waits = True
            else:
                waits |= self._apply_kinds(now_ms, ack, held, renewals)
        if done:
            self._table.close_marked(done.values())
        renewals.finish()
        return AckResults(errors, waits)

    def _check(
        self, member: str, ack: Acknowledgement, epoch: int | None
    ) -> tuple[list[Held] | None, ErrorCode]:
        """The parts that the member holds, or why the acknowledgement is refused."""
        first, last, kinds, _ = ack
        if last < first or len(kinds) not in (1, last - first + 1) or max(kinds) > _RENEW:
            return None, ErrorCode.INVALID_REQUEST
        held = held_ranges(self._table, self._leases, member, first, last)
        lanes = self._lanes
        if lanes is not None and lanes.is_fenced(member, first, last, epoch, is_held=held is not None):
            return None, ErrorCode.FENCED_MEMBER_EPOCH
        return held, ErrorCode.NONE if held is not None else ErrorCode.INVALID_RECORD_STATE

    def _apply_kinds(
        self, now_ms: int, ack: Acknowledgement, held: list[Held], renewals: "_Renewals"
    ) -> bool:
        """Whether anything changed that must be saved: a renewal need not."""
        waits = False
        for kind, piece in by_kind(held, ack.kinds):
            if kind == _RENEW:
                renewals.add(piece)
            else:
                self._settle(now_ms, kind, piece, ack.delay_ms)
                waits = True
        return waits


class _Renewals:
    """Parts of leases that are renewed together, so that a lease which is renewed as a whole stays one."""

    def __init__(self, leases: Leases, member: str, until_ms: int) -> None:
        self._leases = leases
        self._member = member
        self._until_ms = until_ms
        self._pieces: list[Held] = []
        self._end = 0
        """The offset behind the last part."""

    def add(self, piece: Held) -> None:
        chunk, start, stop, _ = piece
        if chunk.base + start < self._end:  # it may be a part of an earlier one
            self.finish()
        self._pieces.append(piece)
        self._end = chunk.base + stop

    def finish(self) -> None:
        """Parts that were settled since they were added stay as they are."""
        pieces, self._pieces = self._pieces, []
        valid = [piece for piece in pieces if still_valid(self._leases, piece)]
        if valid:
            renew(self._leases, self._member, valid, self._until_ms)
