"""Who does not belong: closed, told why where it can be told, one log line, no harm to anybody else."""

import asyncio
import logging

import pytest

from penstock.config import Limits
from penstock.node.peers.frames import HEAD
from penstock.node.peers.handshake import MAGIC, PREAMBLE_SIZE
from penstock.types import NodeId

from .town import KEY, KIND, PATIENCE_SECONDS, Town, hello

LOGGER = "penstock.peers"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


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
    town: Town, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await town.pair()
    with caplog.at_level(logging.INFO, LOGGER):
        stranger = await town.stranger(one.address)
        stranger.say(garbage)
        assert await stranger.heard_until_closed() == b""
    assert len(warnings(caplog)) == 1
    assert "not Penstock's inter-node protocol" in warnings(caplog)[0]
    assert one.network.send(NodeId(2), KIND, b"all is well")
    await two.until(lambda: two.frames)


async def test_a_flood_of_garbage_is_a_line_not_a_flood(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    one = await town.node(1)
    for _ in range(50):
        stranger = await town.stranger(one.address)
        stranger.say(b"SSH-2.0-OpenSSH_9.6\r\n")
        await stranger.heard_until_closed()
    assert len(warnings(caplog)) == 1


async def test_a_slow_introduction_runs_into_its_deadline(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one = await town.node(1, limits=Limits(peer_handshake_timeout_ms=50), silence_ms=100)
    stranger = await town.stranger(one.address)
    stranger.say(MAGIC)
    assert await stranger.heard_until_closed() == b""
    assert "no introduction within 50 ms" in warnings(caplog)[0]


async def test_strangers_beyond_the_limit_push_out_the_oldest_and_nodes_still_get_in(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one = await town.node(1, limits=Limits(max_peer_handshakes=3))
    idle = [await town.stranger(one.address) for _ in range(3)]
    two = await town.node(2)
    two.dial(one)
    await two.until_connected(1)
    assert await idle[0].heard_until_closed() == b""
    assert "over limits.max_peer_handshakes=3" in warnings(caplog)[0]


async def test_an_introduction_that_is_too_large_is_refused_before_it_is_read(town: Town) -> None:
    one = await town.node(1)
    stranger = await town.stranger(one.address)
    stranger.say(MAGIC + bytes([2, 2, 0, 0]) + bytes(32) + HEAD.pack(2**31, 1))
    heard = await stranger.heard_until_closed()
    assert b"an introduction of 2147483648 bytes" in heard


async def test_an_introduction_that_makes_no_sense_is_refused(town: Town) -> None:
    one = await town.node(1)
    stranger = await town.stranger(one.address)
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
    town: Town, kind: int, body: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = await town.node(1)
    peer = await town.stranger(one.address)
    await peer.introduce(hello(2))
    with caplog.at_level(logging.INFO, LOGGER):
        peer.frame(kind, body)
        await one.until(lambda: "down 2" in one.said)
    assert said in caplog.text


async def test_an_oversized_frame_of_a_peer_closes_its_connection(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one = await town.node(1, limits=Limits(max_peer_frame_bytes=1024 * 1024))
    peer = await town.stranger(one.address)
    await peer.introduce(hello(2))
    with caplog.at_level(logging.INFO, LOGGER):
        peer.say(HEAD.pack(1024 * 1024 + 1, KIND))
        await one.until(lambda: "down 2" in one.said)
    assert "frame length 1048577" in caplog.text


async def test_a_version_that_is_not_spoken_is_refused_in_words_on_both_sides(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one = await town.node(1)
    stranger = await town.stranger(one.address)
    stranger.say(MAGIC + bytes([7, 9, 0, 0]) + bytes(32))
    heard = await stranger.heard_until_closed()
    assert "it speaks versions 7 to 9 of the inter-node protocol, this node version 2" in warnings(caplog)[0]
    # The other side gets what it needs to say the same.
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
    town: Town,
    listener_key: bytes | None,
    dialler_key: bytes | None,
    said: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener, dialler = await town.node(1, key=listener_key), await town.node(2, key=dialler_key)
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
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await town.node(1, cluster_id="ONE"), await town.node(2, cluster_id="TWO")
    two.dial(one)
    await until_warned(caplog, 2)
    reason = "node 2 is of cluster TWO, node 1 of cluster ONE"
    assert all(reason in line for line in warnings(caplog))
    assert sorted(line.split()[0] for line in warnings(caplog)) == ["refused", "was"]
    assert (one.said, two.said) == ([], [])


async def test_of_two_nodes_with_one_id_the_first_keeps_its_connection(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    one, first = await town.pair()
    second = await town.node(2, incarnation=77)
    second.dial(one)
    await until_warned(caplog, 2)
    assert all("two nodes have the id 2" in line for line in warnings(caplog))
    assert one.said == ["up 2"]
    assert second.said == []
    assert one.network.send(NodeId(2), KIND, b"to the first")
    await first.until(lambda: first.frames)


async def test_a_copied_data_folder_is_noticed(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    one, first = await town.pair()
    copy = await town.node(2, incarnation=first.me.incarnation)
    copy.dial(one)
    await until_warned(caplog, 2)
    assert all("a data folder of its own" in line for line in warnings(caplog))
    assert one.said == ["up 2"]


async def test_a_node_with_this_nodes_own_id_is_refused(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    one, other = await town.node(1), await town.node(1, incarnation=77)
    other.network.dial_seeds([one.address])
    await until_warned(caplog, 2)
    assert all("two nodes have the id 1" in line for line in warnings(caplog))


async def test_an_emptied_node_gets_in_when_its_former_self_has_gone(town: Town) -> None:
    one, first = await town.pair()
    await town.stop(first)
    await town.node(2, incarnation=77, at=first.address)
    await one.until(lambda: one.said == ["up 2", "down 2", "up 2"])
    assert one.network.connected()[NodeId(2)].incarnation == 77


async def test_peers_beyond_the_limit_are_refused(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    one = await town.node(1, limits=Limits(max_peers=1))
    two, three = await town.node(2), await town.node(3)
    two.dial(one)
    await two.until_connected(1)
    three.dial(one)
    await until_warned(caplog, 2)
    assert all("node 1 has 1 peers, its limit" in line for line in warnings(caplog))
    assert one.said == ["up 2"]


async def test_a_repeated_frame_ends_a_keyed_connection(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    one = await town.node(1, key=KEY)
    peer = await town.stranger(one.address)
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


async def test_a_frame_without_a_tag_ends_a_keyed_connection(town: Town) -> None:
    one = await town.node(1, key=KEY)
    peer = await town.stranger(one.address)
    await peer.introduce(hello(2), key=KEY)
    peer.frame(KIND, b"me too")
    await one.until(lambda: "down 2" in one.said)
    assert one.frames == []


class Bell(logging.Handler):
    """Rings for every line."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.rung = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.rung.set()


async def until_warned(caplog: pytest.LogCaptureFixture, lines: int) -> None:
    bell = Bell()
    logging.getLogger(LOGGER).addHandler(bell)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(warnings(caplog)) < lines:
                bell.rung.clear()
                await bell.rung.wait()
    finally:
        logging.getLogger(LOGGER).removeHandler(bell)
