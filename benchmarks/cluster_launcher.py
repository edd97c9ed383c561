"""Three brokers on this machine, Penstock's or Kafka's, as a user would start them."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka_launcher import JVM_FLAGS, Unavailable
from start_time import free_port

from penstock.cli.problem import Problem

NODES = 3
START_SECONDS = 90.0
STOP_SECONDS = 60.0
CHECK_SECONDS = 0.05

KAFKA_PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
"""


class Brokers:
    """Processes that are one cluster. Commands come from a subclass."""

    name = ""

    def __init__(self, folder: Path, nodes: int = NODES) -> None:
        self.folder = folder
        self.nodes = nodes
        self.ports = [free_port() for _ in range(nodes)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def command(self, node: int) -> Sequence[str]:
        raise NotImplementedError

    def start_node(self, node: int) -> None:
        home = self.folder / str(node)
        home.mkdir(parents=True, exist_ok=True)
        with (home / "log").open("ab") as log:
            self._processes[node] = subprocess.Popen(self.command(node), stdout=log, stderr=log)

    def kill_node(self, node: int) -> None:
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def __enter__(self) -> Self:
        for node in range(1, self.nodes + 1):
            self.start_node(node)
        self.wait_for_nodes(self.nodes)
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def wait_for_nodes(self, count: int) -> None:
        """Until every node that runs knows of that many."""
        deadline = time.monotonic() + START_SECONDS
        for node in self._processes:
            address = f"127.0.0.1:{self.ports[node - 1]}"
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            while not _knows(admin, count):
                if time.monotonic() > deadline:
                    seconds = f"{START_SECONDS:.0f} s"
                    raise Problem(f"{self.name}: node {node} does not know {count} nodes after {seconds}")
                time.sleep(CHECK_SECONDS)  # no event reports that a broker serves


def _knows(admin: AdminClient, count: int) -> bool:
    try:
        return len(admin.list_topics(timeout=2).brokers) >= count
    except KafkaException:
        return False


class PenstockBrokers(Brokers):
    """Three times `penstock serve`."""

    name = "Penstock"

    def __init__(self, folder: Path, nodes: int = NODES) -> None:
        super().__init__(folder, nodes)
        self._seeds = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]

    def data_dir(self, node: int) -> Path:
        return self.folder / str(node) / "data"

    def command(self, node: int) -> Sequence[str]:
        return [
            sys.executable, "-m", "penstock.cli", "serve", "--node-id", str(node),
            "--kafka", f"127.0.0.1:{self.ports[node - 1]}", "--http", "127.0.0.1:0",
            "--cluster", self._seeds[node - 1], "--seeds", ",".join(self._seeds),
            "--data-dir", str(self.data_dir(node)), "--log-level", "warning",
        ]  # fmt: skip

    def wipe(self, node: int) -> None:
        shutil.rmtree(self.data_dir(node))


class KafkaBrokers(Brokers):
    """Three combined KRaft nodes with Kafka's own defaults: they do not flush before they acknowledge."""

    name = "Kafka"

    def __init__(self, folder: Path, libs: Path) -> None:
        super().__init__(folder)
        self._classpath = f"{libs}/*"
        controllers = [free_port() for _ in range(NODES)]
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, 1))
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node, controller in enumerate(controllers, 1):
            home = folder / str(node)
            home.mkdir(parents=True, exist_ok=True)
            text = KAFKA_PROPERTIES.format(
                node=node, voters=voters, port=self.ports[node - 1], controller=controller, folder=home
            )
            (home / "server.properties").write_text(text)
            self._format(home, cluster_id)

    def _format(self, home: Path, cluster_id: str) -> None:
        command = ["java", "-cp", self._classpath, "kafka.tools.StorageTool", "format"]
        command += [f"--cluster-id={cluster_id}", "--config", str(home / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"Kafka could not format its folder: {done.stderr.strip()}")

    def command(self, node: int) -> Sequence[str]:
        config = self.folder / str(node) / "server.properties"
        return ["java", *JVM_FLAGS, "-cp", self._classpath, "kafka.Kafka", str(config)]


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.log") if file.is_file())


def copy_and_flush(source: Path, target: Path) -> float:
    """Seconds that copying a folder takes, with a flush of what was written: what re-replication is measured
    against."""
    began = time.perf_counter()
    shutil.copytree(source, target)
    for file in target.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    return time.perf_counter() - began
