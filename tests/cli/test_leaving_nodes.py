"""The status of a node that is being decommissioned, has no replicas any more, and has not left yet."""

import msgspec
import pytest

from penstock.cli.cluster_status import last_wait
from penstock.node.status.cluster_status import MoveStatus
from tests.cli.conftest import Cli, succeeded
from tests.cli.test_cluster_status import HEALTHY, Node, asked, node

__all__ = ["asked"]

LEAVING = msgspec.structs.replace(node(4), decommissioning=True, metadata_role="learner")


def move(partition: int) -> MoveStatus:
    return MoveStatus(
        topic="orders", partition=partition, replicas=(1, 2, 3), target=(1, 2), adding=(), removing=(3,),
        bytes_behind=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("role", "moves", "said"),
    [
        ("learner", 1, "waiting for the end of 1 move: orders-0 (1,2,3 to 1,2)"),
        (
            "voter",
            5,
            "waiting for the end of 5 moves: orders-0 (1,2,3 to 1,2), orders-1 (1,2,3 to 1,2), "
            "orders-2 (1,2,3 to 1,2), 2 more",
        ),
        ("voter", 0, "waiting for its place in the metadata group"),
        ("learner", 0, "waiting for the controller to remove it"),
    ],
)
def test_the_reason_depends_on_role_and_moves(role: str, moves: int, said: str) -> None:
    one = msgspec.structs.replace(LEAVING, metadata_role=role)
    snapshot = msgspec.structs.replace(
        HEALTHY, nodes=(*HEALTHY.nodes, one), moves=tuple(move(number) for number in range(moves))
    )
    assert last_wait(snapshot, one) == said


def test_status_names_the_moves_that_an_empty_node_waits_for(asked: Node, plain_cli: Cli) -> None:
    asked.shows = msgspec.structs.replace(HEALTHY, nodes=(*HEALTHY.nodes, LEAVING), moves=(move(0),))
    shown = succeeded(plain_cli("cluster", "status", "--http", asked.address)).stdout
    assert "node 4 holds nothing any more: waiting for the end of 1 move: orders-0 (1,2,3 to 1,2)" in shown


def test_status_names_no_moves_while_a_leaving_node_still_has_replicas(asked: Node, plain_cli: Cli) -> None:
    full = msgspec.structs.replace(LEAVING, hosts={"orders": [0]})
    asked.shows = msgspec.structs.replace(HEALTHY, nodes=(*HEALTHY.nodes, full), moves=(move(0),))
    shown = succeeded(plain_cli("cluster", "status", "--http", asked.address)).stdout
    assert "holds nothing" not in shown
