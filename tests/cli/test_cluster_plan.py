"""The plan of a local cluster: its ports, its file, and how it grows."""

import random
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import click
import pytest

from penstock.cli.cluster_plan import LocalCluster, free_nodes, free_port, new_plan, read_plan
from penstock.cli.cluster_up import _plan as up_plan
from penstock.cli.problem import Problem
from penstock.config.loading import load_node_config

from .conftest import Cli


def planned(folder: Path, nodes: int = 3, *, memory: bool = False) -> LocalCluster:
    return new_plan(folder, nodes, memory=memory, ports=free_nodes(1, kafka_port=None, http_port=None))


def test_a_plan_that_is_written_can_be_read_again(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    plan.write()
    assert read_plan(tmp_path) == plan


def test_no_port_is_given_twice(tmp_path: Path) -> None:
    plan = planned(tmp_path, 20)
    ports = [address for node in plan.nodes for address in (node.kafka, node.http, node.cluster)]
    assert len(set(ports)) == len(ports)


def test_free_ports_keep_clear_of_the_given_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(4)
    others = iter(
        [first, first + 1, first + 2, first + 3, *range(first + 100, 30_000), *range(10_000, first)]
    )
    monkeypatch.setattr("penstock.cli.cluster_plan.random.choice", lambda _: next(others))
    plan = new_plan(tmp_path, 3, memory=True, ports=free_nodes(1, kafka_port=first, http_port=None))
    assert [node.kafka for node in plan.nodes] == [f"127.0.0.1:{first + number}" for number in range(3)]
    assert not {node.kafka for node in plan.nodes} & {
        at for node in plan.nodes for at in (node.http, node.cluster)
    }


def test_a_new_node_takes_no_port_of_a_node_that_is_not_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = free_ports(10)
    up_plan(tmp_path, 3, False, first, first + 3).write()
    with pytest.raises(Problem, match=f"{first + 3}, for node 4, is a port of another node"):
        up_plan(tmp_path, 4, False, first, first + 3)
    known = read_plan(tmp_path)
    assert known is not None
    taken = known.nodes[0].ports
    others = iter([*taken, *range(first + 100, 30_000), *range(10_000, first)])
    monkeypatch.setattr("penstock.cli.cluster_plan._chosen", set[int]())  # another process
    monkeypatch.setattr("penstock.cli.cluster_plan.random.choice", lambda _: next(others))
    grown = up_plan(tmp_path, 4, False, None, None)
    assert not set(grown.nodes[3].ports) & {port for node in known.nodes for port in node.ports}


def test_given_ports_that_overlap_are_refused(tmp_path: Path) -> None:
    first = free_ports(4)
    with pytest.raises(Problem, match=f"{first + 1}, for node 2, is a port of another node") as refused:
        new_plan(tmp_path, 3, memory=True, ports=free_nodes(1, kafka_port=first, http_port=first + 1))
    assert "--http-port" in refused.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let nobody listen on a port that is bound")
def test_a_chosen_port_is_kept_for_its_node_and_refused_to_others_that_look_for_a_free_one() -> None:
    port = free_port()
    for _ in range(2):  # a node may start again
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with (
            socket.create_server(("127.0.0.1", port), reuse_port=False) as node,
            socket.socket(type=socket.SOCK_DGRAM) as gossip,
            socket.create_connection(node.getsockname()),
        ):
            gossip.bind(("127.0.0.1", port))


@pytest.mark.parametrize("memory", [False, True])
def test_serve_understands_the_file_for_every_node(tmp_path: Path, memory: bool) -> None:
    plan = planned(tmp_path, memory=memory)
    plan.write()
    text = plan.file.read_text()
    configs = [load_node_config(flags={"node_id": node}, toml_text=text) for node in (1, 2, 3)]
    assert [str(config.kafka) for config in configs] == [node.kafka for node in plan.nodes]
    assert all(config.seeds == configs[0].seeds for config in configs)
    assert configs[0].default_replication_factor == 3
    assert configs[0].memory is memory
    assert len({config.data_dir for config in configs}) == (1 if memory else 3)


def test_a_folder_with_a_quote_in_its_name_works(tmp_path: Path) -> None:
    folder = tmp_path / 'my "quoted" \\ cluster'
    folder.mkdir()
    plan = planned(folder, 1)
    plan.write()
    config = load_node_config(flags={"node_id": 1}, toml_text=plan.file.read_text())
    assert config.data_dir == str(folder / "node-1")


def test_nodes_that_are_added_later_join_and_do_not_found_a_cluster(tmp_path: Path) -> None:
    plan = planned(tmp_path, 2).grown(3, free_nodes(3, kafka_port=None, http_port=None))
    plan.write()
    late = load_node_config(flags={"node_id": 3}, toml_text=plan.file.read_text())
    assert late.cluster not in late.seeds
    assert len(late.seeds) == 2
    assert read_plan(tmp_path) == plan


def test_a_given_port_is_the_first_nodes_and_must_be_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Problem, match=str(port)) as refused:
            new_plan(tmp_path, 1, memory=True, ports=free_nodes(1, kafka_port=port, http_port=None))
        assert "--kafka-port" in refused.value.hint


def test_a_cluster_file_that_cannot_be_continued_is_not_overwritten(tmp_path: Path, plain_cli: Cli) -> None:
    (tmp_path / "cluster.toml").write_text("[nodes.1]\nkafka = '127.0.0.1:9092'\n")
    result = plain_cli("cluster", "up", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "cannot be continued" in result.stderr
    assert (tmp_path / "cluster.toml").read_text() == "[nodes.1]\nkafka = '127.0.0.1:9092'\n"


def test_settings_of_an_existing_cluster_cannot_be_changed(tmp_path: Path, plain_cli: Cli) -> None:
    planned(tmp_path).write()
    folder = ("--data-dir", str(tmp_path))
    fewer = plain_cli("cluster", "up", "--nodes", "2", *folder)
    assert (fewer.exit_code, "decommission" in fewer.stderr) == (2, True)
    ports = plain_cli("cluster", "up", "--kafka-port", "9092", *folder)
    assert (ports.exit_code, "ports already" in ports.stderr) == (2, True)
    both = plain_cli("cluster", "up", "--memory", *folder)
    assert (both.exit_code, "exclude" in both.stderr) == (2, True)


def test_the_same_command_continues_its_cluster_and_new_nodes_take_the_next_ports(tmp_path: Path) -> None:
    first = free_ports(4)
    plan = up_plan(tmp_path, 3, False, first, None)
    plan.write()
    assert up_plan(tmp_path, 3, False, first, None) == plan
    assert up_plan(tmp_path, None, False, None, int(plan.nodes[0].http.rpartition(":")[2])) == plan
    grown = up_plan(tmp_path, 4, False, first, None)
    assert [node.kafka for node in grown.nodes] == [f"127.0.0.1:{first + number}" for number in range(4)]
    with pytest.raises(click.UsageError, match="ports already"):
        up_plan(tmp_path, 3, False, first + 1, None)


def free_ports(count: int) -> int:
    """The first of so many consecutive free ports; at random, as other tests look for some at the same time."""
    for first in random.sample(range(20_000, 30_000, count), 1_000):
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("there are none")


def test_ports_must_exist_for_all_nodes(plain_cli: Cli) -> None:
    result = plain_cli("cluster", "up", "--memory", "--nodes", "3", "--kafka-port", "65534")
    assert result.exit_code == 2
    assert "too few ports" in result.stderr


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path, plain_cli: Cli) -> None:
    (tmp_path / "file").write_text("")
    result = plain_cli("cluster", "up", "--data-dir", str(tmp_path / "file" / "inside"))
    assert result.exit_code == 1
    assert "--data-dir" in result.stderr
