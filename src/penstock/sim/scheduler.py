"""Virtual time: one heap of events for the whole simulation, and processes that crash or pause.

Nothing here waits. Time jumps to the next event; events of the same moment run in the order in which they were planned.
So a run is a function of its seed, provided that all code draws random numbers from a seeded generator and never
iterates over a set. `digest` covers every event: two runs with the same digest did the same.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from struct import Struct
from zlib import crc32

from penstock.sim.disk import PowerCut
from penstock.sim.outcome import Violation

TRACE_LINES = 120
"""How many events are kept to be shown with a failure: about the last second of a busy group."""

ANY_LIFE = -1

_TIME = Struct("<d")


class Process:
    """A process crashes or pauses as a whole. Its events are dropped when it crashes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 0
        self.paused = False
        self.held: list[Event] = []
        """Those that came due while it was paused."""


class Event:
    """Something that will happen."""

    __slots__ = ("act", "args", "cancelled", "life", "process", "when")

    def __init__(
        self, when: float, process: Process | None, act: Callable[..., object], args: tuple[object, ...]
    ) -> None:
        self.when = when
        self.process = process
        self.life = process.life if process is not None else 0
        self.act = act
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Scheduler:
    """The world's time and what will happen in it."""

    def __init__(self, *, max_events: int, tracing: bool = False) -> None:
        self.time = 0.0
        self.events = 0
        self.digest = 0
        self.watch: Callable[[Process], None] = lambda process: None
        """Called after each event of a process, while nothing else has happened yet."""
        self._max_events = max_events
        self._heap: list[tuple[float, int, Event]] = []
        self._sequence = 0
        self._trace: deque[tuple[float, str, object]] = deque(maxlen=None if tracing else TRACE_LINES)

    # --- making events

    def at(self, when: float, process: Process | None, act: Callable[..., object], *args: object) -> Event:
        event = Event(when if when > self.time else self.time, process, act, args)
        self._push(event)
        return event

    def after(
        self, delay: float, process: Process | None, act: Callable[..., object], *args: object
    ) -> Event:
        return self.at(self.time + delay, process, act, *args)

    def deliver(self, delay: float, process: Process, act: Callable[..., object], *args: object) -> None:
        """Something from outside: it reaches whichever life of the process there is by then."""
        event = Event(self.time + delay, process, act, args)
        event.life = ANY_LIFE
        self._push(event)

    def _push(self, event: Event) -> None:
        self._sequence += 1
        heappush(self._heap, (event.when, self._sequence, event))

    # --- processes

    def crash(self, process: Process) -> None:
        """All that it was about to do will not happen."""
        process.life += 1
        process.paused = False
        process.held.clear()

    def resume(self, process: Process) -> None:
        """All that came due meanwhile happens now, in its order."""
        process.paused = False
        held, process.held = process.held, []
        for event in held:
            event.when = self.time
            self._push(event)

    def clear(self) -> None:
        """Nothing will happen any more."""
        self._heap.clear()

    # --- running

    def run(self, until: float) -> None:
        """Lets everything happen up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            _, _, event = heappop(heap)
            if not event.cancelled:
                self._happen(event)
        self.time = until

    def _happen(self, event: Event) -> None:
        process = event.process
        if process is not None:
            if event.life != process.life and event.life != ANY_LIFE:
                return
            if process.paused:
                process.held.append(event)
                return
        self.time = event.when
        self.events += 1
        if self.events > self._max_events:
            raise Violation(
                "the event budget", f"more than {self._max_events} events: something goes in circles"
            )
        with suppress(PowerCut):
            # Where the power went the rest of the event does not happen.
            event.act(*event.args)
        if process is not None:
            with suppress(PowerCut):  # a look at a log may open a file, and close another one for it
                self.watch(process)

    # --- the trace

    def note(self, who: str, what: object, content: bytes | None = None) -> None:
        """Something happened. `content` stands for it in the digest where `what` is only worded when it is shown."""
        data = str(what).encode() if content is None else content
        self.digest = crc32(data, crc32(_TIME.pack(self.time), self.digest))
        self._trace.append((self.time, who, what))

    def trace(self) -> list[str]:
        return [f"{time:9.4f}  {who:<8}  {what}" for time, who, what in self._trace]
