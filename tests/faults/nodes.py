"""A cluster of real processes on this machine, and the faults that tests inject.

A process dies with the test that started it: the cluster is a context manager, and on Linux the kernel kills the
processes of a test run that was killed itself.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

from tests.faults.waiting import PATIENCE_SECONDS
from tests.ports import free_port

LAUNCH = """
import sys
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
from penstock.cli import main
main()
"""


class Node:
    """One node: its ports and its folder stay when its process ends."""

    def __init__(self, node_id: int, folder: Path, *, seeds: str = "", advertise: int | None = None) -> None:
        """`advertise`: the port that the other nodes are told instead of the real inter-node port."""
        self.node_id = node_id
        self.data_dir = folder / f"node{node_id}"
        self.kafka_port = free_port()
        self.cluster_port = free_port()
        self.advertised_port = advertise or self.cluster_port
        self.seeds = seeds
        self.flags: tuple[str, ...] = ()
        self.has_cluster_port = True
        """False: it is alone, as `penstock serve` is by default."""
        self.open_files: int | None = None
        """The most files that its process may open (`ulimit -n`); None: as many as this process."""
        self.lines: list[str] = []
        """Its output on both streams, of all its processes."""
        self._said = threading.Condition()
        self._began = 0
        """The first line of the current process."""
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"

    @property
    def cluster_address(self) -> str:
        return f"127.0.0.1:{self.advertised_port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # --- starting and stopping

    def start(self) -> None:
        """Does not wait for it: `wait_ready` does."""
        assert not self.is_running
        self._began = len(self.lines)
        self._process = subprocess.Popen(
            [*self._limited(), sys.executable, "-c", LAUNCH, "serve", *self._arguments()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=_environment(),
        )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._reader.start()

    def _limited(self) -> list[str]:
        """The shell sets the limit and becomes the node, so that the process keeps its id."""
        return (
            [] if self.open_files is None else ["sh", "-c", f'ulimit -n {self.open_files} && exec "$@"', "sh"]
        )

    def _arguments(self) -> list[str]:
        arguments = ["--node-id", str(self.node_id), "--data-dir", str(self.data_dir), "--http", "none"]
        arguments += ["--kafka", self.bootstrap_servers]
        if self.has_cluster_port:
            arguments += ["--cluster", f"127.0.0.1:{self.cluster_port}"]
        if self.advertised_port != self.cluster_port:
            arguments += ["--set", f"cluster_advertise=127.0.0.1:{self.advertised_port}"]
        if self.seeds:
            arguments += ["--seeds", self.seeds]
        return [*arguments, *self.flags]

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._said:
                self.lines.append(line)
                self._said.notify_all()
        with self._said:
            self._said.notify_all()

    def wait_ready(self) -> None:
        """It serves clients."""
        self.wait_said("ready ", within_this_process=True)

    def wait_said(self, *words: str, within_this_process: bool = False) -> str:
        """Waits for a line of output that contains all these words, and returns it."""
        start = self._began if within_this_process else 0

        def found() -> str | None:
            return next((line for line in self.lines[start:] if all(each in line for each in words)), None)

        with self._said:
            line = self._said.wait_for(lambda: found() or self._is_over(), PATIENCE_SECONDS)
            assert isinstance(line, str), f"node {self.node_id} never said {words}"
            return line

    def _is_over(self) -> bool:
        return self._reader is not None and not self._reader.is_alive() and not self.is_running

    def output(self) -> str:
        return "".join(self.lines[-60:])

    def kill(self) -> None:
        """kill -9."""
        self._signal(signal.SIGKILL)
        self._ended()

    def terminate(self) -> None:
        """Asks it to stop; `wait_stopped` waits until it has."""
        self._signal(signal.SIGTERM)

    def wait_stopped(self) -> int:
        """Its exit code."""
        return self._ended()

    def stop(self) -> int:
        self.terminate()
        return self._ended()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Its disk was replaced."""
        assert not self.is_running
        shutil.rmtree(self.data_dir)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _ended(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


class Cluster:
    """Nodes 1 to `count`, which found a cluster together. Leave it as a context, and no process is left."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        flags: Iterable[str] = (),
        advertise: Mapping[int, int] | None = None,
    ) -> None:
        """`advertise`: for each node the port of the relay in front of it."""
        self._folder = folder
        self._flags = tuple(flags)
        self.nodes: dict[int, Node] = {}
        for node_id in range(1, count + 1):
            self._make(node_id, (advertise or {}).get(node_id))
        self._seeds = ",".join(node.cluster_address for node in self.nodes.values())
        for node in self.nodes.values():
            node.seeds = self._seeds

    def _make(self, node_id: int, advertise: int | None = None) -> Node:
        node = self.nodes[node_id] = Node(node_id, self._folder, advertise=advertise)
        node.flags = self._flags
        return node

    def __enter__(self) -> Self:
        try:
            for node in self.nodes.values():
                node.start()
            self.wait_ready()
        except BaseException as problem:
            self.__exit__(problem)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        """Prints the output of all nodes if a test failed."""
        for node in self.nodes.values():
            if node.is_running:
                node.kill()
            if any(exc):
                sys.stdout.write(f"--- node {node.node_id}\n{node.output()}")

    def __getitem__(self, node_id: int) -> Node:
        return self.nodes[node_id]

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_running]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    @property
    def seeds(self) -> str:
        return self._seeds

    def wait_ready(self) -> None:
        for node in self.running:
            node.wait_ready()

    def join(self, node_id: int, *, seeds: str = "") -> Node:
        """Another node, which finds the cluster by its seeds; ready when this returns."""
        node = self._make(node_id)
        node.seeds = seeds or self._seeds
        node.start()
        node.wait_ready()
        return node

    def bugs(self) -> list[str]:
        """Log lines that no external fault should cause."""
        signs = ("Traceback", "a bug in", "never retrieved", "AssertionError")
        return [line for node in self.nodes.values() for line in node.lines if any(s in line for s in signs)]


def seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def _environment() -> dict[str, str]:
    """Without settings of the developer's own broker. Consumers should not wait for more members."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**own, "PYTHONUNBUFFERED": "1", "PENSTOCK_GROUPS_INITIAL_REBALANCE_DELAY_MS": "0"}
