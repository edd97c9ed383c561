"""Keeps N worker processes running and adds up what they report."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client.worker_counts import WorkerCounts
from penstock.worker.child import EXIT_NOT_AN_APPLICATION
from penstock.worker.processes import ProcessSupervisor, SupervisedProcess
from penstock.worker.reports import decode

KILL_SECONDS: Final = 15.0
"""How much longer than their grace time processes may take to end, before they are killed."""


@dataclass(kw_only=True)
class WorkerProcess(SupervisedProcess):
    """One of the N places, and the process that has it."""

    counts: WorkerCounts = field(default_factory=WorkerCounts)
    """Of the present process."""
    earlier: WorkerCounts = field(default_factory=WorkerCounts)
    """Of all earlier ones."""
    workers: list[dict[str, Any]] = field(default_factory=list)

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


class Supervisor(ProcessSupervisor[WorkerProcess]):
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
        """`captures_output`: the observer gets the processes' output, line by line."""
        super().__init__(
            [WorkerProcess(number=number) for number in range(1, processes + 1)],
            kill_after_s=grace_s + KILL_SECONDS,
            stdout=stdout,
            captures_output=captures_output,
        )
        self._target = target
        self._grace_s = grace_s
        self._schedules = schedules
        self._observer = observer

    def command(self, place: WorkerProcess, report_fd: int) -> list[str]:
        """The first one publishes the jobs of schedules; one is enough."""
        command = [sys.executable, "-m", "penstock.worker", self._target]
        command += ["--report-fd", str(report_fd), "--grace", str(self._grace_s)]
        return [*command, "--schedules"] if self._schedules and place.number == 1 else command

    def gives_up(self, place: WorkerProcess, exit_code: int) -> bool:
        return exit_code == EXIT_NOT_AN_APPLICATION

    def on_report(self, place: WorkerProcess, line: bytes) -> None:
        report = decode(line)
        place.counts = report.counts
        if report.workers is not None:
            place.workers = report.workers
            if place.state == "starting":
                place.state = "running"
            self._observer.ready(place)

    def on_started(self, place: WorkerProcess) -> None:
        self._observer.started(place)

    def on_ended(self, place: WorkerProcess, delay_s: float | None) -> None:
        place.earlier, place.counts = place.total.without_running(), WorkerCounts()
        self._observer.ended(place, delay_s)

    def on_stopping(self) -> None:
        self._observer.stopping(self.places)

    def on_refresh(self) -> None:
        self._observer.refresh(self.places)

    def on_output(self, place: WorkerProcess, line: str) -> None:
        self._observer.output(place, line)
