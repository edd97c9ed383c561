"""Keeps N worker processes running: starts those again that end, until it is told to stop; then waits for them.

One thread per process reads its reports and waits for its end. All decisions are made in the thread that calls `run`,
which gets what happened through a queue. Processes have process groups of their own, so that Ctrl-C in a terminal
reaches the supervisor alone; they drain when it tells them to, and when it dies.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any, Final, Literal

import msgspec

from penstock.client.worker_counts import WorkerCounts
from penstock.worker.child import EXIT_NOT_AN_APPLICATION
from penstock.worker.reports import Report, decode
from penstock.worker.restarts import RestartBackoff

REFRESH_SECONDS: Final = 0.5
KILL_SECONDS: Final = 15.0
"""How much longer than their grace time processes may take to end, before they are killed."""
EXIT_INTERRUPTED: Final = 130

State = Literal["starting", "running", "stopping", "waiting", "ended"]


@dataclass(kw_only=True)
class WorkerProcess:
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
    counts: WorkerCounts = field(default_factory=WorkerCounts)
    """Of the present process."""
    earlier: WorkerCounts = field(default_factory=WorkerCounts)
    """Of all earlier ones."""
    workers: list[dict[str, Any]] = field(default_factory=list)
    backoff: RestartBackoff = field(default_factory=RestartBackoff)

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None

    @property
    def total(self) -> WorkerCounts:
        return self.earlier.plus(self.counts)


class Observer:
    """Is told what happens; the command line prints it."""

    def started(self, worker: WorkerProcess) -> None: ...
    def ready(self, worker: WorkerProcess) -> None: ...
    def ended(self, worker: WorkerProcess, delay_s: float | None) -> None:
        """`delay_s`: when it is started again; None: never."""

    def stopping(self, workers: Sequence[WorkerProcess]) -> None: ...
    def refresh(self, workers: Sequence[WorkerProcess]) -> None: ...
    def output(self, worker: WorkerProcess, line: str) -> None: ...


class _Ended(msgspec.Struct, frozen=True):
    number: int
    exit_code: int


class _Reported(msgspec.Struct, frozen=True):
    number: int
    report: Report


class _Signalled(msgspec.Struct, frozen=True):
    pass


class Supervisor:
    def __init__(
        self,
        target: str,
        *,
        processes: int,
        grace_s: float,
        schedules: bool,
        observer: Observer,
        stdout: int | None = None,
        captures_output: bool = False,
    ) -> None:
        """`stdout`: the file descriptor of the processes' standard output. `captures_output`: the observer gets their
        output, line by line."""
        self._target = target
        self._grace_s = grace_s
        self._schedules = schedules
        self._observer = observer
        self._stdout = stdout
        self._captures_output = captures_output
        self.workers = [WorkerProcess(number=number) for number in range(1, processes + 1)]
        self._events: Queue[_Ended | _Reported | _Signalled] = Queue()
        self._is_stopping = False
        self._kill_at: float | None = None
        self._exit_code = 0

    def run(self) -> int:
        """Returns the exit code when all processes have ended."""
        with self._taking_signals():
            try:
                for worker in self.workers:
                    self._start(worker)
                while any(worker.is_alive for worker in self.workers) or not self._is_stopping:
                    self._take_event()
                    self._start_due()
                    self._kill_late()
                    self._observer.refresh(self.workers)
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
            case _Reported(number=number, report=report):
                self._take_report(self.workers[number - 1], report)
            case _Ended(number=number, exit_code=exit_code):
                self._take_end(self.workers[number - 1], exit_code)

    def _take_report(self, worker: WorkerProcess, report: Report) -> None:
        worker.counts = report.counts
        if report.workers is not None:
            worker.workers = report.workers
            if worker.state == "starting":
                worker.state = "running"
            self._observer.ready(worker)

    def _take_end(self, worker: WorkerProcess, exit_code: int) -> None:
        now = time.monotonic()
        worker.process, worker.exit_code = None, exit_code
        worker.earlier, worker.counts = worker.total.without_running(), WorkerCounts()
        if exit_code == EXIT_NOT_AN_APPLICATION and not self._is_stopping:
            self._exit_code = EXIT_NOT_AN_APPLICATION
            self._drain()
        if self._is_stopping:
            worker.state = "ended"
            # A process that was still starting has no handler for SIGTERM yet: it had begun nothing.
            has_failed = exit_code not in (0, -signal.SIGTERM)
            self._exit_code = self._exit_code or int(has_failed)
            self._observer.ended(worker, None)
            return
        delay_s = worker.backoff.delay_s(now - worker.started_at)
        worker.state, worker.start_again_at = "waiting", now + delay_s
        self._observer.ended(worker, delay_s)

    def _drain(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        self._kill_at = time.monotonic() + self._grace_s + KILL_SECONDS
        for worker in self.workers:
            worker.state = "stopping" if worker.is_alive else "ended"
            if worker.process is not None:
                worker.process.send_signal(signal.SIGTERM)
        self._observer.stopping(self.workers)

    def _start_due(self) -> None:
        for worker in self.workers:
            if worker.state == "waiting" and time.monotonic() >= worker.start_again_at:
                worker.restarts += 1
                self._start(worker)

    def _kill_late(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_all()

    def _kill_all(self) -> None:
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()

    # --- processes

    def _start(self, worker: WorkerProcess) -> None:
        """The first one publishes the jobs of schedules; one is enough."""
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "penstock.worker", self._target]
        command += ["--report-fd", str(writing), "--grace", str(self._grace_s)]
        if self._schedules and worker.number == 1:
            command.append("--schedules")
        captured = subprocess.PIPE if self._captures_output else None
        worker.process = process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=captured if captured is not None else self._stdout,
            stderr=subprocess.STDOUT if captured is not None else None,
            pass_fds=[writing],
            process_group=0,
        )
        os.close(writing)
        worker.state, worker.started_at = "starting", time.monotonic()
        reports = threading.Thread(target=self._read_reports, args=(worker.number, reading), daemon=True)
        reports.start()
        self._start_thread(self._wait_for_end, worker, process, reports)
        self._observer.started(worker)

    def _start_thread(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _read_reports(self, number: int, fd: int) -> None:
        with open(fd, "rb") as lines:
            for line in lines:
                with suppress(msgspec.DecodeError):  # the process was killed while it wrote
                    self._events.put(_Reported(number, decode(line)))

    def _wait_for_end(
        self, worker: WorkerProcess, process: "subprocess.Popen[bytes]", reports: threading.Thread
    ) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    self._observer.output(worker, line.decode(errors="replace").rstrip("\n"))
        exit_code = process.wait()
        reports.join(REFRESH_SECONDS)  # a process of the application may still have the pipe
        if process.stdin is not None:
            process.stdin.close()
        self._events.put(_Ended(worker.number, exit_code))

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
