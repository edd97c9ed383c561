"""Penstock as a user starts it, for comparison."""

import subprocess
import sys
from pathlib import Path

from start_time import free_port, seconds_until_serving

from penstock.cli.problem import Problem

STOP_TIMEOUT_S = 60


class Penstock:
    """`penstock serve` as a user starts it, with its data in `folder`."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None) -> None:
        """`flags` of `penstock serve`. With `port` they name the Kafka port, too."""
        self.port, self.http_port = port or free_port(), free_port()
        kafka = [] if port is not None else ["--kafka", f"127.0.0.1:{self.port}"]
        self.command = [sys.executable, "-m", "penstock.cli", "serve", *kafka, *flags]
        self.command += ["--http", f"127.0.0.1:{self.http_port}", "--log-level", "warning"]
        if "--memory" not in flags:
            self.command += ["--data-dir", str(folder / "data")]
        self.folder = folder
        self._log = folder / "penstock.log"
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> float:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log)
        try:
            return seconds_until_serving(self._process, self.port)
        except TimeoutError as failure:
            self.stop()
            raise Problem(f"Penstock did not start ({failure}): {self._log.read_text()[-500:]}") from None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def kill(self) -> None:
        """As a crash would: nothing is told, nothing is flushed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None
