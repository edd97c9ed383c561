"""The configurations of a machine's processes: each follows from the first one, whatever their number."""

from collections.abc import Iterator
from itertools import count

import msgspec
import pytest

from penstock.config import Address, NodeConfig
from penstock.config.loading import load_node_config
from penstock.config.processes import process_configs
from penstock.errors import ConfigError
from penstock.service import Service


def free_ports() -> Iterator[int]:
    return count(20_000)


def configs_of(toml_text: str = "", **flags: object) -> tuple[NodeConfig, ...]:
    ports = free_ports()
    return process_configs(load_node_config(flags=flags, toml_text=toml_text), lambda: next(ports))


def test_one_process_is_the_configuration_as_it_is() -> None:
    assert configs_of(node_id=7) == (NodeConfig(node_id=7),)


def test_ids_ports_and_folders_follow_from_the_first_process() -> None:
    first, second, third = configs_of(processes=3, data_dir="/srv/p", cluster="127.0.0.1:7000")
    assert [one.node_id for one in (first, second, third)] == [1, 101, 201]
    assert [one.data_dir for one in (first, second, third)] == [
        "/srv/p",
        "/srv/p/process-2",
        "/srv/p/process-3",
    ]
    assert [str(one.kafka) for one in (first, second)] == ["127.0.0.1:9092", "127.0.0.1:9093"]
    assert [str(one.http) for one in (first, second)] == ["127.0.0.1:8080", "127.0.0.1:8081"]
    assert [str(one.cluster) for one in (first, second)] == ["127.0.0.1:7000", "127.0.0.1:7001"]
    assert {one.machine for one in (first, second, third)} == {"machine-1"}
    assert {one.processes for one in (first, second, third)} == {1}


def test_a_process_is_the_same_node_whatever_their_number() -> None:
    flags = {"data_dir": "/srv/p", "cluster": "127.0.0.1:7000"}
    assert configs_of(processes=2, **flags) == configs_of(processes=5, **flags)[:2]


def test_alone_the_first_process_founds_the_cluster_that_the_others_join() -> None:
    first, second, third = configs_of(processes=3)
    assert first.seeds == ()
    assert first.cluster is not None
    assert first.cluster.is_loopback
    assert second.seeds == third.seeds == (first.cluster,)


def test_seeds_name_the_first_process_of_each_machine() -> None:
    """So the founders, which vote first, are on different machines."""
    seeds = "10.0.0.1:7000,10.0.0.2:7000,10.0.0.3:7000"
    first, second = configs_of(
        processes=2,
        node_id=2,
        cluster="10.0.0.2:7000",
        seeds=seeds,
        cluster_key_file="k",
        machine="rack4-host7",
    )
    assert first.cluster in first.seeds
    assert second.seeds == first.seeds
    assert second.cluster not in second.seeds
    assert (second.node_id, second.machine, second.cluster_key_file) == (102, "rack4-host7", "k")


def test_one_file_serves_machines_of_several_processes() -> None:
    text = """
    processes = 2
    cluster_key_file = "k"
    [nodes.1]
    kafka = "10.0.0.1:9092"
    cluster = "10.0.0.1:7000"
    [nodes.2]
    kafka = "10.0.0.2:9092"
    cluster = "10.0.0.2:7000"
    processes = 3
    """
    assert [str(one.kafka) for one in configs_of(text, node_id=1)] == ["10.0.0.1:9092", "10.0.0.1:9093"]
    machine = configs_of(text, node_id=2)
    assert [one.node_id for one in machine] == [2, 102, 202]
    assert {len(one.seeds) for one in machine} == {2}


def test_port_0_is_a_free_port_for_each_and_the_others_know_that_of_the_first() -> None:
    first, second = configs_of(processes=2, kafka="127.0.0.1:0", http="127.0.0.1:0", cluster="127.0.0.1:0")
    ports = [
        one.port for config in (first, second) for one in (config.kafka, config.http, config.cluster) if one
    ]
    assert len(set(ports)) == 6
    assert 0 not in ports
    assert second.seeds == (first.cluster,)


def test_advertised_ports_follow_and_0_stays_the_bound_one() -> None:
    first, second = configs_of(
        processes=2,
        kafka="0.0.0.0:9092",
        advertise="broker.example.org:19092",
        cluster="0.0.0.0:7000",
        cluster_advertise="10.0.0.1:0",
        cluster_key_file="k",
    )
    assert [str(one.advertise) for one in (first, second)] == [
        "broker.example.org:19092",
        "broker.example.org:19093",
    ]
    assert second.cluster_advertise == first.cluster_advertise == Address("10.0.0.1", 0)
    assert second.seeds == (Address("10.0.0.1", 7000),)


LISTENERS = """
[[listeners]]
name = "inside"
bind = "127.0.0.1:9092"
[[listeners]]
name = "outside"
bind = "127.0.0.1:%d"
"""


def test_every_listener_has_a_port_for_each_process() -> None:
    first, second = configs_of(LISTENERS % 9192, processes=2)
    assert [str(one.bind) for one in second.listeners] == ["127.0.0.1:9093", "127.0.0.1:9193"]
    assert [one.name for one in second.listeners] == [one.name for one in first.listeners]


@pytest.mark.parametrize(
    ("text", "flags", "field", "part"),
    [
        (LISTENERS % 9093, {"processes": 2}, "processes", "127.0.0.1:9093 is a Kafka port of process 1"),
        ("", {"processes": 2, "http": "0.0.0.0:9093"}, "processes", "the HTTP port of process 1"),
        (
            "",
            {"processes": 3, "kafka": "127.0.0.1:65534"},
            "processes",
            "process 3 would have the port 65536",
        ),
        ("", {"processes": 2, "memory": True}, "processes", "1 with memory=true"),
        ("", {"processes": 2, "node_id": 100}, "node_id", "0 to 99"),
        ("", {"processes": 0}, "processes", ">= 1"),
        ("", {"processes": 21}, "processes", "<= 20"),
        ("processes = 'two'", {}, "processes in config file", "int"),
    ],
)
def test_settings_that_allow_one_process_only_are_refused_by_name(
    text: str, flags: dict[str, object], field: str, part: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        configs_of(text, **flags)
    assert refused.value.field == field
    assert part in str(refused.value)


def test_the_number_may_come_from_the_environment() -> None:
    assert load_node_config(environment={"PENSTOCK_PROCESSES": "4"}).processes == 4


def test_one_process_does_not_serve_for_several() -> None:
    with pytest.raises(ConfigError, match="a process runs one node"):
        Service(NodeConfig(processes=2, memory=True))


def test_a_configuration_survives_the_way_to_its_process() -> None:
    """It is handed over as JSON."""
    text = """
    require_login = true
    tls_cert = "c"
    tls_key = "k"
    http_tls = false
    topic_defaults = { "retention.ms" = 5 }
    [inter_node_tls]
    cert = "c"
    key = "k"
    ca = "a"
    [[topics]]
    name = "orders"
    partitions = 2
    [[queues]]
    name = "jobs"
    topic = "orders"
    """
    for config in configs_of(text + LISTENERS % 9192, processes=2):
        assert msgspec.json.decode(msgspec.json.encode(config), type=NodeConfig) == config
