"""One worker process: imports the application and runs its client until it is told to stop.

SIGTERM, or the end of its standard input (the supervisor has died)    it drains and ends
exit code 0: all handlers have finished    1: an error, or handlers that did not finish in time
          2: the target names no client with workers; the supervisor does not try again
"""

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.client.errors import ClientError
from penstock.worker.application import AnyClient, NotAnApplication, load_client
from penstock.worker.reports import Report, encode

REPORT_SECONDS = 0.5
EXIT_NOT_AN_APPLICATION = 2


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    early = EarlySignals()
    try:
        client = load_client(given.target)
    except NotAnApplication as problem:
        _complain(problem)
        return EXIT_NOT_AN_APPLICATION
    except Exception:  # noqa: BLE001 - of the application's own module: its author needs the traceback
        traceback.print_exc()
        return EXIT_NOT_AN_APPLICATION
    early.pass_to(client)
    reporter = Reporter(client, given.report_fd)
    try:
        is_finished = _run(client, given.grace, given.schedules)
    except ClientError as problem:
        _complain(problem)
        return 1
    finally:
        reporter.close()
    return 0 if is_finished else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m penstock.worker")
    parser.add_argument("target")
    parser.add_argument("--report-fd", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--schedules", action="store_true")
    return parser


def _complain(problem: Exception) -> None:
    sys.stderr.write(f"error: {problem}\n")


def _run(client: Any, grace_s: float, schedules: bool) -> bool:
    if hasattr(client, "__aenter__"):
        return _run_async(client, grace_s, schedules)
    _stop_without_supervisor(client.stop)
    with client:
        return bool(client.run(grace=grace_s, signals=True, schedules=schedules))


def _run_async(client: Any, grace_s: float, schedules: bool) -> bool:
    import asyncio  # blocking clients need no event loop

    async def run() -> bool:
        loop = asyncio.get_running_loop()
        _stop_without_supervisor(lambda: loop.call_soon_threadsafe(client.stop))
        async with client:
            return bool(await client.run(grace=grace_s, signals=True, schedules=schedules))

    return asyncio.run(run())


def _stop_without_supervisor(stop: Callable[[], object]) -> None:
    """The supervisor holds the other end of standard input, and writes nothing."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        with suppress(RuntimeError):  # the event loop has ended
            stop()

    threading.Thread(target=wait, name="penstock-supervisor-watch", daemon=True).start()


class EarlySignals:
    """SIGTERM before the client runs, which then takes signals itself: it ends as soon as it has begun."""

    def __init__(self) -> None:
        self._client: AnyClient | None = None
        self._is_asked = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def pass_to(self, client: AnyClient) -> None:
        self._client = client
        if self._is_asked:
            client.stop()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._is_asked = True
        if self._client is not None:
            self._client.stop()


class Reporter:
    """Writes the number of jobs to the supervisor, in a thread."""

    def __init__(self, client: AnyClient, fd: int) -> None:
        self._client = client
        self._fd = fd
        self._closed = threading.Event()
        self._write(Report(counts=client.worker_counts(), workers=client.described_workers()))
        self._thread = threading.Thread(target=self._report, name="penstock-reports", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._write(Report(counts=self._client.worker_counts()))

    def _report(self) -> None:
        while not self._closed.wait(REPORT_SECONDS):
            self._write(Report(counts=self._client.worker_counts()))

    def _write(self, report: Report) -> None:
        with suppress(OSError):  # the supervisor has died
            os.write(self._fd, encode(report))
