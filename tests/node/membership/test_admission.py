"""A node knows when its cluster has admitted it."""

from penstock.cluster import Endpoint, NodeRegistered
from penstock.cluster.nodes import node_from
from penstock.node.membership.membership import _is_admitted

HERE = Endpoint("host", 1)
MINE = NodeRegistered(
    node_id=1, incarnation=7, kafka=HERE, cluster=HERE, version="2", listeners={"tls": HERE}, https=True
)


def test_a_node_is_admitted_when_the_metadata_has_its_registration() -> None:
    assert _is_admitted(node_from(MINE), MINE)
    assert not _is_admitted(None, MINE)


def test_a_controller_of_the_version_before_need_not_record_listeners() -> None:
    """Otherwise a node with listeners could not start before the controller is updated too."""
    old = NodeRegistered(node_id=1, incarnation=7, kafka=HERE, cluster=HERE, version="2")
    assert _is_admitted(node_from(old), MINE)


def test_an_earlier_registration_is_not_enough() -> None:
    earlier = NodeRegistered(node_id=1, incarnation=6, kafka=HERE, cluster=HERE, version="2")
    assert not _is_admitted(node_from(earlier), MINE)
