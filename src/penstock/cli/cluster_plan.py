"""The plan of a local cluster: its nodes, their ports and folders. It is stored as one `cluster.toml`, which
`penstock serve --config` reads for single nodes, too.
"""

import json
import random
import socket
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from penstock.cli.problem import Problem
from penstock.config.node import MAX_NODES

FILE = "cluster.toml"
HOST = "127.0.0.1"
REPLICAS = 3
"""Replicas of topics that are created without a number, if there are as many nodes: one node may be lost."""
PORTS = range(10_000, 30_000)
"""Below the ports that Linux gives to outgoing connections (32768 and up): a cluster that is started again needs the
same ports, so no outgoing connection of another program may have taken one meanwhile."""
TRIES = 200

_chosen: set[int] = set()
"""All that `free_port` returned. Not every system can reserve a port."""
_reserved: list[socket.socket] = []
"""One for each port that was chosen: bound, not listening, and open as long as this process runs. Linux lets a node
listen on such a port, and refuses it to a program that looks for a free one. Without them, two clusters that start at
the same time could choose the same port, or one cluster the port of another one's node that starts again."""


class LocalNode(msgspec.Struct, frozen=True, kw_only=True):
    node_id: int
    kafka: str
    http: str
    cluster: str

    @property
    def ports(self) -> list[int]:
        return [int(address.rpartition(":")[2]) for address in (self.kafka, self.http, self.cluster)]

    def starts_from(self, first_port: int | None, address: str) -> bool:
        """Whether this address is what the node gets if node 1 has this port; any is, if none was asked for."""
        return first_port is None or address.endswith(f":{first_port + self.node_id - 1}")


class LocalCluster(msgspec.Struct, frozen=True, kw_only=True):
    """`folder` holds the file, the nodes' data (unless it is kept in memory) and their logs."""

    folder: Path
    memory: bool
    founders: int
    """This many nodes, the first ones, found the cluster; later ones join it."""
    nodes: tuple[LocalNode, ...]

    @property
    def file(self) -> Path:
        return self.folder / FILE

    @property
    def bootstrap(self) -> str:
        return ",".join(node.kafka for node in self.nodes)

    def data_dir(self, node: LocalNode) -> Path:
        return self.folder / f"node-{node.node_id}"

    def log_file(self, node: LocalNode) -> Path:
        return self.folder / f"node-{node.node_id}.log"

    def grown(self, nodes: int, ports: Iterator[LocalNode]) -> "LocalCluster":
        """The same with more nodes, which join."""
        more = tuple(next(ports) for _ in range(nodes - len(self.nodes)))
        return msgspec.structs.replace(self, nodes=self.nodes + more)

    def write(self) -> None:
        self.file.write_text(self._text(), encoding="utf-8")

    def _text(self) -> str:
        seeds = [node.cluster for node in self.nodes[: self.founders]]
        lines = [
            "# Made by `penstock cluster up`, which continues it when it finds it. One node alone:",
            f"#   penstock serve --config {self.file} --node-id {self.nodes[0].node_id}",
            f"default_replication_factor = {min(REPLICAS, len(self.nodes))}",
            f"seeds = {json.dumps(seeds)}",
        ]
        for node in self.nodes:
            place = "true" if self.memory else json.dumps(str(self.data_dir(node)), ensure_ascii=False)
            lines += [
                f"\n[nodes.{node.node_id}]",
                f"{'memory' if self.memory else 'data_dir'} = {place}",
                f'kafka = "{node.kafka}"',
                f'http = "{node.http}"',
                f'cluster = "{node.cluster}"',
            ]
        return "\n".join(lines) + "\n"


def read_plan(folder: Path) -> LocalCluster | None:
    """The cluster that is in this folder; None if there is none."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        tables = sorted((int(node_id), table) for node_id, table in document["nodes"].items())
        nodes = tuple(_node(node_id, table) for node_id, table in tables)
        return LocalCluster(folder=folder, memory=False, founders=len(document["seeds"]), nodes=nodes)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, ValueError, TypeError) as wrong:
        raise Problem(
            f"{file} cannot be continued: {wrong!r}",
            "start its nodes one by one with `penstock serve --config`, or choose another --data-dir",
        ) from None


def _node(node_id: int, table: dict[str, Any]) -> LocalNode:
    return LocalNode(node_id=node_id, kafka=table["kafka"], http=table["http"], cluster=table["cluster"])


def new_plan(folder: Path, nodes: int, *, memory: bool, ports: Iterator[LocalNode]) -> LocalCluster:
    chosen = tuple(next(ports) for _ in range(nodes))
    return LocalCluster(folder=folder, memory=memory, founders=nodes, nodes=chosen)


def free_nodes(
    first_id: int, *, kafka_port: int | None, http_port: int | None, others: Iterable[LocalNode] = ()
) -> Iterator[LocalNode]:
    """Nodes one after the other, on free ports; a given port is the first node's, and the others take the ones after
    it. `others`: the nodes that the cluster has already, which may not be running."""
    given = [port for port in (kafka_port, http_port) if port is not None]
    used = {port for node in others for port in node.ports}
    kept_free = used | {port + number for port in given for number in range(MAX_NODES)}
    node_id = first_id
    while True:
        kafka = _port(kafka_port, node_id, "--kafka-port", kept_free, used)
        http = _port(http_port, node_id, "--http-port", kept_free, used)
        yield LocalNode(
            node_id=node_id,
            kafka=f"{HOST}:{kafka}",
            http=f"{HOST}:{http}",
            cluster=f"{HOST}:{free_port(kept_free)}",
        )
        node_id += 1


def free_port(besides: Container[int] = ()) -> int:
    """Free for TCP and for UDP (the inter-node port is both), and chosen only once by this process. Linux also reserves
    it while this process runs."""
    for _ in range(TRIES):
        port = random.choice(PORTS)
        if port in _chosen or port in besides:
            continue
        with suppress(OSError), ExitStack() as udp, ExitStack() as tcp:
            _bind(udp, port, socket.SOCK_DGRAM)
            reserved = _bind(tcp, port, socket.SOCK_STREAM)
            if sys.platform == "linux":
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # nodes set it, too
                _reserved.append(reserved)
                tcp.pop_all()
            _chosen.add(port)
            return port
    raise Problem("no free port was found", "give one with --kafka-port and --http-port")


def _port(first: int | None, node_id: int, option: str, kept_free: Container[int], used: set[int]) -> int:
    """`used`: ports of the nodes so far. Two sockets may be bound to the same port as long as neither
    listens, so binding alone would not find a port that the same plan uses twice."""
    if first is None:
        return free_port(kept_free)
    port = first + node_id - 1
    if port in used:
        raise Problem(
            f"port {port}, for node {node_id}, is a port of another node of this cluster",
            "leave more ports between --kafka-port and --http-port: each node takes the next one of both",
        )
    try:
        with ExitStack() as held:  # a port that was closed a minute ago does not count as taken
            _bind(held, port, socket.SOCK_STREAM, reuse=True)
    except OSError as taken:
        raise Problem(
            f"port {port}, for node {node_id}, is not free: {taken.strerror}",
            f"choose another {option}, or leave it out for free ones",
        ) from None
    used.add(port)
    return port


def _bind(held: ExitStack, port: int, kind: socket.SocketKind, *, reuse: bool = False) -> socket.socket:
    """Binds it without listening; OSError if another process has it."""
    sock = held.enter_context(socket.socket(socket.AF_INET, kind))
    if reuse:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, port))
    return sock
