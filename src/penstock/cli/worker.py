"""`penstock worker`: the workers and schedules of an application in several processes."""

import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click
import msgspec
from rich.live import Live
from rich.table import Table

from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.output import console, counted, table
from penstock.cli.parameters import UNITS_MS, Duration
from penstock.worker.supervisor import Observer, Supervisor, WorkerProcess

PROCESSES_MAX = 256


@click.command(
    epilog=examples(
        "penstock worker shop.jobs:client",
        "penstock worker shop.jobs:client --processes 4 --grace 1m",
    )
)
@click.argument("target", metavar="MODULE:CLIENT")
@click.option(
    "-p", "--processes", type=click.IntRange(1, PROCESSES_MAX), default=1, show_default=True,
    help="How many processes; each runs all workers.",
)  # fmt: skip
@click.option(
    "--grace", type=Duration(0, UNITS_MS["d"]), default="30s", show_default=True, metavar="TIME",
    help="How long handlers may take to finish when it ends.",
)  # fmt: skip
@click.option(
    "--no-schedules", is_flag=True, help="Do not publish the jobs of @client.every and @client.cron."
)
@json_option
def worker(target: str, processes: int, grace: int, no_schedules: bool, as_json: bool) -> int:
    """Run the workers of an application in several processes.

    MODULE is importable from the current folder; CLIENT is its Client or AsyncClient, or a function that returns one,
    with handlers registered by @client.worker, @client.every and @client.cron.

    A process that ends is started again: at once, or after a growing delay if it has lived for less than 30 seconds.
    SIGTERM or Ctrl-C lets handlers finish and ends with 0, or with 1 if some did not; a second one kills everything.
    """
    with ExitStack() as stack:
        display: Observer
        is_live = sys.stdout.isatty() and not as_json
        if is_live:
            display = stack.enter_context(LiveDisplay())
        else:
            display = JsonDisplay() if as_json else LineDisplay()
        supervisor = Supervisor(
            target,
            processes=processes,
            grace_s=grace / 1000,
            schedules=not no_schedules,
            observer=display,
            stdout=sys.stderr.fileno() if as_json else None,
            captures_output=is_live,
        )
        return supervisor.run()


def _end_of(one: WorkerProcess, delay_s: float | None) -> str:
    code = one.exit_code or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    again = (
        ""
        if delay_s is None
        else ("; starting again" if delay_s == 0 else f"; starting again in {delay_s:g} s")
    )
    return f"{how}{again}"


def _jobs(one: WorkerProcess) -> str:
    total = one.total
    return f"{counted(total.done, 'job')} done, {total.retried:,} retried, {total.rejected:,} rejected"


class LineDisplay(Observer):
    """A line for each event, where standard output is no terminal."""

    def _say(self, one: WorkerProcess, text: str) -> None:
        click.echo(f"worker {one.number}: {text}")

    def started(self, worker: WorkerProcess) -> None:
        self._say(worker, f"started, process {worker.pid}")

    def ready(self, worker: WorkerProcess) -> None:
        queues = ", ".join(f"{one['queue']} ({one['handler']})" for one in worker.workers)
        self._say(worker, f"works on {queues}")

    def ended(self, worker: WorkerProcess, delay_s: float | None) -> None:
        self._say(worker, f"{_end_of(worker, delay_s)}; {_jobs(worker)}")

    def stopping(self, workers: Sequence[WorkerProcess]) -> None:
        click.echo("stopping: waiting for running handlers; a second signal kills them")


class JsonDisplay(Observer):
    """A JSON object for each event. The output of the application goes to standard error."""

    def _say(self, event: str, **facts: Any) -> None:
        click.echo(json.dumps({"event": event, "time_ms": round(time.time() * 1000), **facts}))

    def started(self, worker: WorkerProcess) -> None:
        self._say("started", worker=worker.number, pid=worker.pid, restarts=worker.restarts)

    def ready(self, worker: WorkerProcess) -> None:
        self._say("ready", worker=worker.number, pid=worker.pid, workers=worker.workers)

    def ended(self, worker: WorkerProcess, delay_s: float | None) -> None:
        counts = msgspec.to_builtins(worker.total)
        del counts["running"]
        self._say(
            "ended", worker=worker.number, exit_code=worker.exit_code, starts_again_in_s=delay_s, jobs=counts
        )

    def stopping(self, workers: Sequence[WorkerProcess]) -> None:
        self._say("stopping", workers=[one.number for one in workers if one.is_alive])


class LiveDisplay(Observer):
    """A table that is kept up to date in a terminal, below the output of the application."""

    def __init__(self) -> None:
        self._console = console()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._lock = threading.Lock()

    def __enter__(self) -> "LiveDisplay":
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def output(self, worker: WorkerProcess, line: str) -> None:
        with self._lock:
            self._console.print(f"{worker.number} | {line}", markup=False)

    def ended(self, worker: WorkerProcess, delay_s: float | None) -> None:
        self.output(worker, _end_of(worker, delay_s))

    def refresh(self, workers: Sequence[WorkerProcess]) -> None:
        with self._lock:
            self._live.update(status_table(workers, time.monotonic()), refresh=True)


def status_table(workers: Sequence[WorkerProcess], now: float) -> Table:
    headings = ("worker", "pid", "state", "up", "restarts", "running", "done", "retried", "rejected")
    rows = []
    for one in workers:
        total = one.total
        up = f"{now - one.started_at:,.0f} s" if one.is_alive else "-"
        jobs = (total.running, total.done, total.retried, total.rejected)
        pid = None if one.pid is None else str(one.pid)
        rows.append((one.number, pid, one.state, up, one.restarts, *jobs))
    return table(*headings, rows=rows, numbers=("up", "pid"))
