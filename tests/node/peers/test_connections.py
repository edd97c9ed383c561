"""Two nodes and how they find, keep and lose each other, over real sockets."""

import asyncio
import logging
import time
from itertools import pairwise

import msgspec
import pytest

from penstock.config import Limits
from penstock.node.peers import connection
from penstock.node.peers.handshake import NEWEST_VERSION, PREAMBLE_SIZE, PeerRefused
from penstock.node.peers.hello import ANY_NODE, RefusalCode, decode_hello
from penstock.types import NodeId, Replica

from .peer_nodes import KEY, KIND, PeerNodes, Relay, hello, unused_address

pytestmark = pytest.mark.parametrize("key", [None, KEY], ids=["without-key", "with-key"])


async def test_nodes_learn_each_others_facts_before_they_are_up(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = await peer_nodes.pair(key=key)
    assert one.network.connected()[NodeId(2)] == two.me
    assert two.network.connected()[NodeId(1)] == one.me
    assert (one.hellos, two.hellos) == ([(two.me, two.address)], [(one.me, None)])
    assert (one.said, two.said) == (["up 2"], ["up 1"])


async def test_both_nodes_know_the_version_that_they_negotiated(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = await peer_nodes.pair(key=key)
    assert one.network.version_of(NodeId(2)) == two.network.version_of(NodeId(1)) == NEWEST_VERSION
    assert one.network.version_of(NodeId(3)) == 0


async def test_frames_arrive_whole_and_in_order_both_ways(peer_nodes: PeerNodes, key: bytes | None) -> None:
    one, two = await peer_nodes.pair(key=key)
    for number in range(1000):
        assert one.network.send(NodeId(2), KIND, b"%d" % number)
        assert two.network.send(NodeId(1), KIND + 1, [b"back ", memoryview(b"%d" % number)])
    await one.until(lambda: len(one.frames) == 1000)
    await two.until(lambda: len(two.frames) == 1000)
    assert two.frames == [(1, KIND, b"%d" % number) for number in range(1000)]
    assert one.frames == [(2, KIND + 1, b"back %d" % number) for number in range(1000)]


async def test_frames_that_take_long_are_handled_in_several_turns_and_in_order(
    peer_nodes: PeerNodes, key: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SLICE_SECONDS", 0.0)
    one, two = await peer_nodes.pair(key=key)
    for number in range(100):
        assert one.network.send(NodeId(2), KIND, b"%d" % number)
    seen = [0]
    while len(two.frames) < 100:
        await asyncio.sleep(0)
        seen.append(len(two.frames))
    assert max(after - before for before, after in pairwise(seen)) == 1
    assert two.frames == [(1, KIND, b"%d" % number) for number in range(100)]
    assert two.network.send(NodeId(1), KIND, b"back")
    assert one.network.send(NodeId(2), KIND, b"read again")
    await two.until(lambda: len(two.frames) == 101)


async def test_large_frames_pass_between_small_ones(peer_nodes: PeerNodes, key: bytes | None) -> None:
    one, two = await peer_nodes.pair(key=key)
    sizes = [0, 1, 20_000, 262_144, 3_000_000, 5, 20_000_000, 7]
    for size in sizes:
        assert one.network.send(NodeId(2), KIND, [b"#", bytes([size % 251]) * size])
    await two.until(lambda: len(two.frames) == len(sizes))
    assert [body for _, _, body in two.frames] == [b"#" + bytes([size % 251]) * size for size in sizes]


async def test_a_frame_above_the_limit_is_the_senders_mistake(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = await peer_nodes.pair(key=key, limits=Limits(max_peer_frame_bytes=1024 * 1024))
    with pytest.raises(ValueError, match="1048576"):
        one.network.send(NodeId(2), KIND, bytes(1024 * 1024))
    assert one.network.send(NodeId(2), KIND, b"after it")
    await two.until(lambda: two.frames)
    assert two.frames == [(1, KIND, b"after it")]


async def test_nothing_is_sent_to_a_node_that_is_not_connected(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one = await peer_nodes.node(1, key=key)
    assert one.network.send(NodeId(2), KIND, b"") is False
    assert one.network.traffic.frames_dropped == 1


@pytest.mark.parametrize("dialler", [1, 2])
async def test_either_side_may_dial(peer_nodes: PeerNodes, key: bytes | None, dialler: int) -> None:
    nodes = {1: await peer_nodes.node(1, key=key), 2: await peer_nodes.node(2, key=key)}
    other = 3 - dialler
    nodes[dialler].dial(nodes[other])
    await nodes[dialler].until_connected(other)
    await nodes[other].until_connected(dialler)


async def test_nodes_that_probe_each_other_at_once_end_with_one_connection(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = await peer_nodes.node(1, key=key), await peer_nodes.node(2, key=key)
    one.network.dial_seeds([one.address, two.address])
    two.network.dial_seeds([two.address, one.address])
    # Each knows which node is at both addresses, so all four attempts are over.
    for node in (one, two):
        await node.until(
            lambda node=node: {dialled for _, dialled in node.hellos} >= {one.address, two.address}
        )
        await node.until_connected(3 - node.node)
    assert one.network.send(NodeId(2), KIND, b"over the one that is left")
    await two.until(lambda: two.frames)
    assert two.frames == [(1, KIND, b"over the one that is left")]
    assert {hello.node for hello, dialled in one.hellos if dialled == one.address} == {1}
    assert {hello.node for hello, dialled in two.hellos if dialled == one.address} == {1}


@pytest.mark.parametrize(
    ("peer", "first_dialled_by", "expects", "survivor"),
    [
        (3, 3, 5, "second"),  # 3 dialled again: it has lost the first connection
        (3, 5, 5, "second"),  # the connection that the smaller id dialled is the one to keep
        (7, 7, 5, "second"),
        (7, 5, 5, "first"),
        (3, 3, ANY_NODE, "first"),  # it only asks which node is there
        (3, 5, ANY_NODE, "first"),
        (3, 3, 4, "first"),  # it looks for another node
    ],
)
async def test_both_nodes_keep_the_same_one_of_two_connections(
    peer_nodes: PeerNodes, key: bytes | None, peer: int, first_dialled_by: int, expects: int, survivor: str
) -> None:
    five, other = await peer_nodes.node(5, key=key), await peer_nodes.node(peer, key=key)
    dialler, listener = (five, other) if first_dialled_by == 5 else (other, five)
    dialler.dial(listener)
    await five.until_connected(peer)
    second = await peer_nodes.stranger(five.address)
    handshake = second.handshake(other.me, key=key, expects=expects)
    if survivor == "second":
        await second.complete(handshake)
        await five.until(lambda: five.said == [f"up {peer}", f"down {peer}", f"up {peer}"])
    else:
        with pytest.raises(PeerRefused) as told:
            await second.complete(handshake)
        assert (told.value.refusal.code, told.value.hello) == (RefusalCode.ALREADY_CONNECTED, five.me)
        assert five.said == [f"up {peer}"]


async def test_a_seed_is_dialled_until_a_node_answers(peer_nodes: PeerNodes, key: bytes | None) -> None:
    empty = unused_address()
    one = await peer_nodes.node(1, key=key)
    one.network.dial_seeds([empty])
    two = await peer_nodes.node(2, key=key, at=empty)
    await one.until_connected(2)
    assert one.hellos == [(two.me, empty)]


async def test_a_node_that_comes_back_is_connected_again(peer_nodes: PeerNodes, key: bytes | None) -> None:
    one, two = await peer_nodes.pair(key=key)
    await peer_nodes.stop(two)
    await one.until(lambda: one.said == ["up 2", "down 2"])
    again = await peer_nodes.node(2, key=key, at=two.address)
    await one.until_connected(2)
    assert one.said == ["up 2", "down 2", "up 2"]
    assert one.network.connected()[NodeId(2)].run == again.me.run != two.me.run


async def test_a_seed_is_dialled_again_after_its_node_was_lost(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = await peer_nodes.node(1, key=key), await peer_nodes.node(2, key=key)
    one.network.dial_seeds([two.address])
    await one.until_connected(2)
    await peer_nodes.stop(two)
    await one.until_connected()
    await peer_nodes.node(3, key=key, at=two.address)
    await one.until_connected(3)


async def test_a_new_address_is_dialled_instead_of_the_old_one(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = await peer_nodes.node(1, key=key), await peer_nodes.node(2, key=key)
    one.network.set_peers({NodeId(2): unused_address()})
    one.network.set_peers({NodeId(1): one.address, NodeId(2): two.address})
    await one.until_connected(2)
    assert one.hellos == [(two.me, two.address)]


async def test_new_facts_reach_all_connected_nodes(peer_nodes: PeerNodes, key: bytes | None) -> None:
    one, two = await peer_nodes.pair(key=key)
    settled = msgspec.structs.replace(one.me, cluster_id="C", founders=(Replica(NodeId(1), 1001),))
    one.network.introduce(settled)
    await two.until(lambda: two.hellos[-1][0] == settled)
    assert two.network.connected()[NodeId(1)] == settled
    assert two.said == ["up 1"]


async def test_a_node_that_turns_out_to_be_of_another_cluster_is_disconnected(
    peer_nodes: PeerNodes, key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await peer_nodes.pair(key=key)
    one.network.introduce(msgspec.structs.replace(one.me, cluster_id="ONE"))
    await two.until(lambda: two.network.connected()[NodeId(1)].cluster_id == "ONE")
    with caplog.at_level(logging.WARNING, "penstock.peers"):
        two.network.introduce(msgspec.structs.replace(two.me, cluster_id="TWO"))
        await one.until(lambda: "down 2" in one.said)
        await two.until(lambda: "down 1" in two.said)
    assert "of cluster TWO" in caplog.text
    assert "of cluster ONE" in caplog.text


async def test_a_silent_connection_is_closed_and_an_idle_one_is_not(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = (
        await peer_nodes.node(1, key=key, silence_ms=200),
        await peer_nodes.node(2, key=key, silence_ms=200),
    )
    one.dial(two)
    await one.until_connected(2)
    mute = await peer_nodes.stranger(one.address)
    await mute.introduce(hello(3), key=key)
    await one.until(lambda: "down 3" in one.said)
    assert one.said == ["up 2", "up 3", "down 3"]


async def test_a_node_that_was_paused_does_not_close_connections_for_its_own_pause(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one, two = (
        await peer_nodes.node(1, key=key, silence_ms=200),
        await peer_nodes.node(2, key=key, silence_ms=200),
    )
    one.dial(two)
    await one.until_connected(2)
    time.sleep(0.5)  # noqa: ASYNC251 - both are on this loop
    assert two.network.send(NodeId(1), KIND, b"good morning")
    await one.until(lambda: one.frames)
    assert one.said == ["up 2"]


async def test_stopping_sends_accepted_frames(peer_nodes: PeerNodes, key: bytes | None) -> None:
    one, two = await peer_nodes.pair(key=key)
    assert two.network.send(NodeId(1), KIND, b"last words")
    await peer_nodes.stop(two)
    await one.until(lambda: "down 2" in one.said)
    assert one.frames == [(2, KIND, b"last words")]


async def test_frames_for_a_slow_peer_wait_up_to_the_limit_and_are_then_dropped(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    limit = 4 * 1024 * 1024
    one = await peer_nodes.node(
        1,
        key=key,
        limits=Limits(max_peer_queue_bytes=limit, max_peer_frame_bytes=1024 * 1024),
        silence_ms=60_000,
    )
    idler = await peer_nodes.stranger(one.address)
    idler.reader._limit = 1  # type: ignore[attr-defined]  # so that asyncio reads no further by itself
    await idler.introduce(hello(2), key=key)
    idler.writer.transport.pause_reading()  # type: ignore[attr-defined]
    taken = 0
    while one.network.send(NodeId(2), KIND, bytes(100_000)):
        taken += 1
        assert one.network.waiting_bytes(NodeId(2)) <= limit
        await asyncio.sleep(0)
        assert taken < 10_000
    assert one.network.traffic.frames_dropped == 1
    idler.writer.transport.resume_reading()  # type: ignore[attr-defined]
    heard = 0
    while heard < taken * 100_000:
        heard += len(await idler.reader.read(2**20))
    assert one.network.send(NodeId(2), KIND, b"there is room again")


async def test_an_urgent_frame_overtakes_waiting_ones(peer_nodes: PeerNodes, key: bytes | None) -> None:
    one = await peer_nodes.node(1, key=key, urgent_kinds=(KIND,), silence_ms=60_000)
    peer = await peer_nodes.stranger(one.address)
    handshake = await peer.introduce(hello(2), key=key)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    bulk = 0
    while one.network.waiting_bytes(NodeId(2)) < 20_000_000:
        assert one.network.send(NodeId(2), KIND + 1, bytes(100_000))
        bulk += 1
        await asyncio.sleep(0)
    assert one.network.send(NodeId(2), KIND, b"now")
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    kinds = [kind async for kind, _ in peer.frames(handshake, bulk + 1)]
    assert kinds.count(KIND + 1) == bulk
    assert 0 < kinds.index(KIND) < bulk / 2


async def test_many_nodes_that_dial_each_other_at_once_end_with_one_connection_per_pair(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    nodes = [await peer_nodes.node(number, key=key) for number in range(1, 7)]
    addresses = [node.address for node in nodes]
    for node in nodes:
        node.network.dial_seeds(addresses)
    others = {node.node: {other.node for other in nodes} - {node.node} for node in nodes}
    for node in nodes:
        # Every node was reached at every address, so none dials any more.
        await node.until(lambda node=node: {dialled for _, dialled in node.hellos} >= set(addresses))
        await node.until_connected(*others[node.node])
    for node in nodes:
        for other in others[node.node]:
            assert node.network.send(other, KIND, b"hi")
    for node in nodes:
        await node.until(lambda node=node: len(node.frames) == 5)
        assert {sender for sender, _, _ in node.frames} == others[node.node]


async def test_facts_that_change_during_a_handshake_are_sent_after_it(
    peer_nodes: PeerNodes, key: bytes | None
) -> None:
    one = await peer_nodes.node(1, key=key)
    peer = await peer_nodes.stranger(one.address)
    handshake = peer.handshake(hello(2), key=key)
    peer.say(handshake.opening())
    introduction = handshake.feed(await peer.reader.readexactly(PREAMBLE_SIZE))
    settled = msgspec.structs.replace(one.me, cluster_id="C")
    one.network.introduce(settled)
    peer.say(introduction)
    while not handshake.over:
        handshake.feed(await peer.reader.read(65536))
    assert handshake.hello == one.me
    frames = handshake.rest()
    while len(frames) < 5 or len(frames) < 4 + int.from_bytes(frames[:4], "big"):
        frames += await peer.reader.read(65536)
    end = len(frames) - (16 if key else 0)
    assert decode_hello(frames[5:end]) == settled


async def test_a_half_open_connection_is_replaced(peer_nodes: PeerNodes, key: bytes | None) -> None:
    one, two = await peer_nodes.node(1, key=key, silence_ms=200), await peer_nodes.node(2, key=key)
    between = await Relay.open(two.address)
    one.network.set_peers({NodeId(2): between.address})
    await two.until_connected(1)
    between.cut_far_end()  # node 1 does not see that
    await two.until(lambda: "down 1" in two.said)
    two.dial(one)
    await two.until(lambda: two.said[-1] == "up 1")
    await one.until(lambda: "down 2" in one.said)
    await one.until_connected(2)
    between.close()
