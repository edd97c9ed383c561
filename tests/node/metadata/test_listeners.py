"""The addresses of nodes for clients that came by a listener, where some nodes have no listener of that name."""

from penstock.cluster import ClusterState, Endpoint, NodeRegistered
from penstock.config import Address
from penstock.node.metadata.cluster_view import ClusterView
from penstock.node.replication.leaders import LeaderTable
from penstock.types import NodeId


def view(**listeners: Address) -> ClusterView:
    state = ClusterState(1)
    state.apply(_node(2, external=Endpoint("two.example", 9093)))
    state.apply(_node(3))
    return ClusterView(node_id=NodeId(1), listeners=listeners, rack=None, state=state, leaders=LeaderTable())


def _node(node_id: int, **listeners: Endpoint) -> NodeRegistered:
    inside = Endpoint(f"inside{node_id}", 9092)
    return NodeRegistered(
        node_id=node_id, incarnation=node_id, kafka=inside, cluster=inside, listeners=listeners
    )


def addresses(of: ClusterView, listener: str) -> list[str]:
    return [f"{one.host}:{one.port}" for one in of.brokers(listener)]


def test_each_node_is_told_with_its_address_of_that_listener_or_its_first_one() -> None:
    one = view(internal=Address("inside1", 9092), external=Address("one.example", 9093))
    assert addresses(one, "external") == ["one.example:9093", "two.example:9093", "inside3:9092"]
    assert addresses(one, "internal") == ["inside1:9092", "inside2:9092", "inside3:9092"]
    assert addresses(one, "unknown") == ["inside1:9092", "inside2:9092", "inside3:9092"]


def test_a_single_broker_is_found_by_listener_too() -> None:
    one = view(external=Address("one.example", 9093))
    assert [one.broker(node, "external") for node in (1, 2)] == one.brokers("external")[:2]
    assert one.broker(4, "external") is None
