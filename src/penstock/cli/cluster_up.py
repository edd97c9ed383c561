"""`penstock cluster up`: a cluster of real processes on this machine, for as long as the command runs."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from penstock.cli.cluster_plan import LocalCluster, free_nodes, new_plan, read_plan
from penstock.cli.cluster_processes import LOOK_SECONDS, Children
from penstock.cli.help import examples
from penstock.cli.key_values import key_values
from penstock.cli.output import counted, note, show, table
from penstock.cli.problem import Problem
from penstock.cli.stopping import Stop, stop_on_signals
from penstock.config.node import MAX_NODES

DEFAULT_NODES = 3
DEFAULT_FOLDER = "penstock-cluster"
LAST_PORT = 65_535


@click.command(
    epilog=examples(
        "penstock cluster up",
        "penstock cluster up --nodes 5 --data-dir ./five",
        "penstock cluster up --memory --kafka-port 9092 --http-port 8080",
        "penstock cluster up --nodes 3 --set replication.election_timeout_ms=600",
    )
)
@click.option("--nodes", type=click.IntRange(min=1, max=MAX_NODES),
              help=f"How many.  [default: {DEFAULT_NODES}, or as many as the folder has]")  # fmt: skip
@click.option("--data-dir", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help=f"The cluster's folder, used again the next time.  [default: {DEFAULT_FOLDER}]")  # fmt: skip
@click.option("--memory", is_flag=True, help="Keep everything in memory instead; nothing survives.")
@click.option("--kafka-port", type=click.IntRange(1, LAST_PORT),
              help="Node 1's Kafka port; the others take the next ones.  [default: free ones]")  # fmt: skip
@click.option("--http-port", type=click.IntRange(1, LAST_PORT),
              help="Node 1's HTTP port; the others take the next ones.  [default: free ones]")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
              help="A setting for every node, as often as needed.")  # fmt: skip
def up(
    nodes: int | None,
    data_dir: Path | None,
    memory: bool,
    kafka_port: int | None,
    http_port: int | None,
    settings: tuple[str, ...],
) -> None:
    """Run a local cluster until Ctrl-C.

    Every node is a `penstock serve` process of its own, and more nodes use more cores. Ctrl-C stops them one after
    the other; a second Ctrl-C kills them. If a node dies, the command says so and does not start it again.
    """
    if memory and data_dir is not None:
        raise click.UsageError("--memory and --data-dir exclude each other")
    key_values(settings)
    for port in (kafka_port, http_port):
        if port is not None and port + (nodes or DEFAULT_NODES) - 1 > LAST_PORT:
            raise click.UsageError(
                f"port {port} leaves too few ports for {counted(nodes or DEFAULT_NODES, 'node')}"
            )
    flags = tuple(word for setting in settings for word in ("--set", setting))
    with _folder(data_dir, memory) as folder, stop_on_signals() as stop:
        cluster = _plan(folder, nodes, memory, kafka_port, http_port)
        cluster.write()
        with Children(cluster, flags) as children:
            _run(cluster, children, stop)


@contextmanager
def _folder(data_dir: Path | None, memory: bool) -> Iterator[Path]:
    """The cluster's folder, locked while it runs."""
    if memory:
        with tempfile.TemporaryDirectory(prefix="penstock-cluster-") as name:
            yield Path(name)
        return
    folder = (data_dir or Path(DEFAULT_FOLDER)).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as failure:
        raise Problem(
            f"{folder}: {failure.strerror}", "choose another folder with --data-dir, or --memory"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError:
        raise Problem(
            f"the cluster in {folder} is running already",
            "use it, or choose another folder with --data-dir",
        ) from None
    finally:
        os.close(lock)


def _plan(
    folder: Path, nodes: int | None, memory: bool, kafka_port: int | None, http_port: int | None
) -> LocalCluster:
    known = read_plan(folder)
    if known is None:
        ports = free_nodes(1, kafka_port=kafka_port, http_port=http_port)
        return new_plan(folder, nodes or DEFAULT_NODES, memory=memory, ports=ports)
    first = known.nodes[0]
    if not (first.starts_from(kafka_port, first.kafka) and first.starts_from(http_port, first.http)):
        raise click.UsageError(
            f"the cluster in {folder} has its ports already, node {first.node_id} has {first.kafka} and {first.http}: "
            f"leave --kafka-port and --http-port out, or change {known.file}"
        )
    here = len(known.nodes)
    if nodes is not None and nodes < here:
        raise click.UsageError(
            f"the cluster in {folder} has {counted(here, 'node')}. To have {nodes}, bring it up, `penstock cluster "
            f"decommission` the others, and take them out of {known.file}"
        )
    last = max(node.node_id for node in known.nodes)
    ports = free_nodes(last + 1, kafka_port=kafka_port, http_port=http_port, others=known.nodes)
    return known.grown(nodes or here, ports)


def _run(cluster: LocalCluster, children: Children, stop: Stop) -> None:
    try:
        note(
            f"starting {counted(len(cluster.nodes), 'node')} in {'memory' if cluster.memory else cluster.folder}"
        )
        children.start()
        if children.await_ready(note, stop):
            _announce(cluster, children)
            _watch(cluster, children, stop)
        children.stop(note)
        note("stopped")
    except KeyboardInterrupt:
        note("killed")
        raise click.Abort from None


def _announce(cluster: LocalCluster, children: Children) -> None:
    rows = [
        [
            child.node.node_id,
            child.node.kafka,
            f"http://{child.node.http}",
            child.node.cluster,
            str(child.process.pid),
        ]
        for child in children.all
    ]
    show(table("node", "kafka", "http", "cluster", "pid", rows=rows, numbers=["node", "pid"]))
    show(f"\nbootstrap servers: {cluster.bootstrap}")
    note(f"`penstock cluster status --bootstrap {cluster.nodes[0].kafka}` shows more; Ctrl-C stops all")


def _watch(cluster: LocalCluster, children: Children, stop: Stop) -> None:
    while not stop:
        for child in children.newly_dead():
            note(f"node {child.node.node_id} {child.death()}")
            again = f"penstock serve --config {cluster.file} --node-id {child.node.node_id}"
            note(f"the other nodes go on; start it again with: {again}")
        if not children.any_alive:
            raise Problem(
                "no node is left", f"the logs are in {cluster.folder}" if not cluster.memory else ""
            )
        time.sleep(LOOK_SECONDS)
