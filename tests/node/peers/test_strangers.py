"""Strangers on the inter-node port: closed, refused with a reason if possible, one log line, no effect on others."""

import asyncio
import logging

import pytest

from penstock.config import Limits
from penstock.node.peers.frames import HEAD
from penstock.node.peers.handshake import MAGIC, PREAMBLE_SIZE
from penstock.types import NodeId

from .peer_nodes import KEY, KIND, PATIENCE_SECONDS, PeerNodes, hello

LOGGER = "penstock.peers"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the inter-node port: on a busy machine, brokers of other tests may log something, too."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == LOGGER and record.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: penstock\r\n\r\n",
        b"\x00\x00\x00\x20\x00\x12\x00\x03",
        bytes(4096),
        b"\xff" * 100_000,
    ],
    ids=["http", "kafka", "zeros", "ones"],
)
async def test_garbage_is_closed_with_one_log_line_and_no_answer(
    peer_nodes: PeerNodes, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await peer_nodes.pair()
    with caplog.at_level(logging.INFO, LOGGER):
        stranger = await peer_nodes.stranger(one.address)
        stranger.say(garbage)
        assert await stranger.heard_until_closed() == b""
    assert len(warnings(caplog)) == 1
    assert "not Penstock's inter-node protocol" in warnings(caplog)[0]
    assert one.network.send(NodeId(2), KIND, b"all is well")
    await two.until(lambda: two.frames)


async def test_a_flood_of_garbage_is_one_log_line(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1)
    for _ in range(50):
        stranger = await peer_nodes.stranger(one.address)
        stranger.say(b"SSH-2.0-OpenSSH_9.6\r\n")
        await stranger.heard_until_closed()
    assert len(warnings(caplog)) == 1


async def test_a_slow_introduction_times_out(peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture) -> None:
    one = await peer_nodes.node(1, limits=Limits(peer_handshake_timeout_ms=50), silence_ms=100)
    stranger = await peer_nodes.stranger(one.address)
    stranger.say(MAGIC)
    assert await stranger.heard_until_closed() == b""
    assert "no introduction within 50 ms" in warnings(caplog)[0]


async def test_strangers_above_the_limit_replace_the_oldest_and_nodes_can_still_connect(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1, limits=Limits(max_peer_handshakes=3))
    idle = [await peer_nodes.stranger(one.address) for _ in range(3)]
    two = await peer_nodes.node(2)
    two.dial(one)
    await two.until_connected(1)
    assert await idle[0].heard_until_closed() == b""
    assert "over limits.max_peer_handshakes=3" in warnings(caplog)[0]


async def test_an_introduction_that_is_too_large_is_refused_before_it_is_read(peer_nodes: PeerNodes) -> None:
    one = await peer_nodes.node(1)
    stranger = await peer_nodes.stranger(one.address)
    stranger.say(MAGIC + bytes([2, 2, 0, 0]) + bytes(32) + HEAD.pack(2**31, 1))
    heard = await stranger.heard_until_closed()
    assert b"an introduction of 2147483648 bytes" in heard


async def test_an_invalid_introduction_is_refused(peer_nodes: PeerNodes) -> None:
    one = await peer_nodes.node(1)
    stranger = await peer_nodes.stranger(one.address)
    stranger.say(MAGIC + bytes([2, 2, 0, 0]) + bytes(32) + HEAD.pack(4, 1) + b"\xc1\xc1\xc1")
    assert b"cannot be read" in await stranger.heard_until_closed()


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        (9, b"", "unknown kind 9"),
        (4, b"\xc1", "cannot be read"),
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_closed(
    peer_nodes: PeerNodes, kind: int, body: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1)
    peer = await peer_nodes.stranger(one.address)
    await peer.introduce(hello(2))
    with caplog.at_level(logging.INFO, LOGGER):
        peer.frame(kind, body)
        await one.until(lambda: "down 2" in one.said)
    assert said in caplog.text


async def test_an_oversized_frame_of_a_peer_closes_its_connection(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1, limits=Limits(max_peer_frame_bytes=1024 * 1024))
    peer = await peer_nodes.stranger(one.address)
    await peer.introduce(hello(2))
    with caplog.at_level(logging.INFO, LOGGER):
        peer.say(HEAD.pack(1024 * 1024 + 1, KIND))
        await one.until(lambda: "down 2" in one.said)
    assert "frame length 1048577" in caplog.text


async def test_an_unsupported_version_is_refused_with_the_reason_on_both_sides(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1)
    stranger = await peer_nodes.stranger(one.address)
    stranger.say(MAGIC + bytes([7, 9, 0, 0]) + bytes(32))
    heard = await stranger.heard_until_closed()
    assert "it speaks versions 7 to 9 of the inter-node protocol, this node version 2" in warnings(caplog)[0]
    # The other side gets the facts for the same message.
    assert (len(heard), heard[:6]) == (PREAMBLE_SIZE, MAGIC + bytes([2, 2]))


@pytest.mark.parametrize(
    ("listener_key", "dialler_key", "said"),
    [
        (KEY, None, ["it has no cluster key", "it has a cluster key"]),
        (None, KEY, ["it has no cluster key", "it has a cluster key"]),
        (KEY, KEY + b"!", ["refused node", "was refused by"]),
    ],
    ids=["only-the-listener", "only-the-dialler", "different"],
)
async def test_nodes_whose_keys_differ_refuse_each_other_and_both_logs_say_so(
    peer_nodes: PeerNodes,
    listener_key: bytes | None,
    dialler_key: bytes | None,
    said: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener, dialler = await peer_nodes.node(1, key=listener_key), await peer_nodes.node(2, key=dialler_key)
    dialler.network.dial_seeds([listener.address])
    await until_warned(caplog, 2)
    told = sorted(warnings(caplog))
    if listener_key and dialler_key:
        assert all("the cluster keys differ" in line for line in told)
        assert told[0].startswith("refused 127.0.0.1:")
        assert told[1].startswith(f"was refused by {listener.address}")
    else:
        assert all(any(words in line for line in told) for words in said)
    assert (listener.said, dialler.said) == ([], [])


async def test_a_node_of_another_cluster_is_refused_and_both_logs_say_so(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await peer_nodes.node(1, cluster_id="ONE"), await peer_nodes.node(2, cluster_id="TWO")
    two.dial(one)
    await until_warned(caplog, 2)
    reason = "node 2 is of cluster TWO, node 1 of cluster ONE"
    assert all(reason in line for line in warnings(caplog))
    assert sorted(line.split()[0] for line in warnings(caplog)) == ["refused", "was"]
    assert (one.said, two.said) == ([], [])


async def test_the_first_of_two_nodes_with_one_id_keeps_its_connection(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one, first = await peer_nodes.pair()
    second = await peer_nodes.node(2, incarnation=77)
    second.dial(one)
    await until_warned(caplog, 2)
    assert all("two nodes have the id 2" in line for line in warnings(caplog))
    assert one.said == ["up 2"]
    assert second.said == []
    assert one.network.send(NodeId(2), KIND, b"to the first")
    await first.until(lambda: first.frames)


async def test_a_copied_data_folder_is_detected(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one, first = await peer_nodes.pair()
    copy = await peer_nodes.node(2, incarnation=first.me.incarnation)
    copy.dial(one)
    await until_warned(caplog, 2)
    assert all("a data folder of its own" in line for line in warnings(caplog))
    assert one.said == ["up 2"]


async def test_a_node_with_this_nodes_own_id_is_refused(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = await peer_nodes.node(1), await peer_nodes.node(1, incarnation=77)
    other.network.dial_seeds([one.address])
    await until_warned(caplog, 2)
    assert all("two nodes have the id 1" in line for line in warnings(caplog))


async def test_a_wiped_node_can_connect_when_its_former_process_is_gone(peer_nodes: PeerNodes) -> None:
    one, first = await peer_nodes.pair()
    await peer_nodes.stop(first)
    await peer_nodes.node(2, incarnation=77, at=first.address)
    await one.until(lambda: one.said == ["up 2", "down 2", "up 2"])
    assert one.network.connected()[NodeId(2)].incarnation == 77


async def test_peers_above_the_limit_are_refused(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1, limits=Limits(max_peers=1))
    two, three = await peer_nodes.node(2), await peer_nodes.node(3)
    two.dial(one)
    await two.until_connected(1)
    three.dial(one)
    await until_warned(caplog, 2)
    assert all("node 1 has 1 peers, its limit" in line for line in warnings(caplog))
    assert one.said == ["up 2"]


async def test_a_repeated_frame_ends_a_keyed_connection(
    peer_nodes: PeerNodes, caplog: pytest.LogCaptureFixture
) -> None:
    one = await peer_nodes.node(1, key=KEY)
    peer = await peer_nodes.stranger(one.address)
    seals = (await peer.introduce(hello(2), key=KEY)).seals()
    assert seals is not None
    head = HEAD.pack(1 + 5 + 16, KIND)
    sealed = head + b"money" + seals[0].tag(head, [b"money"])
    with caplog.at_level(logging.INFO, LOGGER):
        peer.say(sealed)
        await one.until(lambda: one.frames == [(2, KIND, b"money")])
        peer.say(sealed)
        await one.until(lambda: "down 2" in one.said)
    assert one.frames == [(2, KIND, b"money")]
    assert "a frame with a wrong tag" in caplog.text


async def test_a_frame_without_a_tag_ends_a_keyed_connection(peer_nodes: PeerNodes) -> None:
    one = await peer_nodes.node(1, key=KEY)
    peer = await peer_nodes.stranger(one.address)
    await peer.introduce(hello(2), key=KEY)
    peer.frame(KIND, b"me too")
    await one.until(lambda: "down 2" in one.said)
    assert one.frames == []


class LogEvent(logging.Handler):
    """Sets an event at every log line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.rung = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.rung.set()


async def until_warned(caplog: pytest.LogCaptureFixture, lines: int) -> None:
    log_event = LogEvent()
    logging.getLogger(LOGGER).addHandler(log_event)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(warnings(caplog)) < lines:
                log_event.rung.clear()
                await log_event.rung.wait()
    finally:
        logging.getLogger(LOGGER).removeHandler(log_event)
