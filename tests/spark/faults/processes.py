"""Processes that tests start, kill and pause: Spark's driver with its children, and a broker."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from tests.node.processes import BrokerProcess
from tests.spark.conftest import SETTINGS

PATIENCE_S = 240.0
ROOT = Path(__file__).parents[3]
EXECUTOR = "CoarseGrainedExecutorBackend"
EXECUTORS = 2
LOCAL = "local[6,4]"
"""Six tasks at a time, since some wait at gates; four attempts for each."""
CLUSTER = f"local-cluster[{EXECUTORS},3,1024]"
"""Each executor has a core for one task of each of three queries, so that one kill hits all queries."""
GATED = {"spark.sql.execution.arrow.maxRecordsPerBatch": "250"}
"""Small Arrow batches, so that a gate between the source and the sink holds a task in its middle."""


def until(condition: Callable[[], object], what: str, told: Callable[[], str] = str) -> None:
    """Returns when a condition holds; `told` gives details for the failure."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:.0f} s: {what}\n{told()}"
        time.sleep(0.05)


class DriverProcess:
    """driver.py on a master. It leads a session of processes: JVMs and Python workers, which have groups of their own,
    are found by that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._master = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._told = 0
        self._lives = 0
        self._application = ""

    @property
    def _has_failed(self) -> bool:
        """Whether one of its queries has failed: later results are then meaningless."""
        return (self._answers / "failed").exists()

    def run(self, master: str | None = None) -> None:
        """Starts the driver unless it runs, on that master if one is given."""
        if self._has_failed or master not in (None, self._master):
            self.kill()
        if self._process is None:
            self.start(master or LOCAL)

    def start(self, master: str) -> None:
        """Returns when Spark is up."""
        self._master = master
        self._lives += 1
        self._told = 0
        self._answers.mkdir(parents=True)
        settings = {
            **SETTINGS,
            **GATED,
            "spark.master": self._master,
            "spark.local.dir": str(self._folder / "local"),
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.python.daemon.module": "tests.spark.daemon" if master == CLUSTER else "pyspark.daemon",
        }
        command = [
            sys.executable,
            "-m",
            "tests.spark.faults.driver",
            str(self._answers),
            json.dumps(settings),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": _path(), "SPARK_LOCAL_IP": "127.0.0.1"},
                start_new_session=True,
            )
        self._application = self.ask("hello")

    def ask(self, command: str, **arguments: object) -> Any:
        """The answer to a command."""
        return self.answer_to(self.tell(command, **arguments))

    def tell(self, command: str, **arguments: object) -> int:
        """Sends a command without waiting; returns its number."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        self._process.stdin.flush()
        self._told += 1
        return self._told - 1

    def answer_to(self, number: int) -> Any:
        file = self._answers / f"{number}.json"
        self.until(file.exists, f"the answer to command {number}")
        answer = json.loads(file.read_text())
        assert "error" not in answer, answer["error"] + self._last_words()
        return answer["result"]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Returns when a condition holds; fails as soon as the driver is gone."""

        def holds() -> object:
            assert self._process is not None
            assert self._process.poll() is None, f"the driver ended\n{self._last_words()}"
            assert not self._has_failed, (self._answers / "failed").read_text()
            return condition()

        until(holds, what, self._last_words)

    def executors(self) -> list[psutil.Process]:
        return [each for each in self._session() if EXECUTOR in " ".join(_command_of(each))]

    def workers_of(self, executor: psutil.Process, servers: str) -> list[psutil.Process]:
        """The Python workers of an executor that are connected to a broker: those that read, and those that write."""
        port = int(servers.rpartition(":")[2])
        return [each for each in executor.children(recursive=True) if _speaks_with(each, port)]

    def kill(self) -> None:
        """Kills all processes at once."""
        process, self._process = self._process, None
        if process is None:
            return
        session = self._session(process.pid)
        for each in session:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.communicate()
        psutil.wait_procs(session, timeout=10)
        self._clean_up()

    def _clean_up(self) -> None:
        """Removes the files that workers of local-cluster leave in Spark's own folder."""
        work = Path(pyspark.__file__).parent / "work"
        if self._application:
            shutil.rmtree(work / self._application, ignore_errors=True)
        with suppress(OSError):  # others may use it
            work.rmdir()

    @property
    def _answers(self) -> Path:
        return self._folder / f"answers-{self._lives}"

    @property
    def _log(self) -> Path:
        return self._folder / "driver.log"

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-6_000:] if self._log.exists() else ""

    def _session(self, leader: int | None = None) -> list[psutil.Process]:
        if leader is None:
            assert self._process is not None
            leader = self._process.pid
        found = []
        for each in psutil.process_iter():
            with suppress(ProcessLookupError):
                if os.getsid(each.pid) == leader:
                    found.append(each)
        return found


class FaultyBroker(BrokerProcess):
    """A broker on disk that can also be paused."""

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)


def _path() -> str:
    """The path by which Python workers find the tests from any folder."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _speaks_with(process: psutil.Process, port: int) -> bool:
    try:
        return any(each.raddr and each.raddr.port == port for each in process.net_connections("tcp"))
    except psutil.Error:
        return False
