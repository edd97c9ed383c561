"""A broker as a process of its own, to be killed."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.ports import free_port


class BrokerProcess:
    """`penstock serve` on a data folder and a fixed port, so that clients find it again after a restart."""

    def __init__(self, data_dir: Path, *, files_max: int | None = None, http: str = "none") -> None:
        """`files_max`: how many files the process may open."""
        self._http = http
        self._data_dir = data_dir
        self._files_max = files_max
        self.bootstrap_servers = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[str] | None = None
        self.output: list[str] = []

    def start(self) -> None:
        """Returns when the broker has printed that it is ready."""
        command = [sys.executable, "-m", "penstock.cli", "serve", "--http", self._http]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(self._data_dir), "--kafka", self.bootstrap_servers],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            preexec_fn=self._limit_files if self._files_max is not None else None,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line)
            if line.startswith("ready"):
                return
        raise AssertionError("the broker did not start:\n" + "".join(self.output))

    def _limit_files(self) -> None:
        assert self._files_max is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._files_max, self._files_max))

    def memory_bytes(self) -> int:
        """The memory of the process now."""
        assert self._process is not None
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        output, _ = process.communicate(timeout=60)
        self.output.append(output)
        return process.returncode
