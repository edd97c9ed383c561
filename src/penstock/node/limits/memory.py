"""The memory that clients can make a node hold: one budget for each port, and a reservation for each request.

Bytes are counted before they are there: a request with the buffer in which it arrives, a response with what will be
read for it. They count until they are gone, a response until the client's system has taken it. So the limit holds at
every moment, however many clients send halves of requests or never read their responses.

    the first three quarters    for everything
    the last quarter            for requests and responses of up to `small` bytes, and for one batch that is larger.
                                Clients that hold much cannot take it, so the others are still served, with smaller
                                responses
    nothing left                a response waits for its turn; turns come in the order of the requests

A batch may be larger than the whole budget, and must be sent nevertheless. So a batch of more than half of the budget
waits only until half of the budget is free, and then exceeds the limit. Nothing else exceeds it by more than one read
of a socket.

Memory comes back as clients read. Where clients wait for it, the port closes those that do not read.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

KEPT_SHARE = 4
"""A quarter is kept for small requests and responses."""
SMALL_BYTES = 256 * 1024
"""Worth a round trip, and a thousand clients can have as much from a quarter of the default budget."""
SMALL_SHARE = 16
"""Of a small budget, `small` is at most a sixteenth."""

UNLIMITED_BYTES = 2**63

Granted = Callable[[], object]


class Turn:
    """A place in one of a budget's lines."""

    __slots__ = ("count", "granted", "line", "memory")

    def __init__(self, line: "dict[Turn, None]", memory: "Reservation", count: int, granted: Granted) -> None:
        self.line = line
        self.memory = memory
        self.count = count
        self.granted = granted


class MemoryBudget:
    """The bytes of all clients of a port. Lives on the event loop."""

    __slots__ = ("_large", "_small", "large_max", "max_bytes", "name", "small", "used", "waits")

    def __init__(self, name: str, max_bytes: int) -> None:
        self.name = name
        """The limit that it enforces, for messages."""
        self.max_bytes = max_bytes
        self.large_max = max_bytes - max_bytes // KEPT_SHARE
        self.small = min(SMALL_BYTES, max_bytes // SMALL_SHARE)
        self.used = 0
        self.waits = 0
        """How often a request or response had to wait."""
        self._small: dict[Turn, None] = {}
        """Those that wait for a part of the whole budget, in their order."""
        self._large: dict[Turn, None] = {}
        """Those that wait for a part of the first three quarters."""

    def reserve(self, count: int = 0) -> "Reservation":
        """Counts bytes that are there already."""
        self.used += count
        return Reservation(self, count)

    @property
    def room(self) -> int:
        """How much a response may take now; 0 if it has to wait for its turn."""
        if self._small:
            return 0
        if not self._large and self.large_max - self.used > self.small:
            return self.large_max - self.used
        return self.small if self.max_bytes - self.used >= self.small else 0

    @property
    def free(self) -> int:
        """How large a batch may be that is larger than `room`."""
        return 0 if self._small else max(0, self.max_bytes - self.used)

    @property
    def first_turns(self) -> list[Turn]:
        """The first of each line."""
        return [next(iter(line)) for line in (self._small, self._large) if line]

    def missing_for(self, turn: Turn) -> int:
        """How many bytes must come back until this turn and all behind it have come."""
        most = self.large_max if turn.line is self._large else self.max_bytes
        return self.used + sum(other.count for other in turn.line) - most

    def has_large_room(self, count: int) -> bool:
        return not self._large and self.used + count <= self.large_max

    def line_up(self, memory: "Reservation", count: int, granted: Granted, *, large: bool) -> Turn:
        """When its turn comes, perhaps at once, the bytes are counted and `granted` is called."""
        line = self._large if large else self._small
        turn = Turn(line, memory, count, granted)
        line[turn] = None
        self._serve()
        self.waits += turn in line
        return turn

    def leave(self, turn: Turn) -> None:
        turn.line.pop(turn, None)
        self._serve()

    def give_back(self, count: int) -> None:
        self.used -= count
        if self._small or self._large:
            self._serve()

    def _serve(self) -> None:
        for line, most in ((self._small, self.max_bytes), (self._large, self.large_max)):
            while line:
                first = next(iter(line))
                if self.used + min(first.count, self.max_bytes // 2) > most:
                    break
                del line[first]
                first.memory.take(first.count)
                first.granted()


def _resolve(come: "asyncio.Future[None]") -> None:
    if not come.done():
        come.set_result(None)


def unlimited() -> "Reservation":
    """For a request whose memory is bounded in another way: another node's, by the limits of the inter-node port."""
    return MemoryBudget("", UNLIMITED_BYTES).reserve()


class Reservation(msgspec.Struct, eq=False):
    """The bytes of one holder: a request with its response, or a connection. It waits for one turn at a time."""

    budget: MemoryBudget
    bytes: int = 0
    """Counted in the budget: the hot path adds to both numbers by itself."""
    _turn: Turn | None = None

    def take(self, count: int) -> None:
        """Counts bytes without asking: the caller has asked for `room`, or they are there already."""
        self.bytes += count
        self.budget.used += count

    def try_take(self, count: int) -> bool:
        """Whether all of the budget had room for so many bytes."""
        has_room = count <= self.budget.free
        if has_room:
            self.take(count)
        return has_room

    def try_take_large(self, count: int) -> bool:
        """Whether the first three quarters had room for so many bytes."""
        has_room = self.budget.has_large_room(count)
        if has_room:
            self.take(count)
        return has_room

    def line_up(self, count: int, granted: Granted, *, large: bool = False) -> None:
        """Counts the bytes and calls back when the turn comes, perhaps at once; never after `release`."""
        self._turn = self.budget.line_up(self, count, granted, large=large)

    async def wait_for(self, count: int, *, large: bool = False) -> None:
        """Returns when the turn has come, perhaps at once: the bytes are counted since then."""
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line_up(count, partial(_resolve, come), large=large)
        try:
            await come
        finally:
            self._leave()

    def resize(self, count: int) -> None:
        """Counts so many bytes from now on, without asking."""
        more = count - self.bytes
        self.bytes = count
        if more < 0:
            self.budget.give_back(-more)
        else:
            self.budget.used += more

    def give_back(self, count: int) -> None:
        self.bytes -= count
        self.budget.give_back(count)

    def release(self) -> None:
        """Gives everything back, and waits no longer. May be called twice."""
        self._leave()
        if self.bytes:
            self.give_back(self.bytes)

    def _leave(self) -> None:
        if self._turn is not None:
            self.budget.leave(self._turn)
            self._turn = None
