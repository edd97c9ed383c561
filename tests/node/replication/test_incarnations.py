"""Incarnations of replicas: that of the node's folder, or another one after a recreation. They are never confused."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.node.replication.multi_raft import addressees
from penstock.types import NodeId, Replica

Incarnations = st.integers(1, 2**63 - 1)


@given(Incarnations, st.integers(0, 2**16 - 1))
def test_an_incarnation_contains_its_folder_and_a_number(incarnation: int, life: int) -> None:
    node = Replica(NodeId(3), incarnation)
    reborn = node.in_life(life)
    assert reborn.life_of(node) == life
    assert (reborn == node) == (life == 0)
    assert 0 <= reborn.incarnation < 2**63
    assert reborn.life_of(Replica(NodeId(4), incarnation)) is None


@given(Incarnations, Incarnations)
def test_another_folder_has_other_incarnations(one: int, other: int) -> None:
    if (one - other) % 2**47:
        assert Replica(NodeId(3), one).life_of(Replica(NodeId(3), other)) is None


def test_a_heartbeat_goes_to_the_newest_incarnation_on_each_connected_node_and_to_no_other_folder() -> None:
    one, two, wiped, away = (Replica(NodeId(node), 1000 + node) for node in (1, 2, 3, 4))
    nodes = {one.node: one, two.node: two, wiped.node: Replica(wiped.node, 77)}
    for members in ([one, two, two.in_life(2), two.in_life(1)], [two.in_life(2), one, two]):
        assert addressees([*members, wiped, away], nodes) == {one: 0, two: two.in_life(2).incarnation}
    assert addressees([one, two], nodes) == {one: 0, two: 0}
