"""Keeps N processes running: starts those again that end, until it is told to stop; then waits for them.

One thread per process reads its reports and waits for its end. All decisions are made in the thread that calls `run`,
which gets what happened through a queue. Processes have process groups of their own, so that Ctrl-C in a terminal
reaches the supervisor alone; they drain when it tells them to, and when it dies: it holds the other end of their
standard input.

Two commands supervise by it: `penstock worker` (supervisor.py) and `penstock serve --processes`
(penstock/cli/machine.py).
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Final, Generic, Literal, TypeVar

import msgspec

from penstock.worker.restarts import RestartBackoff

REFRESH_SECONDS: Final = 0.5
EXIT_INTERRUPTED: Final = 130

State = Literal["starting", "running", "stopping", "waiting", "ended"]


@dataclass(kw_only=True)
class SupervisedProcess:
    """One of the N places, and the process that has it."""

    number: int
    state: State = "starting"
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    """On the monotonic clock."""
    start_again_at: float = 0.0
    restarts: int = 0
    exit_code: int | None = None
    """Of the last process that has ended."""
    backoff: RestartBackoff = field(default_factory=RestartBackoff)

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None


P = TypeVar("P", bound=SupervisedProcess)


class _Ended(msgspec.Struct, frozen=True):
    number: int
    exit_code: int


class _Reported(msgspec.Struct, frozen=True):
    number: int
    line: bytes


class _Signalled(msgspec.Struct, frozen=True):
    pass


class ProcessSupervisor(Generic[P]):
    """A subclass says how a process is started, and is told what happens."""

    def __init__(
        self,
        places: Sequence[P],
        *,
        kill_after_s: float,
        stdout: int | None = None,
        captures_output: bool = False,
    ) -> None:
        """`kill_after_s`: how long processes may take to end after they were told to. `stdout`: the file descriptor of
        their standard output. `captures_output`: `on_output` gets it, line by line."""
        self.places = list(places)
        self._kill_after_s = kill_after_s
        self._stdout = stdout
        self._captures_output = captures_output
        self._events: Queue[_Ended | _Reported | _Signalled] = Queue()
        self._is_stopping = False
        self._kill_at: float | None = None
        self._exit_code = 0

    # --- what a subclass says and is told; all but `on_output` in the thread of `run`

    def command(self, place: P, report_fd: int) -> list[str]:
        """The command line of a process, which writes its reports to this file, line by line."""
        raise NotImplementedError

    def first_input(self, place: P) -> bytes:
        """Written to the standard input of a process when it starts; short enough for a pipe."""
        return b""

    def gives_up(self, place: P, exit_code: int) -> bool:
        """Whether another start would end in the same way: then all end, with this code."""
        return False

    def on_started(self, place: P) -> None: ...
    def on_report(self, place: P, line: bytes) -> None: ...
    def on_ended(self, place: P, delay_s: float | None) -> None:
        """`delay_s`: when it is started again; None: never."""

    def on_stopping(self) -> None: ...
    def on_refresh(self) -> None: ...
    def on_output(self, place: P, line: str) -> None: ...

    # --- the supervisor

    def run(self) -> int:
        """Returns the exit code when all processes have ended."""
        with self._taking_signals():
            try:
                for place in self.places:
                    self._start(place)
                while any(place.is_alive for place in self.places) or not self._is_stopping:
                    self._take_event()
                    self._start_due()
                    self._kill_late()
                    self.on_refresh()
            finally:
                self._kill_all()
        return self._exit_code

    def stop(self) -> None:
        """Asks all processes to drain. May be called from any thread."""
        self._events.put(_Signalled())

    # --- events

    def _take_event(self) -> None:
        try:
            event = self._events.get(timeout=REFRESH_SECONDS)
        except Empty:
            return
        match event:
            case _Signalled():
                self._drain()
            case _Reported(number=number, line=line):
                with suppress(msgspec.DecodeError):  # the process was killed while it wrote
                    self.on_report(self.places[number - 1], line)
            case _Ended(number=number, exit_code=exit_code):
                self._take_end(self.places[number - 1], exit_code)

    def _take_end(self, place: P, exit_code: int) -> None:
        now = time.monotonic()
        place.process, place.exit_code = None, exit_code
        if not self._is_stopping and self.gives_up(place, exit_code):
            self._exit_code = exit_code
            self._drain()
        if self._is_stopping:
            place.state = "ended"
            # A process that was still starting has no handler for SIGTERM yet: it had begun nothing.
            has_failed = exit_code not in (0, -signal.SIGTERM)
            self._exit_code = self._exit_code or int(has_failed)
            self.on_ended(place, None)
            return
        delay_s = place.backoff.delay_s(now - place.started_at)
        place.state, place.start_again_at = "waiting", now + delay_s
        self.on_ended(place, delay_s)

    def _drain(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        self._kill_at = time.monotonic() + self._kill_after_s
        for place in self.places:
            place.state = "stopping" if place.is_alive else "ended"
            if place.process is not None:
                place.process.send_signal(signal.SIGTERM)
        self.on_stopping()

    def _start_due(self) -> None:
        for place in self.places:
            if place.state == "waiting" and time.monotonic() >= place.start_again_at:
                place.restarts += 1
                self._start(place)

    def _kill_late(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()

    def _kill_all(self) -> None:
        for place in self.places:
            if place.process is not None:
                place.process.kill()

    # --- processes

    def _start(self, place: P) -> None:
        reading, writing = os.pipe()
        captured = subprocess.PIPE if self._captures_output else None
        place.process = process = subprocess.Popen(
            self.command(place, writing),
            stdin=subprocess.PIPE,
            stdout=captured if captured is not None else self._stdout,
            stderr=subprocess.STDOUT if captured is not None else None,
            pass_fds=[writing],
            process_group=0,
        )
        os.close(writing)
        self._greet(process, self.first_input(place))
        place.state, place.started_at = "starting", time.monotonic()
        reports = threading.Thread(target=self._read_reports, args=(place.number, reading), daemon=True)
        reports.start()
        threading.Thread(target=self._wait_for_end, args=(place, process, reports), daemon=True).start()
        self.on_started(place)

    def _greet(self, process: "subprocess.Popen[bytes]", text: bytes) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already
            process.stdin.write(text)
            process.stdin.flush()

    def _read_reports(self, number: int, fd: int) -> None:
        with open(fd, "rb") as lines:
            for line in lines:
                self._events.put(_Reported(number, line))

    def _wait_for_end(self, place: P, process: "subprocess.Popen[bytes]", reports: threading.Thread) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    self.on_output(place, line.decode(errors="replace").rstrip("\n"))
        exit_code = process.wait()
        reports.join(REFRESH_SECONDS)  # a process of the application may still have the pipe
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # of what it has not read
                process.stdin.close()
        self._events.put(_Ended(place.number, exit_code))

    # --- signals

    @contextmanager
    def _taking_signals(self) -> Iterator[None]:
        """The first SIGTERM or Ctrl-C drains; the second one kills all processes and ends at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        asked = 0

        def on_signal(_number: int, _frame: object) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise SystemExit(EXIT_INTERRUPTED)  # `run` kills all processes
            self.stop()

        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
