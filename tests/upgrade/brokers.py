"""Starts `penstock serve` on data folders, and asks the nodes over HTTP.

Only the command line and the HTTP API are used, so that these tests still run when the modules behind them change.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from tests.faults.nodes import Node
from tests.faults.waiting import PATIENCE_SECONDS, eventually
from tests.ports import free_port

YEAR_MS = 365 * 24 * 3600 * 1000

SETTINGS = {
    # Committed offsets of a fixture must not expire, however old it is.
    "groups.offsets_retention_minutes": 100 * YEAR_MS // 60_000,
    # Nor must its transactional ids.
    "transactions.id_expiration_ms": 100 * YEAR_MS,
    # Few partitions: nodes start sooner, and fixtures are small. Ignored where these topics exist.
    "groups.offsets_topic_partitions": 4,
    "groups.state_topic_partitions": 2,
    # Leaders stay where they were elected, so that no answer falls into an election.
    "replication.auto_rebalance": "false",
}


LEADERS_TELL = ("leader", "earliest_offset", "latest_offset", "undone", "unread")


class HttpNode(Node):
    """A node with an HTTP port; without seeds it is alone and has no inter-node port."""

    def __init__(self, node_id: int, folder: Path) -> None:
        super().__init__(node_id, folder)
        self.http_port = free_port()

    def _arguments(self) -> list[str]:
        arguments = ["--node-id", str(self.node_id), "--data-dir", str(self.data_dir)]
        arguments += ["--kafka", self.bootstrap_servers, "--http", f"127.0.0.1:{self.http_port}"]
        if self.seeds:
            arguments += ["--cluster", self.cluster_address, "--seeds", self.seeds]
        for name, value in SETTINGS.items():
            arguments += ["--set", f"{name}={value}"]
        return [*arguments, *self.flags]


class Brokers:
    """Nodes 1 to `count` on the folders node1, node2, ... of `folder`. No process outlives the context."""

    def __init__(self, folder: Path, count: int) -> None:
        self.nodes = {node_id: HttpNode(node_id, folder) for node_id in range(1, count + 1)}
        self.login: dict[str, str] = {}
        """The header by which requests log in, if the nodes require it."""
        if count > 1:
            seeds = ",".join(node.cluster_address for node in self.nodes.values())
            for node in self.nodes.values():
                node.seeds = seeds

    def __enter__(self) -> Self:
        try:
            for node in self.nodes.values():
                node.start()
            for node in self.nodes.values():
                node.wait_ready()
            self.wait_healthy()
        except BaseException as problem:
            self.__exit__(problem)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes.values():
            if node.is_running:
                node.kill()
            if any(exc):
                sys.stdout.write(f"--- node {node.node_id}\n{node.output()}")

    def stop(self) -> None:
        """SIGTERM to all at once."""
        running = [node for node in self.nodes.values() if node.is_running]
        for node in running:
            node.terminate()
        for node in running:
            code = node.wait_stopped()
            assert code == 0, f"node {node.node_id} exited with {code}:\n{node.output()}"

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    @property
    def servers(self) -> str:
        return ",".join(node.bootstrap_servers for node in self.nodes.values())

    def wait_healthy(self) -> None:
        """All nodes run, and every replica is in sync with its leader."""
        eventually(lambda: self.ask("GET", "/v1/cluster").get("healthy"), "a healthy cluster")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The response of the first node that runs. Retries while it is 503: a leader is being elected."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            node = next(node for node in self.nodes.values() if node.is_running)
            request = urllib.request.Request(
                f"http://127.0.0.1:{node.http_port}{path}",
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json", **self.login},
            )
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                    return json.loads(response.read() or b"null")
            except urllib.error.HTTPError as refused:
                text = refused.read().decode()
                if refused.code != 503 or time.monotonic() > deadline:
                    raise AssertionError(f"{method} {path}: {refused.code} {text}") from None
            time.sleep(0.05)

    def partitions(self, path: str) -> list[dict[str, Any]]:
        """The facts of each partition on this page. Numbers are null while a partition has no leader: retries then."""
        rows: list[dict[str, Any]] = []

        def all_told() -> bool:
            rows[:] = self.ask("GET", path)["partitions"]
            return all(row.get(name, 0) is not None for row in rows for name in LEADERS_TELL)

        eventually(all_told, f"a leader of every partition of {path}")
        return rows

    def queue(self, name: str, path: str = "", body: object = None) -> Any:
        """GET, or POST if there is a body, to a path below the queue."""
        return self.ask("GET" if body is None else "POST", f"/v1/queues/{quote(name, safe='')}{path}", body)
