"""`penstock cluster status`: how a report is printed."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from penstock.cli import cluster_status
from penstock.cli.output import counted
from penstock.node.status.cluster_status import (
    ClusterStatus,
    HeldBackStatus,
    NodeStatus,
    OverdueTransaction,
    PartitionStatus,
    QuorumStatus,
    ReplicaTrouble,
)

from .conftest import Cli, succeeded


def node(node_id: int, state: str = "alive", *, fenced: bool = False) -> NodeStatus:
    return NodeStatus(
        node_id=node_id, incarnation="0", state=state, registered=True, fenced=fenced, decommissioning=False,
        connected=state == "alive", controller=node_id == 1, metadata_role="voter", kafka=f"10.0.0.{node_id}:9092",
        http=None, cluster=None, rack=None, version="1", hosts={}, leads={},
    )  # fmt: skip


def partition(*in_sync: int, offline: tuple[int, ...] = ()) -> PartitionStatus:
    return PartitionStatus(
        topic="orders", partition=0, leader=1, term=1, replicas=(1, 2, 3), in_sync=in_sync, adding=(), removing=(),
        under_replicated=len(in_sync) < 3, lag=0, offline=offline,
    )  # fmt: skip


HEALTHY = ClusterStatus(
    cluster_id="c", node_id=1, alone=False, healthy=True, controller=1, nodes=(node(1), node(2), node(3)),
    partitions=(partition(1, 2, 3),), under_replicated=(), leaderless=(), moves=(),
    metadata=QuorumStatus(leader=1, term=1, voters=(1, 2, 3), learners=(), end_offset=0), unanswered=(),
)  # fmt: skip
LOST = msgspec.structs.replace(
    HEALTHY,
    healthy=False,
    nodes=(node(1), node(2), node(3, "dead", fenced=True)),
    partitions=(),
    metadata=msgspec.structs.replace(HEALTHY.metadata, behind=(3,)),
    troubles=("node 3 is dead and fenced", "1 of 3 metadata voters does not keep up: node 3"),
)
BROKEN = msgspec.structs.replace(
    HEALTHY,
    healthy=False,
    partitions=(partition(1, 3, offline=(2,)),),
    under_replicated=("orders-0",),
    offline=(ReplicaTrouble(topic="orders", partition=0, node_id=2, reason="bytes [0] differ"),),
    troubles=("under-replicated partitions: 1", "offline replicas: 1"),
)


class Node:
    """An HTTP port that returns one report."""

    def __init__(self) -> None:
        self.shows = HEALTHY
        outer = self

        class Pages(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(msgspec.json.encode(outer.shows))

            def log_message(self, *anything: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Pages)
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def asked() -> Iterator[Node]:
    one = Node()
    thread = threading.Thread(target=one.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


PROCESSES = msgspec.structs.replace(
    HEALTHY,
    nodes=tuple(
        msgspec.structs.replace(node(number), machine=machine, rack=machine)
        for number, machine in ((1, "machine-1"), (2, "machine-2"), (3101, "machine-1"), (3102, "machine-2"))
    ),
)


def test_one_partition_is_not_in_the_plural_and_no_line_ends_in_blanks(asked: Node, plain_cli: Cli) -> None:
    shown = succeeded(plain_cli("cluster", "status", "--check", "--http", asked.address)).stdout
    assert "   1 partition   healthy" in shown
    assert [line for line in shown.split("\n") if line.endswith(" ")] == []


def test_the_processes_of_a_machine_are_next_to_each_other(asked: Node, plain_cli: Cli) -> None:
    asked.shows = PROCESSES
    shown = succeeded(plain_cli("cluster", "status", "--http", asked.address)).stdout
    assert "   4 nodes on 2 machines   " in shown
    rows = [line.split()[:2] for line in shown.splitlines() if line.startswith("machine-")]
    assert rows == [["machine-1", "1"], ["machine-1", "3101"], ["machine-2", "2"], ["machine-2", "3102"]]
    assert "rack" not in shown, "it is the machine"
    found = msgspec.json.decode(plain_cli("cluster", "status", "--json", "--http", asked.address).stdout)
    assert [one["machine"] for one in found["nodes"]] == ["machine-1", "machine-2"] * 2


def test_check_counts_a_dead_node_that_has_no_partition(asked: Node, plain_cli: Cli) -> None:
    asked.shows = LOST
    result = plain_cli("cluster", "status", "--check", "--http", asked.address)
    assert result.exit_code == cluster_status.EXIT_UNHEALTHY
    assert "fenced, not connected, behind as a metadata voter" in result.stdout
    assert (
        "not healthy: node 3 is dead and fenced; 1 of 3 metadata voters does not keep up: node 3"
        in result.stdout
    )


def test_an_offline_replica_is_shown_with_its_node_and_the_reason(asked: Node, plain_cli: Cli) -> None:
    asked.shows = BROKEN
    result = plain_cli("cluster", "status", "--check", "--trouble", "--http", asked.address)
    assert result.exit_code == cluster_status.EXIT_UNHEALTHY
    assert "1 replica offline" in result.stdout
    assert "under-replicated, offline on 2" in result.stdout
    assert "orders-0 is offline on node 2: bytes [0] differ" in result.stdout
    found = msgspec.json.decode(plain_cli("cluster", "status", "--json", "--http", asked.address).stdout)
    assert found["offline"][0]["reason"] == "bytes [0] differ"


@pytest.mark.parametrize(
    ("overdue_ms", "by"), [(0, ""), (43_700, ", the oldest by 43s"), (400_000_000, ", the oldest by 4d")]
)
def test_a_queue_that_holds_retention_back_is_named_with_the_age(
    asked: Node, plain_cli: Cli, overdue_ms: int, by: str
) -> None:
    """Less than an hour was shown as 0.0 days."""
    held = HeldBackStatus(
        topic="mail", partition=0, queue="mail", size_bytes=430, records=6, overdue_ms=overdue_ms
    )
    asked.shows = msgspec.structs.replace(HEALTHY, held_back=(held,))
    shown = succeeded(plain_cli("cluster", "status", "--http", asked.address)).stdout
    line = f"mail-0 keeps 6 records (430 bytes) beyond its retention{by}: queue mail has not settled them"
    assert line in shown


def test_a_hanging_transaction_is_named_with_its_age_and_timeout(asked: Node, plain_cli: Cli) -> None:
    late = OverdueTransaction(
        transactional_id="billing-1", state="PrepareCommit", open_ms=720_000, timeout_ms=60_000
    )
    asked.shows = msgspec.structs.replace(HEALTHY, hanging_transactions=(late,))
    shown = succeeded(plain_cli("cluster", "status", "--http", asked.address)).stdout
    line = "the transaction of billing-1 hangs: PrepareCommit, open for 12m, its timeout is 1m"
    assert line in shown


def test_a_report_of_an_older_node_can_be_shown(asked: Node, plain_cli: Cli) -> None:
    """During an upgrade: newer fields have defaults."""
    old = msgspec.to_builtins(HEALTHY)
    del old["offline"], old["troubles"], old["metadata"]["behind"], old["partitions"][0]["offline"]
    asked.shows = old
    assert "healthy" in succeeded(plain_cli("cluster", "status", "--http", asked.address)).stdout


def test_repeated_reports_into_a_pipe_are_separated_by_a_blank_line(
    asked: Node, plain_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_status, "repeated", lambda *anything: iter([HEALTHY, HEALTHY]))
    shown = succeeded(plain_cli("cluster", "status", "--watch", "--http", asked.address)).stdout
    assert re.match(r"\d\d:\d\d:\d\d\ncluster c", shown)
    assert len(re.findall(r"\n\n\d\d:\d\d:\d\d\ncluster c", shown)) == 1


def test_counts_other_than_one_are_in_the_plural() -> None:
    assert [counted(number, "node") for number in (0, 1, 2, 1000)] == [
        "0 nodes",
        "1 node",
        "2 nodes",
        "1,000 nodes",
    ]


def test_trouble_folds_internal_partitions_into_one_line(asked: Node, plain_cli: Cli) -> None:
    internal = [
        msgspec.structs.replace(partition(1, 2), topic="__consumer_offsets", partition=number)
        for number in range(49)
    ]
    internal += [msgspec.structs.replace(partition(1), topic="__share_group_state", leader=None)]
    asked.shows = msgspec.structs.replace(HEALTHY, partitions=(partition(1, 3), *internal))
    page = succeeded(plain_cli("cluster", "status", "--trouble", "--http", asked.address)).stdout
    assert "orders" in page
    [line] = [line for line in page.splitlines() if "__consumer_offsets" in line]
    assert line == (
        "50 partitions of internal topics __consumer_offsets, __share_group_state: "
        "49 under-replicated, 1 without a leader; --internal shows them"
    )
    page = succeeded(
        plain_cli("cluster", "status", "--trouble", "--internal", "--http", asked.address)
    ).stdout
    assert page.count("__consumer_offsets") == 49
