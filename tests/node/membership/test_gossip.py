"""Gossip on real sockets: nodes find each other, leave and die, and the durable state survives restarts."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop

from penstock.log.data_folder import GOSSIP_PATH
from penstock.log.disk import Disk
from penstock.log.memory_disk import MemoryDisk
from penstock.log.os_disk import OsDisk
from penstock.node.membership.datagrams import DatagramNetwork, Datagrams, Receive, UdpNetwork
from penstock.node.membership.gossip import Gossip, Saved
from penstock.swim import GossipEndpoint, Member, MemberMeta, PacketRefusal, State, SwimSettings
from penstock.types import NodeId, Replica
from tests.node.faulty_disk import FaultyDisk

PATIENCE_SECONDS = 60.0
ANY_PORT = GossipEndpoint("127.0.0.1", 0)
BRISK = SwimSettings(
    probe_interval_ms=100,
    probe_timeout_ms=50,
    gossip_interval_ms=20,
    join_retry_ms=50,
    rejoin_interval_ms=100,
    push_pull_interval_ms=500,
)
KEY = b"a key for tests"


class FixedClock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class Silence:
    """A network on which every datagram is lost, as behind a strict firewall."""

    async def open(self, bind: GossipEndpoint, receive: Receive) -> Datagrams:
        return SilentEndpoint(bind)


class SilentEndpoint:
    def __init__(self, local: GossipEndpoint) -> None:
        self.local = local

    def send(self, to: GossipEndpoint, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class GossipNodes:
    """Nodes on this machine. Datagrams are real; the reliable channel is a call, until a node has stopped."""

    def __init__(self, network: DatagramNetwork | None = None) -> None:
        self.network = network or UdpNetwork()
        self.nodes: dict[int, Gossip] = {}
        self._changed = asyncio.Event()

    def make(
        self,
        node: int,
        *,
        disk: Disk | None = None,
        key: bytes | None = KEY,
        wall_ms: int = 1000,
        port: int = 0,
    ) -> Gossip:
        meta = MemberMeta(
            node=node,
            folder_incarnation=1000 + node,
            cluster_id="gossip_nodes",
            cluster=GossipEndpoint("127.0.0.1", port),
        )
        gossip = Gossip(
            meta=meta,
            settings=BRISK,
            key=key,
            disk=disk or MemoryDisk(),
            clock=FixedClock(wall_ms),
            network=self.network,
            reliable=lambda to, data: self._deliver(NodeId(node), to, data),
            on_change=self._note,
        )
        self.nodes[node] = gossip
        return gossip

    def _deliver(self, sender: NodeId, to: NodeId | GossipEndpoint, data: bytes) -> bool:
        found = [gossip for gossip in self.nodes.values() if to in (gossip.meta.node, gossip.meta.cluster)]
        for gossip in found:
            asyncio.get_running_loop().call_soon(gossip.receive_reliable, sender, data)
        return bool(found)

    def _note(self, member: Member, state: State) -> None:
        self._changed.set()

    async def until(self, claim_holds: Callable[[], bool]) -> None:
        """Checks again after every change that a node reports."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not claim_holds():
                self._changed.clear()
                await self._changed.wait()

    def sees(self, observer: int, node: int) -> State | None:
        member = self.nodes[observer].find(NodeId(node))
        return member.state if member is not None else None

    def all_see(self, *nodes: int) -> bool:
        return all(self.sees(one, other) is State.ALIVE for one in nodes for other in nodes)

    def stop(self) -> None:
        for gossip in self.nodes.values():
            gossip.stop()


def play(scenario: Callable[[GossipNodes], Awaitable[None]], network: DatagramNetwork | None = None) -> None:
    async def run() -> None:
        gossip_nodes = GossipNodes(network)
        try:
            await scenario(gossip_nodes)
        finally:
            gossip_nodes.stop()

    asyncio.run(run())


async def three(gossip_nodes: GossipNodes) -> None:
    seed = await gossip_nodes.make(1).start(ANY_PORT)
    for node in (2, 3):
        await gossip_nodes.make(node).start(ANY_PORT)
        gossip_nodes.nodes[node].join([seed])
    await gossip_nodes.until(lambda: gossip_nodes.all_see(1, 2, 3))


def test_three_nodes_find_each_other_one_leaves_and_one_dies() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        await three(gossip_nodes)
        await gossip_nodes.nodes[3].leave()
        gossip_nodes.nodes.pop(3).stop()
        await gossip_nodes.until(lambda: gossip_nodes.sees(1, 3) is gossip_nodes.sees(2, 3) is State.LEFT)
        gossip_nodes.nodes.pop(2).stop()
        await gossip_nodes.until(lambda: gossip_nodes.sees(1, 2) is State.DEAD)
        assert gossip_nodes.sees(1, 3) is State.LEFT

    play(scenario)


def test_a_dead_node_comes_back_at_the_same_address() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        await three(gossip_nodes)
        disk, port = MemoryDisk(), gossip_nodes.nodes[2].meta.cluster.port
        gossip_nodes.nodes.pop(2).stop()
        await gossip_nodes.until(lambda: gossip_nodes.sees(1, 2) is State.DEAD)
        await gossip_nodes.make(2, disk=disk, port=port, wall_ms=2000).start(
            GossipEndpoint("127.0.0.1", port)
        )
        # It has no seeds: the nodes that declared it dead ping it again, and it refutes.
        await gossip_nodes.until(lambda: gossip_nodes.all_see(1, 2, 3))

    play(scenario)


def test_nodes_find_each_other_by_name() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        seed = await gossip_nodes.make(1).start(ANY_PORT)
        await gossip_nodes.make(2).start(ANY_PORT)
        gossip_nodes.nodes[2].join([GossipEndpoint("localhost", seed.port)])
        await gossip_nodes.until(lambda: gossip_nodes.all_see(1, 2))

    play(scenario)


def test_a_seed_name_that_does_not_resolve_does_no_harm() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        seed = await gossip_nodes.make(1).start(ANY_PORT)
        await gossip_nodes.make(2).start(ANY_PORT)
        gossip_nodes.nodes[2].join([GossipEndpoint("no-such-host.invalid", 9), seed])
        await gossip_nodes.until(lambda: gossip_nodes.all_see(1, 2))

    play(scenario)


def test_without_datagrams_the_reliable_channel_is_enough() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        for node in (1, 2):
            await gossip_nodes.make(node, port=node).start(GossipEndpoint("127.0.0.1", node))
        gossip_nodes.nodes[2].peer_up(NodeId(1))
        await gossip_nodes.until(lambda: gossip_nodes.all_see(1, 2))
        gossip_nodes.nodes.pop(2).stop()
        await gossip_nodes.until(lambda: gossip_nodes.sees(1, 2) is State.DEAD)

    play(scenario, Silence())


def test_garbage_on_the_port_is_only_counted() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        await three(gossip_nodes)
        target = gossip_nodes.nodes[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for size in range(100):
                stranger.sendto(bytes([1, 1]) + b"x" * size, target.meta.cluster)
            stranger.sendto(b"", target.meta.cluster)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while target.refused[PacketRefusal.KEY] < 100:
                await asyncio.sleep(0)
        assert len(target.members()) == 3

    play(scenario)


def test_a_node_with_another_key_stays_outside() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        seed = await gossip_nodes.make(1).start(ANY_PORT)
        await gossip_nodes.make(2, key=b"another key").start(ANY_PORT)
        gossip_nodes.nodes[2].join([seed])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not gossip_nodes.nodes[1].refused[PacketRefusal.KEY]:
                await asyncio.sleep(0)
        assert list(gossip_nodes.nodes[1].members()) == [Replica(NodeId(1), 1001)]

    play(scenario)


def test_epoch_and_incarnation_only_grow_independent_of_the_clock(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    lives: list[tuple[Saved, int]] = []

    async def scenario(gossip_nodes: GossipNodes) -> None:
        for wall_ms in (5_000, 3_000, 9_000):
            gossip = gossip_nodes.make(1, disk=disk, wall_ms=wall_ms)
            await gossip.start(ANY_PORT)
            lives.append((Saved.load(disk), gossip.members()[Replica(NodeId(1), 1001)].incarnation))
            gossip.stop()

    play(scenario)
    assert [saved.epoch for saved, _ in lives] == [5_000, 5_001, 9_000]
    for (earlier, _), (_, used) in pairwise(lives):
        assert used > earlier.incarnation


@pytest.mark.parametrize("content", [b"", b"abc", b"\0\0\0\0\x92\x01\x02", b"\xff" * 9])
def test_a_damaged_file_is_logged_and_replaced(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    disk.make_dir("meta")
    disk.write_file_atomic(GOSSIP_PATH, content)

    async def scenario(gossip_nodes: GossipNodes) -> None:
        await gossip_nodes.make(1, disk=disk, wall_ms=7_000).start(ANY_PORT)

    play(scenario)
    assert "meta/gossip is damaged" in caplog.text
    assert Saved.load(disk).epoch == 7_000


def test_a_full_disk_does_not_keep_a_node_from_gossiping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk(tmp_path)
    disk.full = True

    async def scenario(gossip_nodes: GossipNodes) -> None:
        seed = await gossip_nodes.make(1, disk=disk).start(ANY_PORT)
        await gossip_nodes.make(2).start(ANY_PORT)
        gossip_nodes.nodes[2].join([seed])
        await gossip_nodes.until(lambda: gossip_nodes.all_see(1, 2))

    play(scenario)
    assert "cannot save the gossip incarnation" in caplog.text


def test_a_port_in_use_is_an_error_at_once() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        taken = await gossip_nodes.make(1).start(ANY_PORT)
        with pytest.raises(OSError, match="in use"):
            await gossip_nodes.make(2).start(taken)

    play(scenario)


def test_a_lone_node_leaves_at_once_and_is_silent_after_it_stopped() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        gossip = gossip_nodes.make(1)
        await gossip.start(ANY_PORT)
        await gossip.leave()
        gossip.stop()
        gossip.stop()
        gossip.receive_reliable(NodeId(2), b"late")
        gossip.peer_up(NodeId(2))
        with pytest.raises(RuntimeError, match="not running"):
            gossip.members()

    play(scenario)


def test_a_nodes_metadata_reaches_the_others() -> None:
    async def scenario(gossip_nodes: GossipNodes) -> None:
        await three(gossip_nodes)
        old = gossip_nodes.nodes[1].meta
        gossip_nodes.nodes[1].set_meta(
            MemberMeta(
                node=1,
                folder_incarnation=old.folder_incarnation,
                cluster_id="gossip_nodes",
                cluster=old.cluster,
                payload_version=7,
            )
        )

        def told(node: int) -> bool:
            member = gossip_nodes.nodes[node].find(NodeId(1))
            return member is not None and member.meta.payload_version == 7

        await gossip_nodes.until(lambda: told(2) and told(3))

    play(scenario)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as trial:
            trial.bind(("::", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0", "::"] if has_ipv6() else ["127.0.0.1", "0.0.0.0"])
def test_sending_to_invalid_addresses_raises_nothing(run: Callable[..., None], bind: str) -> None:
    async def scenario() -> None:
        arrived = asyncio.Event()
        endpoint = await UdpNetwork().open(GossipEndpoint(bind, 0), lambda source, data: arrived.set())
        nowhere = [
            "::1",
            "fe80::1",
            "255.255.255.255",
            "x" * 250,
            "no name",
            "ü..",
            "a\0b",
            "no-such-host.invalid",
        ]
        for host in nowhere:
            endpoint.send(GossipEndpoint(host, 9), b"lost")
        endpoint.send(GossipEndpoint("127.0.0.1", 0), b"lost")
        endpoint.send(GossipEndpoint("127.0.0.1", 9), b"x" * 70_000)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*endpoint._lookups.values())
            endpoint.send(GossipEndpoint("127.0.0.1", endpoint.local.port), b"to itself")
            await arrived.wait()
        endpoint.close()
        endpoint.send(GossipEndpoint("127.0.0.1", 9), b"after the end")

    run(scenario())
