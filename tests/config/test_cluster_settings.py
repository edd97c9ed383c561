"""Settings of a cluster: the inter-node port, its key, its seeds, and one file for all nodes."""

import msgspec
import pytest

from penstock.config import Address, ClusterSettings, InterNodeTls, Limits, NodeConfig
from penstock.config.loading import load_node_config
from penstock.config.processes import process_configs
from penstock.errors import ConfigError
from penstock.service import Service

WHOLE_CLUSTER = """
cluster_key_file = "/etc/penstock/cluster.key"
num_partitions = 6

[replication]
election_timeout_ms = 3000

[nodes.1]
kafka = "10.0.0.1:9092"
cluster = "10.0.0.1:7000"
data_dir = "/data/1"

[nodes.2]
kafka = "10.0.0.2:9092"
cluster = "0.0.0.0:7000"
cluster-advertise = "10.0.0.2:7000"
data_dir = "/data/2"
rack = "b"
num_partitions = 12

[nodes.2.limits]
max_connections = 7
"""


def test_a_node_is_alone_by_default() -> None:
    config = load_node_config()
    assert (config.cluster, config.cluster_advertised, config.seeds, config.rack) == (None, None, (), None)


def test_flags_environment_and_file_are_equivalent() -> None:
    expected = NodeConfig(
        cluster=Address("127.0.0.1", 7001), seeds=(Address("127.0.0.1", 7001), Address("::1", 7002)), rack="a"
    )
    flags = {"cluster": "127.0.0.1:7001", "seeds": "127.0.0.1:7001, [::1]:7002", "rack": "a"}
    environment = {f"PENSTOCK_{name.upper()}": value for name, value in flags.items()}
    file = 'cluster = "127.0.0.1:7001"\nseeds = ["127.0.0.1:7001", "[::1]:7002"]\nrack = "a"'
    assert load_node_config(flags=flags) == expected
    assert load_node_config(environment=environment) == expected
    assert load_node_config(toml_text=file) == expected


def test_each_node_of_a_file_has_its_own_table_over_what_all_share() -> None:
    one = load_node_config(toml_text=WHOLE_CLUSTER, flags={"node_id": 1})
    two = load_node_config(toml_text=WHOLE_CLUSTER, environment={"PENSTOCK_NODE_ID": "2"})
    assert (one.node_id, one.data_dir, one.num_partitions, one.rack) == (1, "/data/1", 6, None)
    assert (two.node_id, two.data_dir, two.num_partitions, two.rack) == (2, "/data/2", 12, "b")
    assert (one.limits, two.limits) == (Limits(), Limits(max_connections=7))
    assert one.replication == two.replication == ClusterSettings(election_timeout_ms=3000)


def test_the_nodes_of_a_file_are_the_seeds_by_their_advertised_addresses() -> None:
    for node in (1, 2):
        config = load_node_config(toml_text=WHOLE_CLUSTER, flags={"node_id": node})
        assert config.seeds == (Address("10.0.0.1", 7000), Address("10.0.0.2", 7000))


def test_seeds_that_are_named_win_over_those_of_the_tables() -> None:
    config = load_node_config(toml_text='seeds = ["10.0.0.9:7000"]' + WHOLE_CLUSTER, flags={"node_id": 1})
    assert config.seeds == (Address("10.0.0.9", 7000),)
    flags = {"node_id": 1, "seeds": "10.0.0.8:7000"}
    assert load_node_config(toml_text=WHOLE_CLUSTER, flags=flags).seeds == (Address("10.0.0.8", 7000),)


def test_flags_and_environment_win_over_a_nodes_table() -> None:
    config = load_node_config(
        toml_text=WHOLE_CLUSTER,
        environment={"PENSTOCK_RACK": "e"},
        flags={"node_id": 2, "data_dir": "/elsewhere"},
    )
    assert (config.rack, config.data_dir) == ("e", "/elsewhere")


def test_a_nodes_own_folder_overrides_memory_for_all() -> None:
    file = 'memory = true\n[nodes.1]\ndata_dir = "/d"\n[nodes.2]\nrack = "a"'
    assert load_node_config(toml_text=file, flags={"node_id": 1}).memory is False
    assert load_node_config(toml_text=file, flags={"node_id": 2}).memory is True


@pytest.mark.parametrize(
    ("layers", "field", "expected"),
    [
        ({"flags": {"seeds": "127.0.0.1:7001"}}, "seeds", "--cluster HOST:PORT as well"),
        ({"flags": {"cluster_advertise": "127.0.0.1:1"}}, "cluster_advertise", "--cluster HOST:PORT as well"),
        ({"flags": {"cluster": "7001"}}, "cluster", "HOST:PORT"),
        ({"flags": {"cluster": "10.0.0.1:7000"}}, "cluster_key_file", "--cluster-key-file FILE"),
        (
            {"flags": {"cluster": "0.0.0.0:7000", "cluster_advertise": "127.0.0.1:7000"}},
            "cluster_key_file",
            "openssl rand",
        ),
        ({"flags": {"cluster": "broker-1:7000"}}, "cluster_key_file", "--cluster-key-file"),
        (
            {"flags": {"cluster": "0.0.0.0:7000", "cluster_key_file": "k"}},
            "cluster",
            "cluster_advertise=HOST:PORT",
        ),
        (
            {"flags": {"cluster": "127.0.0.1:7", "cluster_advertise": "0.0.0.0:7"}},
            "cluster_advertise",
            "other nodes can reach",
        ),
        ({"flags": {"cluster": "127.0.0.1:7", "seeds": "127.0.0.1:0"}}, "seeds", "can be reached"),
        ({"flags": {"cluster": "127.0.0.1:7", "seeds": "h:1,h:1"}}, "seeds", "each seed once"),
        ({"flags": {"rack": ""}}, "rack", "length >= 1"),
        ({"flags": {"replication.election_timeout_ms": 449}}, "replication.election", r"3 x .*\(450\)"),
        ({"flags": {"replication.fence_after_ms": 1000}}, "replication.fence", "election_timeout_ms"),
        ({"flags": {"replication.replace_after_ms": 8999}}, "replication.replace", "0 for never"),
        ({"flags": {"limits.max_peer_queue_bytes": 2**21}}, "limits.max_peer_queue", "max_peer_frame_bytes"),
        ({"toml_text": WHOLE_CLUSTER}, "node_id", "--node-id N, one of those in config file: 1, 2"),
        ({"toml_text": WHOLE_CLUSTER, "flags": {"node_id": 3}}, "node_id", "which has 1, 2"),
        ({"toml_text": "nodes = 3"}, "nodes in config file", r"\[nodes.1\]"),
        ({"toml_text": "[nodes.one]\nrack = 'a'"}, r"[nodes.one] in config file", "a node id"),
        ({"toml_text": "[nodes]\n1 = 2"}, r"[nodes.1] in config file", "a table"),
        ({"toml_text": "[nodes.1]\nnode_id = 1"}, "node_id of [nodes.1]", "the table's name is the id"),
        (
            {"toml_text": "[nodes.1]\nkafak = 1", "flags": {"node_id": 1}},
            "kafak in [nodes.1]",
            "did you mean kafka",
        ),
    ],
)
def test_invalid_settings_are_named_with_what_to_do(
    layers: dict[str, object], field: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_node_config(**layers)  # type: ignore[arg-type]
    assert caught.value.field.startswith(field)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_no_key_is_needed_on_a_loopback_address(host: str) -> None:
    assert load_node_config(flags={"cluster": f"{host}:7000"}).cluster_key_file is None


def test_a_cluster_may_be_in_memory() -> None:
    assert load_node_config(flags={"cluster": "127.0.0.1:0", "memory": True}).memory


@pytest.mark.parametrize("field", ["cluster_key_file", "inter_node_tls"])
def test_a_node_without_an_inter_node_port_refuses_settings_of_one(field: str) -> None:
    settings: dict[str, object] = {
        "cluster_key_file": "key",
        "inter_node_tls": InterNodeTls(cert="c", key="k", ca="a"),
    }
    alone = NodeConfig(memory=True, **{field: settings[field]})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{field}=.*: expected --cluster HOST:PORT as well"):
        Service(alone)
    Service(msgspec.structs.replace(alone, cluster=Address("127.0.0.1", 7000)))


def test_processes_of_a_machine_get_an_inter_node_port_and_may_have_its_key() -> None:
    ports = iter((7000, 7001))
    config = load_node_config(flags={"processes": 2, "cluster_key_file": "key"})
    for process in process_configs(config, lambda: next(ports)):
        Service(process)


def test_the_last_process_of_a_machine_may_keep_the_settings_of_its_inter_node_port() -> None:
    """`penstock serve` gives it the port after it has read the settings."""
    load_node_config(flags={"processes": 1, "cluster_key_file": "key"})
