"""`penstock serve --processes` with real processes: they serve as one, and none outlives the command."""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.ports import free_port, free_ports
from tests.tls import Certificates

WAIT_SECONDS = 60
COMMAND = [sys.executable, "-m", "penstock.cli", "serve"]
ANYWHERE = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


class Machine:
    """The command, until it is ready."""

    def __init__(self, data_dir: Path | None, *flags: str, processes: int = 2, **environment: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        folder = ("--data-dir", str(data_dir)) if data_dir else ()
        command = [*COMMAND, *folder, "--processes", str(processes), *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, **environment}
        )
        self._log: list[str] = []
        self._logged = threading.Condition()
        threading.Thread(target=self._read_log, daemon=True).start()
        self.lines: list[str] = []

    def await_ready(self) -> "Machine":
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("ready"):
                return self
        raise AssertionError(f"it ended with {self.process.wait()}: {''.join(self._log)}")

    def line(self, start: str) -> str:
        """The line that begins so: it may come before or after the one that says ready."""
        assert self.process.stdout is not None
        lines = itertools.chain(self.lines, self.process.stdout)
        return next(line.strip() for line in lines if line.startswith(start))

    def said(self, word: str) -> list[str]:
        """The values behind a first word, in the order of processes."""
        return [line.split()[1] for line in self.lines if line.startswith(word)]

    @property
    def bootstrap(self) -> str:
        """The first port is enough."""
        return self.said("kafka")[0]

    @property
    def log(self) -> str:
        return "".join(self._log)

    def children(self) -> list[psutil.Process]:
        """In the order of their numbers."""
        return sorted(psutil.Process(self.process.pid).children(), key=lambda child: child.pid)

    def child_of(self, port: str) -> psutil.Process:
        """The process that listens there."""
        for child in self.children():
            if any(
                one.laddr and one.laddr.port == int(port.rpartition(":")[2])
                for one in child.net_connections()
            ):
                return child
        raise AssertionError(f"no process listens at {port}")

    def until_logged(self, *parts: str) -> None:
        def is_there() -> bool:
            return any(all(part in line for part in parts) for line in self._log)

        with self._logged:
            assert self._logged.wait_for(is_there, WAIT_SECONDS), self.log

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_SECONDS)

    def kill(self) -> None:
        """The command alone; its children end by themselves."""
        children = self.children() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(children, timeout=WAIT_SECONDS)
        for one in alive:
            one.kill()
        assert not alive, "children that outlive the command"

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._logged:
                self._log.append(line)
                self._logged.notify_all()


Start = Callable[..., Machine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    machines: list[Machine] = []

    def begin(*flags: str, **how: Any) -> Machine:
        data_dir = how.pop("data_dir", tmp_path / "data")
        machines.append(Machine(data_dir, *(flags or ANYWHERE), **how))
        return machines[-1]

    yield begin
    for machine in machines:
        machine.kill()


def adjacent_ports() -> tuple[int, int]:
    while True:
        port = free_port()
        with socket.socket() as following, suppress(OSError):
            following.bind(("127.0.0.1", port + 1))
            return port, port + 1


def create(bootstrap: str, topic: str, partitions: int, **settings: Any) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **settings})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(WAIT_SECONDS)


def leaders(bootstrap: str, topic: str, **settings: Any) -> list[int]:
    found = AdminClient({"bootstrap.servers": bootstrap, **settings}).list_topics(topic, WAIT_SECONDS)
    partitions = found.topics[topic].partitions
    return [partitions[number].leader for number in sorted(partitions)]


def replica_counts(bootstrap: str, topic: str) -> set[int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, WAIT_SECONDS)
    return {len(one.replicas) for one in found.topics[topic].partitions.values()}


def produce(bootstrap: str, topic: str, partitions: int, values: range, **settings: Any) -> None:
    """Each value to every partition, acked."""
    failures: list[object] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, **settings}
    )
    for value in values:
        for partition in range(partitions):
            producer.produce(
                topic,
                str(value).encode(),
                partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
    assert producer.flush(WAIT_SECONDS) == 0
    assert failures == []


def consume(bootstrap: str, topic: str, partitions: int, count: int, **settings: Any) -> list[list[int]]:
    """The values of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", **settings})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    values: list[list[int]] = [[] for _ in range(partitions)]
    deadline = time.monotonic() + WAIT_SECONDS
    while sum(map(len, values)) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                values[message.partition() or 0].append(int(message.value() or b"-1"))
    consumer.close()
    return values


def test_two_processes_serve_the_partitions_of_one_topic_and_stop_together(start: Start) -> None:
    machine = start().await_ready()
    first, second = machine.said("kafka")
    assert machine.lines[-1].startswith("ready   2 processes in ")
    assert f"kafka {first}, {second}; Ctrl-C stops them" in machine.lines[-1]
    assert "(process 1, node 1)" in machine.lines[0]
    create(first, "orders", 4)
    assert sorted(leaders(first, "orders")) == [1, 1, 101, 101]
    assert replica_counts(first, "orders") == {1}
    produce(first, "orders", 4, range(100))
    assert consume(second, "orders", 4, 400) == [list(range(100))] * 4
    admin = AdminClient({"bootstrap.servers": first})
    made = admin.create_topics([NewTopic("wide", 1, 2)])
    with pytest.raises(KafkaException, match="2 nodes on 1 machine"):
        made["wide"].result(WAIT_SECONDS)
    children = machine.children()
    assert machine.stop() == 0
    assert [child for child in children if child.is_running()] == []
    assert machine.process.stdout is not None
    assert machine.process.stdout.read() == "stopped\n"
    assert "process 1 penstock." in machine.log
    assert "process 2 penstock." in machine.log


def test_status_shows_the_machine_and_its_processes(start: Start) -> None:
    machine = start().await_ready()
    found = httpx.get(machine.said("http")[1] + "/v1/cluster", trust_env=False).json()
    assert {one["node_id"]: one["machine"] for one in found["nodes"]} == {1: "machine-1", 101: "machine-1"}
    assert {one["node_id"]: one["rack"] for one in found["nodes"]} == {1: "machine-1", 101: "machine-1"}
    assert found["metadata"]["voters"] == [1]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_is_started_again_and_nothing_acked_is_lost(start: Start, victim: int) -> None:
    machine = start().await_ready()
    ports = machine.said("kafka")
    create(machine.bootstrap, "orders", 4)
    produce(machine.bootstrap, "orders", 4, range(200))
    other = machine.child_of(ports[1 - victim])
    machine.child_of(ports[victim]).kill()
    machine.until_logged(f"process {victim + 1} (node", "was killed by SIGKILL; it is started again")
    machine.until_logged(f"process {victim + 1} (node", "is ready again")
    assert machine.child_of(ports[1 - victim]).pid == other.pid, "the other one goes on"
    produce(machine.bootstrap, "orders", 4, range(200, 300))
    assert consume(machine.bootstrap, "orders", 4, 1200) == [list(range(300))] * 4
    assert machine.stop() == 0


def test_the_death_of_the_command_ends_its_processes_and_the_next_one_finds_the_data(start: Start) -> None:
    port, _ = adjacent_ports()
    flags = ("--kafka", f"127.0.0.1:{port}", "--http", "none")
    machine = start(*flags).await_ready()
    create(machine.bootstrap, "orders", 4)
    produce(machine.bootstrap, "orders", 4, range(50))
    machine.kill()
    again = start(*flags).await_ready()
    assert again.said("kafka") == [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    assert consume(again.bootstrap, "orders", 4, 200) == [list(range(50))] * 4


def test_a_lone_node_goes_on_as_the_first_process_and_shares_its_partitions(start: Start) -> None:
    lone = start(processes=1).await_ready()
    create(lone.bootstrap, "orders", 4)
    produce(lone.bootstrap, "orders", 4, range(20))
    assert lone.stop() == 0
    machine = start(processes=2).await_ready()
    assert consume(machine.bootstrap, "orders", 4, 80) == [list(range(20))] * 4
    deadline = time.monotonic() + WAIT_SECONDS
    while leaders(machine.bootstrap, "orders").count(101) < 2 or replica_counts(
        machine.bootstrap, "orders"
    ) != {1}:
        # A partition that moves has both replicas for a while.
        assert time.monotonic() < deadline, "the new process gets no partitions"
        time.sleep(0.1)
    assert consume(machine.bootstrap, "orders", 4, 80) == [list(range(20))] * 4


@pytest.mark.parametrize("processes", [1, 2])
def test_fewer_processes_than_have_data_are_refused(start: Start, tmp_path: Path, processes: int) -> None:
    (tmp_path / "data" / "process-3").mkdir(parents=True)
    machine = start(processes=processes)
    assert machine.process.wait(WAIT_SECONDS) == 2
    machine.until_logged("process-3 has data of process 3")
    machine.until_logged("--processes 3", "`penstock cluster decommission 201`")


def test_a_process_that_was_decommissioned_can_be_left_out(start: Start, tmp_path: Path) -> None:
    machine = start().await_ready()
    create(machine.bootstrap, "orders", 4)
    produce(machine.bootstrap, "orders", 4, range(20))
    address = machine.said("http")[0]
    asked = httpx.post(f"{address}/v1/cluster/nodes/101/decommission", json={}, trust_env=False)
    assert asked.status_code < 300, asked.text
    deadline = time.monotonic() + WAIT_SECONDS
    while 101 in [
        one["node_id"] for one in httpx.get(f"{address}/v1/cluster", trust_env=False).json()["nodes"]
    ]:
        assert time.monotonic() < deadline, "the process is not emptied"
        time.sleep(0.1)
    assert machine.stop() == 0
    shutil.rmtree(tmp_path / "data" / "process-2")
    lone = start(processes=1).await_ready()
    assert consume(lone.bootstrap, "orders", 4, 80) == [list(range(20))] * 4


def test_a_node_that_others_have_joined_does_not_start_without_its_port_and_keeps_its_files(
    start: Start, tmp_path: Path
) -> None:
    """It would not lead the metadata, and take the files of all partitions for those of no topic."""
    data = tmp_path / "data"
    machine = start().await_ready()
    create(machine.bootstrap, "orders", 4)
    assert machine.stop() == 0
    shutil.rmtree(data / "process-2")
    (data / "processes.key").unlink()
    before = sorted(one.name for one in (data / "topics").iterdir())
    lone = start(processes=1)
    assert lone.process.wait(WAIT_SECONDS) == 1
    lone.until_logged("error: cluster=None: expected --cluster HOST:PORT")
    assert sorted(one.name for one in (data / "topics").iterdir()) == before


def test_a_wrong_setting_is_refused_before_a_process_starts(start: Start) -> None:
    machine = start("--memory", *ANYWHERE, data_dir=None)
    assert machine.process.wait(WAIT_SECONDS) == 2
    machine.until_logged("error: processes=2: expected 1 with memory=true")


def test_a_process_that_cannot_start_ends_the_command(start: Start) -> None:
    port, following = adjacent_ports()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", following))
        taken.listen()
        machine = start("--kafka", f"127.0.0.1:{port}", "--http", "none")
        assert machine.process.wait(WAIT_SECONDS) == 1
    machine.until_logged("error:", f"127.0.0.1:{following}")
    machine.until_logged("process 2 (node 101) ended with exit code 1")


def test_processes_need_the_key_that_the_machine_has_made(start: Start, tmp_path: Path) -> None:
    start().await_ready()
    key = tmp_path / "data" / "processes.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(bytes.fromhex(key.read_text().strip())) == 32


def test_login_and_tls_hold_for_every_process_and_the_password_is_told_once(
    start: Start, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    tls = ("--tls-cert", certificates.cert, "--tls-key", certificates.key)
    machine = start(*ANYWHERE, *tls, "--require-login").await_ready()
    told = machine.line("admin password: ")
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "admin",
        "sasl.password": told.split()[-1],
        "ssl.ca.location": certificates.ca,
    }
    create(machine.bootstrap, "orders", 4, **settings)
    assert sorted(leaders(machine.bootstrap, "orders", **settings)) == [1, 1, 101, 101]
    produce(machine.bootstrap, "orders", 4, range(10), **settings)
    assert consume(machine.said("kafka")[1], "orders", 4, 40, **settings) == [list(range(10))] * 4
    assert machine.stop() == 0
    assert machine.process.stdout is not None
    assert machine.process.stdout.read() == "stopped\n", "the password is told once"


def test_the_config_file_and_the_environment_reach_every_process(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('processes = 1\nnum_partitions = 6\nkafka = "127.0.0.1:0"\nhttp = "none"\n')
    machine = start("--config", str(config), PENSTOCK_STATUS_TOPIC="").await_ready()
    producer = Producer({"bootstrap.servers": machine.said("kafka")[1]})
    producer.produce("made", b"1")
    assert producer.flush(WAIT_SECONDS) == 0
    found = AdminClient({"bootstrap.servers": machine.bootstrap}).list_topics(timeout=WAIT_SECONDS).topics
    assert {name: len(topic.partitions) for name, topic in found.items()} == {"made": 6}


@pytest.mark.long
def test_three_machines_of_two_processes_survive_the_loss_of_one(start: Start, tmp_path: Path) -> None:
    """Each address is one of loopback; a machine is a data folder and a command."""
    ports = free_ports(3)
    seeds = ",".join(f"127.0.0.1:{port}" for port in ports)
    machines = [
        start(
            *ANYWHERE, "--node-id", str(number), "--cluster", f"127.0.0.1:{port}", "--seeds", seeds,
            "--cluster-key-file", str(_key(tmp_path)), data_dir=tmp_path / f"machine{number}",
        )
        for number, port in enumerate(ports, 1)
    ]  # fmt: skip
    for machine in machines:
        machine.await_ready()
    bootstrap = ",".join(machine.bootstrap for machine in machines)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    create(bootstrap, "orders", 6)
    for partition in admin.list_topics("orders", WAIT_SECONDS).topics["orders"].partitions.values():
        assert sorted(node % 100 for node in partition.replicas) == [1, 2, 3]
    produce(bootstrap, "orders", 6, range(100))
    assert _voters(machines[0]) == [1, 2, 3]
    lost = machines[0].children()
    machines[0].process.kill()
    for child in lost:
        child.kill()
    produce(bootstrap, "orders", 6, range(100, 200))
    assert consume(bootstrap, "orders", 6, 1200) == [list(range(200))] * 6
    create(bootstrap, "later", 1)


def _key(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    path.write_text("a key of more than sixteen bytes")
    return path


def _voters(machine: Machine) -> list[int]:
    found = httpx.get(machine.said("http")[0] + "/v1/cluster", trust_env=False)
    voters: list[int] = json.loads(found.text)["metadata"]["voters"]
    return voters
