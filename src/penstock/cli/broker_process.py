"""A broker of our own in a process of its own, for the demo and the benchmarks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from penstock.cli.problem import Problem

STOP_TIMEOUT_S = 30.0
STDERR_SHOWN_LINES = 5
AT_ONCE = ("--set", "groups.initial_rebalance_delay_ms=0")
"""The demo and the benchmarks start one consumer at a time, and should not wait for others."""


class BrokerProcess:
    """`penstock serve` with its data in `folder`; serves when the constructor returns."""

    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        self._errors = folder / "stderr.txt"
        began = time.perf_counter()
        command = [sys.executable, "-m", "penstock.cli", "serve", "--kafka", f"127.0.0.1:{port}"]
        command += [*AT_ONCE, *flags]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=clean_environment(), text=True
            )
        self.console_url: str | None = None
        """The address of the web console; None if the flags gave it no HTTP port."""
        self.bootstrap = self._await_ready()
        self.start_seconds = time.perf_counter() - began

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def _await_ready(self) -> str:
        """Reads the listeners that `serve` prints, until the line that starts with `ready`."""
        assert self._process.stdout is not None
        bootstrap = ""
        for line in self._process.stdout:
            words = line.split()
            if words[:1] == ["kafka"]:
                bootstrap = bootstrap or words[1]
            if words[:1] == ["console"]:
                self.console_url = self.console_url or words[1]
            if words[:1] == ["ready"]:
                return bootstrap
        self._process.wait(STOP_TIMEOUT_S)
        last = self._errors.read_text(errors="replace").strip().splitlines()[-STDERR_SHOWN_LINES:]
        raise Problem("the broker did not start:\n  " + "\n  ".join(last))

    def kill(self) -> None:
        """kill -9: the process gets no chance to tidy up."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """An orderly stop; does nothing when it is gone already."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()


def clean_environment() -> dict[str, str]:
    """The environment without settings of the user's own broker, which this one must not inherit."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
