"""The same with real sockets: empty nodes find each other by their seeds and agree."""

import asyncio

import msgspec
import pytest

from penstock.node.peers import Adopt, Decision, Found, Founding, Join, Wait, cluster_id_of
from penstock.types import NodeId, Replica

from .peer_nodes import KEY, PeerNode, PeerNodes, unused_address


async def settle(peer_node: PeerNode) -> Decision:
    """Runs a node until it has a cluster."""
    founding = Founding(peer_node.me)
    peer_node.network.dial_seeds(peer_node.me.seeds)
    heard = 0

    def has_decided() -> bool:
        nonlocal heard
        for hello, dialled in peer_node.hellos[heard:]:
            founding.heard(hello, dialled)
        heard = len(peer_node.hellos)
        return not isinstance(founding.decide(), Wait)

    await peer_node.until(has_decided)
    decision = founding.decide()
    assert not isinstance(decision, Wait)
    peer_node.network.introduce(
        msgspec.structs.replace(peer_node.me, cluster_id=decision.cluster_id, founders=decision.founders)
    )
    return decision


@pytest.mark.parametrize("key", [None, KEY], ids=["without-key", "with-key"])
async def test_seeds_found_one_cluster_and_a_later_node_joins_it(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    seeds = tuple(unused_address() for _ in range(3))
    settling = []
    for number, address in enumerate(seeds, 1):
        node = await peer_nodes.node(number, key=key, seeds=seeds, at=address)
        settling.append(asyncio.create_task(settle(node)))
    decisions = await asyncio.gather(*settling)
    founders = tuple(Replica(NodeId(node), 1000 + node) for node in (1, 2, 3))
    assert {(decision.cluster_id, decision.founders) for decision in decisions} == {
        (cluster_id_of(founders), founders)
    }
    assert all(isinstance(decision, Found | Adopt) for decision in decisions)
    late = await peer_nodes.node(4, key=key, seeds=seeds)
    assert await settle(late) == Join(cluster_id_of(founders), founders)


async def test_a_founder_that_was_down_adopts_the_cluster_that_the_others_founded_with_it(
    peer_nodes: PeerNodes,
) -> None:
    seeds = tuple(unused_address() for _ in range(2))
    one = await peer_nodes.node(1, seeds=seeds, at=seeds[0])
    two = await peer_nodes.node(2, seeds=seeds, at=seeds[1])
    two.network.dial_seeds(seeds)
    decision = await settle(one)
    assert isinstance(decision, Found)
    await peer_nodes.stop(two)  # before its decision
    again = await peer_nodes.node(2, seeds=seeds, at=seeds[1])
    assert await settle(again) == Adopt(decision.cluster_id, decision.founders)
