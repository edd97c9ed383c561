"""`penstock serve` with `lake.root`: a process of it writes the tables of topics that want one."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from deltalake import DeltaTable

from penstock.cli import table_writer
from penstock.cli.problem import Problem
from penstock.cli.table_writer import MODULE, check_lake
from penstock.config import LakeSettings, NodeConfig
from penstock.errors import ConfigError
from penstock.spark.lake.folder import Lake
from tests.node.processes import BrokerProcess

from .test_cluster_up import QUICK, Up

PATIENCE_S = 120.0
TOPIC = "orders"
Login = Mapping[str, str]
NOBODY: Login = {}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    monkeypatch.setenv("PENSTOCK_LAKE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("PENSTOCK_LAKE_INTERVAL_MS", "100")
    process = BrokerProcess(tmp_path / "data")
    process.start()
    yield process
    process.kill()


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.05)


def writers(node: BrokerProcess) -> list[psutil.Process]:
    assert node._process is not None
    children = psutil.Process(node._process.pid).children()
    return [each for each in children if _is_writer(each)]


def has_writer(node: psutil.Process) -> bool:
    return any(_is_writer(each) for each in node.children())


def _is_writer(process: psutil.Process) -> bool:
    try:
        return MODULE in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def create(node: BrokerProcess, login: Login = NOBODY, /, **configs: str) -> None:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers, **login})
    admin.create_topics([NewTopic(TOPIC, 2, 1, config=settings)])[TOPIC].result(60)


def produce(node: BrokerProcess, numbers: range, login: Login = NOBODY) -> None:
    send(node.bootstrap_servers, numbers, login)


def send(servers: str, numbers: range, login: Login = NOBODY) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **login})
    for number in numbers:
        producer.produce(TOPIC, b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0


def values(path: Path) -> list[int]:
    """The table's records, sorted."""
    if Lake(str(path)).table(TOPIC) is None:
        return []
    rows = DeltaTable(path / TOPIC).to_pyarrow_table(columns=["value"])
    return sorted(int(value) for value in rows["value"].to_pylist())


@pytest.mark.long  # three processes start, one after the other
def test_a_topic_is_in_its_table_once_whatever_is_killed(node: BrokerProcess, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    create(node, penstock_table="delta")
    produce(node, range(50))
    until(lambda: len(values(lake)) == 50, "the first records are in the table")
    [writer] = writers(node)
    writer.kill()
    produce(node, range(50, 100))
    until(lambda: len(values(lake)) == 100, "the next process goes on")
    [writer] = writers(node)
    node.kill()
    writer.wait(PATIENCE_S)  # it ends with its node
    node.start()
    produce(node, range(100, 150))
    until(lambda: len(values(lake)) == 150, "the process of the next node goes on")
    assert values(lake) == list(range(150))


def test_only_topics_that_want_a_table_have_one_and_the_wish_can_change(
    node: BrokerProcess, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    create(node)
    produce(node, range(10))
    assert writers(node) == []
    set_table(node, "delta")
    until(lambda: values(lake) == list(range(10)), "all records are in the table")
    set_table(node, "none")
    until(lambda: writers(node) == [], "the process has nothing to do")
    assert node.stop() == 0
    assert not any("Traceback" in line for line in node.output)


@pytest.mark.long
def test_the_process_logs_in_where_that_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    monkeypatch.setenv("PENSTOCK_LAKE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("PENSTOCK_LAKE_CLIENT_CONFIG", str(file))
    monkeypatch.setenv("PENSTOCK_REQUIRE_LOGIN", "true")
    node = BrokerProcess(tmp_path / "data")
    node.start()
    try:
        [password] = [line.split()[-1] for line in node.output if line.startswith("admin password")]
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": password,
        }
        file.write_text("".join(f"{name}={value}\n" for name, value in login.items()))
        create(node, login, penstock_table="delta")
        produce(node, range(10), login)
        until(lambda: values(tmp_path / "lake") == list(range(10)), "all records are in the table")
    finally:
        node.kill()


@pytest.mark.long
def test_in_a_cluster_the_next_leader_of_the_first_partition_continues_the_table(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    up = Up(
        tmp_path,
        "--data-dir",
        str(tmp_path / "data"),
        *QUICK,
        "--set",
        f"lake.root={lake}",
        "--set",
        "lake.interval_ms=100",
    )
    try:
        admin = AdminClient({"bootstrap.servers": up.bootstrap})
        topic = NewTopic(TOPIC, 2, 3, config={"penstock.table": "delta"})
        admin.create_topics([topic])[TOPIC].result(60)
        send(up.bootstrap, range(50))
        until(lambda: len(values(lake)) == 50, "the first records are in the table")
        first = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader
        writing = [node for node in (1, 2, 3) if has_writer(up.child(node))]
        assert writing == [first]
        up.child(first).kill()
        send(up.bootstrap, range(50, 100))
        until(lambda: len(values(lake)) == 100, "the next leader's process continues")
        assert values(lake) == list(range(100))
    finally:
        up.end(signal.SIGTERM)


def set_table(node: BrokerProcess, value: str) -> None:
    entry = ConfigEntry("penstock.table", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def test_a_node_that_requires_logins_needs_one_for_its_tables() -> None:
    lake = LakeSettings(root="/lake")
    with pytest.raises(ConfigError, match=r"lake\.client_config"):
        NodeConfig(require_login=True, lake=lake).validate()
    NodeConfig(lake=lake).validate()
    with pytest.raises(ConfigError, match=r"lake\.interval_ms"):
        NodeConfig(lake=LakeSettings(interval_ms=1)).validate()


def test_without_the_libraries_the_node_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_writer, "find_spec", lambda name: None)
    check_lake(LakeSettings())
    with pytest.raises(Problem, match="deltalake is not installed"):
        check_lake(LakeSettings(root="/lake"))
