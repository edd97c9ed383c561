"""The nodes that a scenario attacks: real processes on free ports of 127.0.0.1, with their data in a temporary folder.

All of them have small memory limits, so that a limit that does not hold shows soon, and on a small machine.
"""

import http.client
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.faults.nodes import Cluster, Node
from tests.ports import free_port
from tools.hostile.gossip_relay import GossipRelay
from tools.hostile.log_lines import find_bugs, find_stalls
from tools.hostile.setups import OPEN_ACCESS, Material, Setup

MEBIBYTE = 1024 * 1024
CLIENT_MEMORY_BYTES = 256 * MEBIBYTE
HTTP_MEMORY_BYTES = 64 * MEBIBYTE
LIMITS = (
    "--set", f"limits.max_client_memory_bytes={CLIENT_MEMORY_BYTES}",
    "--set", f"limits.max_http_memory_bytes={HTTP_MEMORY_BYTES}",
)  # fmt: skip
KEY = "0123456789abcdef" * 4
"""Nodes of a cluster have a key: a client on the network does not."""
SLOW_TURNS = b"penstock_event_loop_slow_turns_total "
METRICS_SECONDS = 30.0
ADMIN_LINE = "admin password:"


class Usage(NamedTuple):
    """What a process holds."""

    memory_bytes: int
    descriptors: int
    """Open ones that are no files: sockets above all. Files stay open with their partitions."""


class Attacked:
    """One node under attack."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.http_port = free_port()
        node.flags += ("--http", f"127.0.0.1:{self.http_port}", *LIMITS)
        self._judged_lines = 0

    @property
    def name(self) -> str:
        return f"node {self.node.node_id}"

    def usage(self) -> Usage | None:
        """None if the process has ended."""
        try:
            process = psutil.Process(self.node.pid)
            descriptors = process.num_fds() - len(process.open_files())
            return Usage(process.memory_info().rss, descriptors)
        except psutil.Error:
            return None

    def slow_turns(self) -> int:
        """How often its own watchdog has seen the event loop held; 0 if it does not answer."""
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=METRICS_SECONDS)
            connection.request("GET", "/metrics", headers={"Connection": "close"})
            for line in connection.getresponse().read().splitlines():
                if line.startswith(SLOW_TURNS):
                    return int(float(line.removeprefix(SLOW_TURNS)))
        return 0

    def new_bugs(self) -> list[str]:
        """Reports of bugs in its log since this was last asked."""
        begin, self._judged_lines = self._judged_lines, len(self.node.lines)
        return find_bugs(self.node.lines[begin : self._judged_lines])


class Brokers:
    """One node alone, or a cluster. Leave it as a context, and no process and no file is left."""

    def __init__(
        self,
        count: int,
        flags: tuple[str, ...] = (),
        open_files: int | None = None,
        setup: Setup = Setup.OPEN,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-hostile-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self.material = Material(setup, folder)
        self.relay = GossipRelay(range(1, count + 1)) if setup is Setup.RELAYED else None
        self.access = OPEN_ACCESS
        """Of honest clients, once the nodes run."""
        nodes = self._make_nodes(folder, count, (*flags, *self.material.flags()))
        for node in nodes:
            node.open_files = open_files
        self.nodes = [Attacked(node) for node in nodes]

    def _make_nodes(self, folder: Path, count: int, flags: tuple[str, ...]) -> list[Node]:
        if count == 1:
            node = Node(1, folder)
            node.has_cluster_port = False
            node.flags = flags
            return [node]
        key = folder / "cluster.key"
        key.write_text(KEY)
        cluster = Cluster(
            folder,
            count,
            flags=("--cluster-key-file", str(key), *flags),
            advertise=self.relay.ports if self.relay is not None else None,
        )
        if self.relay is not None:
            self.relay.__enter__()
            self.relay.watch(cluster.nodes)
        return list(cluster.nodes.values())

    def __enter__(self) -> "Brokers":
        try:
            for one in self.nodes:
                one.node.start()
            for one in self.nodes:
                one.node.wait_ready()
            password = ""
            if self.material.setup is Setup.LOGIN:
                password = self.nodes[0].node.wait_said(ADMIN_LINE).split()[-1]
            self.access = self.material.access(password)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self.nodes:
            if one.node.is_running:
                one.node.kill()
        if self.relay is not None:
            self.relay.__exit__()
        self.material.close()
        self._folder.cleanup()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(one.node.bootstrap_servers for one in self.nodes)

    def restart_dead(self) -> list[str]:
        """Starts the nodes again whose processes have ended: their acked records must have survived. Returns which
        these are, with the end of their output."""
        dead = [one for one in self.nodes if not one.node.is_running]
        died = [f"{one.name} died: {' '.join(one.node.output().split())[-400:]}" for one in dead]
        for one in dead:
            one.node.start()
        for one in dead:
            try:
                one.node.wait_ready()
            except AssertionError as never:
                died.append(str(never))
        return died

    def new_bugs(self) -> list[str]:
        return [f"{one.name}: {bug}" for one in self.nodes for bug in one.new_bugs()]

    def stalls(self) -> list[str]:
        return [f"{one.name}: {line}" for one in self.nodes for line in find_stalls(one.node.lines)]

    def log_lines(self) -> list[str]:
        return [line for one in self.nodes for line in one.node.lines]

    def stop(self) -> list[str]:
        """Stops the nodes that run, in order. Problems if one does not stop as it should."""
        problems = []
        running = [one for one in self.nodes if one.node.is_running]
        for one in running:
            one.node.terminate()
        for one in running:
            try:
                code = one.node.wait_stopped()
            except subprocess.TimeoutExpired:
                code = -1
            if code != 0:
                problems.append(f"{one.name} did not stop in order: exit code {code}")
        return problems
