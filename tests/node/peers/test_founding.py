"""From empty nodes to one cluster: every case, then every order with crashes in between."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config import Address
from penstock.node.peers import Adopt, Decision, Found, Founding, Join, PeerHello, Wait, cluster_id_of
from penstock.types import NodeId, Replica

from .peer_nodes import hello


def at(node: int) -> Address:
    return Address("127.0.0.1", 7000 + node)


SEEDS = (at(1), at(2), at(3))
FOUNDERS = tuple(Replica(NodeId(node), 1000 + node) for node in (1, 2, 3))
CLUSTER = cluster_id_of(FOUNDERS)


def empty(node: int, seeds: tuple[Address, ...] = SEEDS, incarnation: int = 0) -> PeerHello:
    return hello(node, port=7000 + node, incarnation=incarnation, run=node, seeds=seeds)


def settled(node: int, founders: tuple[Replica, ...] = FOUNDERS, cluster_id: str = CLUSTER) -> PeerHello:
    return hello(node, port=7000 + node, run=node, seeds=SEEDS, cluster_id=cluster_id, founders=founders)


def decision(me: PeerHello, *others: PeerHello, dialled: bool = True) -> Decision:
    """The decision of a node that reached itself and all these at their addresses."""
    founding = Founding(me)
    for one in (me, *others):
        founding.heard(one, one.cluster if dialled else None)
    return founding.decide()


def test_a_seed_that_refuses_is_named_before_those_that_do_not_answer() -> None:
    founding = Founding(empty(3))
    assert founding.decide() == Wait("waiting for seed 127.0.0.1:7001")
    founding.refused(at(2), "the cluster keys differ")
    assert founding.decide() == Wait("seed 127.0.0.1:7002 answers, but the cluster keys differ")
    founding.heard(empty(2), at(2))
    assert founding.decide() == Wait("waiting for seed 127.0.0.1:7001")


CASES = {
    "all seeds are here": (empty(1), [empty(2), empty(3)], Found(CLUSTER, FOUNDERS)),
    "the order of the list does not matter": (
        empty(1),
        [empty(2, SEEDS[::-1]), empty(3, SEEDS[1:] + SEEDS[:1])],
        Found(CLUSTER, FOUNDERS),
    ),
    "an empty node beside the seeds does not hinder": (
        empty(1),
        [empty(2), empty(3), empty(4)],
        Found(CLUSTER, FOUNDERS),
    ),
    "a seed is missing": (empty(1), [empty(2)], Wait("waiting for seed 127.0.0.1:7003")),
    "a seed has another list": (
        empty(1),
        [empty(2), empty(3, (at(3), at(1)))],
        Wait(
            "seed 127.0.0.1:7003 (node 3) lists other seeds: [127.0.0.1:7001, 127.0.0.1:7003], this node lists "
            "[127.0.0.1:7001, 127.0.0.1:7002, 127.0.0.1:7003]; all seeds must be started with the same list"
        ),
    ),
    "not listed, and no cluster founded": (
        empty(4),
        [empty(1), empty(2), empty(3)],
        Wait("waiting for the seeds to found a cluster, which this node (not one of them) will join"),
    ),
    "others have founded with this node": (empty(1), [settled(2)], Adopt(CLUSTER, FOUNDERS)),
    "a seed that is missing does not matter then": (empty(3), [settled(1)], Adopt(CLUSTER, FOUNDERS)),
    "others have founded without this node": (empty(4), [settled(2)], Join(CLUSTER, FOUNDERS)),
    "this node was emptied since": (
        empty(1, incarnation=77),
        [settled(2), settled(3)],
        Join(CLUSTER, FOUNDERS),
    ),
    "founders that only one peer knows": (
        empty(1),
        [settled(2, founders=()), settled(3)],
        Adopt(CLUSTER, FOUNDERS),
    ),
    "seeds of two clusters": (
        empty(1),
        [settled(2), settled(3, (), "OTHER")],
        Wait(
            f"node 2 at 127.0.0.1:7002 is of cluster {CLUSTER} and node 3 at 127.0.0.1:7003 of cluster OTHER: list "
            "seeds of one cluster only"
        ),
    ),
    "no seeds at all": (
        empty(5, ()),
        [],
        Found(cluster_id_of([Replica(NodeId(5), 1005)]), (Replica(NodeId(5), 1005),)),
    ),
    "the only seed": (
        empty(5, (at(5),)),
        [],
        Found(cluster_id_of([Replica(NodeId(5), 1005)]), (Replica(NodeId(5), 1005),)),
    ),
}


@pytest.mark.parametrize(("me", "others", "expected"), CASES.values(), ids=CASES)
def test_decisions_of_a_node(me: PeerHello, others: list[PeerHello], expected: Decision) -> None:
    assert decision(me, *others) == expected


def test_two_addresses_of_one_node_are_named() -> None:
    founding = Founding(empty(1, (at(1), at(2), Address("localhost", 7002))))
    founding.heard(empty(1), at(1))
    founding.heard(empty(2), at(2))
    founding.heard(empty(2), Address("localhost", 7002))
    assert founding.decide() == Wait(
        "seeds 127.0.0.1:7002 and localhost:7002 are both node 2: list each node once"
    )


def test_a_node_that_only_dialled_this_one_is_not_known_to_be_a_seed() -> None:
    assert decision(empty(1), empty(2), empty(3), dialled=False) == Wait("waiting for seed 127.0.0.1:7001")


def test_a_lost_seed_is_waited_for_again() -> None:
    founding = Founding(empty(1))
    for node in (1, 2, 3):
        founding.heard(empty(node), at(node))
    founding.lost(NodeId(2))
    assert founding.decide() == Wait("waiting for seed 127.0.0.1:7002")
    founding.heard(empty(2), None)  # this time it dialled; its address is known
    assert founding.decide() == Found(CLUSTER, FOUNDERS)


def test_the_id_is_a_function_of_ids_and_incarnations() -> None:
    assert cluster_id_of(FOUNDERS) == cluster_id_of(FOUNDERS[::-1])
    assert len(CLUSTER) == 22
    emptied = (*FOUNDERS[:2], Replica(NodeId(3), 5))
    assert len({cluster_id_of(FOUNDERS), cluster_id_of(FOUNDERS[:2]), cluster_id_of(emptied)}) == 3


class Machine:
    """A node as founding sees it: facts on a disk, and a process that may die."""

    def __init__(self, node: int, seeds: tuple[Address, ...]) -> None:
        self.disk = empty(node, seeds)
        self.boot()

    def boot(self) -> None:
        self.told = self.disk
        self.founding = Founding(self.disk) if self.disk.cluster_id is None else None
        if self.founding is not None:
            self.founding.heard(self.disk, self.disk.cluster)

    def decide(self, crash: bool) -> None:
        """Stores its decision and announces it, unless it crashes in between."""
        choice = self.founding.decide() if self.founding is not None else None
        if choice is None or isinstance(choice, Wait):
            return
        self.disk = msgspec.structs.replace(self.disk, cluster_id=choice.cluster_id, founders=choice.founders)
        self.founding = None
        if crash:
            self.boot()
        else:
            self.told = self.disk

    def hear(self, other: "Machine") -> None:
        if self.founding is not None:
            self.founding.heard(other.told, other.disk.cluster)


STEP = st.tuples(
    st.sampled_from(["hear", "decide", "die in deciding", "crash", "lose"]),
    st.integers(0, 4),
    st.integers(0, 4),
)


@settings(max_examples=300, deadline=None)
@given(seeds=st.integers(1, 5), script=st.lists(STEP, max_size=80))
def test_any_order_of_hellos_and_crashes_ends_in_one_cluster(
    seeds: int, script: list[tuple[str, int, int]]
) -> None:
    """Five nodes, of which the first few are seeds."""
    listed = tuple(at(node) for node in range(1, seeds + 1))
    machines = [Machine(node, listed) for node in range(1, 6)]
    for step, subject, other in script:
        play(step, machines[subject], machines[other])
    for _ in range(3):  # then without faults: every node hears every other
        for machine in machines:
            for other_machine in machines:
                machine.hear(other_machine)
            machine.decide(crash=False)
    founders = tuple(Replica(NodeId(node), 1000 + node) for node in range(1, seeds + 1))
    assert {(machine.disk.cluster_id, machine.disk.founders) for machine in machines} == {
        (cluster_id_of(founders), founders)
    }


def play(step: str, machine: Machine, other: Machine) -> None:
    if step == "hear":
        machine.hear(other)
    elif step == "crash":
        machine.boot()
    elif step == "lose":
        if machine.founding is not None:
            machine.founding.lost(other.disk.node)
    else:
        machine.decide(crash=step == "die in deciding")
