"""Nodes with only an inter-node port, on 127.0.0.1, and strangers that connect to them."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random

from penstock.config import Address, InterNodeTls, Limits
from penstock.node.peers import PeerHello, PeerNetwork
from penstock.node.peers.encryption import PeerEncryption
from penstock.node.peers.frames import PING
from penstock.node.peers.handshake import NONCE_SIZE, Handshake, PeerRefused, frame
from penstock.node.peers.hello import Introduction, PeerRefusal
from penstock.node.peers.seal import TAG_SIZE
from penstock.types import NodeId, Replica

PATIENCE_SECONDS = 60
"""The limit for events that must happen; no test asserts how long they take."""

KEY = b"a key that all nodes of a test share"
KIND = 20


def hello(
    node: int,
    *,
    port: int = 1,
    incarnation: int = 0,
    run: int | None = None,
    cluster_id: str | None = None,
    founders: tuple[Replica, ...] = (),
    seeds: tuple[Address, ...] = (),
) -> PeerHello:
    return PeerHello(
        node=NodeId(node),
        incarnation=incarnation or 1000 + node,
        run=secrets.randbits(63) if run is None else run,
        cluster_id=cluster_id,
        founders=founders,
        cluster=Address("127.0.0.1", port),
        kafka=Address("127.0.0.1", 9092),
        rack="r1",
        seeds=seeds,
        version="test",
    )


class PeerNode:
    """One node: its network, and everything that it received."""

    network: PeerNetwork

    def __init__(self, address: Address) -> None:
        self.address = address
        self.frames: list[tuple[int, int, bytes]] = []
        self.said: list[str] = []
        """Connection events as text: "up 2", "down 2"."""
        self.hellos: list[tuple[PeerHello, Address | None]] = []
        self.refusals: list[tuple[Address, PeerRefused]] = []
        """At addresses that it dialled."""
        self._news = asyncio.Event()

    def on_frame(self, sender: NodeId, kind: int, body: memoryview) -> None:
        self.frames.append((sender, kind, bytes(body)))
        self._news.set()

    def on_up(self, node: NodeId) -> None:
        self.said.append(f"up {node}")
        self._news.set()

    def on_down(self, node: NodeId) -> None:
        self.said.append(f"down {node}")
        self._news.set()

    def on_hello(self, hello: PeerHello, dialled: Address | None) -> None:
        self.hellos.append((hello, dialled))
        self._news.set()

    def on_refused(self, address: Address, refused: PeerRefused) -> None:
        self.refusals.append((address, refused))
        self._news.set()

    async def until(self, true: Callable[[], object]) -> None:
        """Returns when a received event has made it true."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def until_connected(self, *nodes: int) -> None:
        await self.until(lambda: set(self.network.connected()) == set(nodes))

    def dial(self, *others: "PeerNode") -> None:
        self.network.set_peers({other.node: other.address for other in others})

    @property
    def node(self) -> NodeId:
        return self.me.node

    me: PeerHello


class PeerNodes:
    """Creates nodes and strangers, and closes them all in the end."""

    def __init__(self) -> None:
        self._peer_nodes: list[PeerNode] = []
        self._strangers: list[Stranger] = []

    async def node(
        self,
        node: int,
        *,
        incarnation: int = 0,
        run: int | None = None,
        cluster_id: str | None = None,
        seeds: tuple[Address, ...] = (),
        key: bytes | None = None,
        limits: Limits | None = None,
        silence_ms: int = 5_000,
        urgent_kinds: tuple[int, ...] = (),
        at: Address | None = None,
        tls: InterNodeTls | None = None,
    ) -> PeerNode:
        listening = listen(at or Address("127.0.0.1", 0))
        peer_node = PeerNode(Address("127.0.0.1", listening.getsockname()[1]))
        peer_node.me = hello(
            node,
            port=peer_node.address.port,
            incarnation=incarnation,
            run=run,
            cluster_id=cluster_id,
            seeds=seeds,
        )
        peer_node.network = PeerNetwork(
            peer_node.me,
            peer_node,
            key=key,
            limits=limits,
            silence_ms=silence_ms,
            urgent_kinds=urgent_kinds,
            random=Random(node),
            encryption=PeerEncryption(tls, limits or Limits()) if tls is not None else None,
        )
        await peer_node.network.start(listening)
        self._peer_nodes.append(peer_node)
        return peer_node

    async def pair(
        self, *, key: bytes | None = None, limits: Limits | None = None
    ) -> tuple[PeerNode, PeerNode]:
        """Nodes 1 and 2, connected."""
        one, two = await self.node(1, key=key, limits=limits), await self.node(2, key=key, limits=limits)
        one.dial(two)
        await one.until_connected(2)
        await two.until_connected(1)
        return one, two

    async def stop(self, peer_node: PeerNode) -> None:
        self._peer_nodes.remove(peer_node)
        await peer_node.network.stop()

    async def stranger(self, at: Address) -> "Stranger":
        stranger = Stranger(*await asyncio.open_connection(at.host, at.port))
        self._strangers.append(stranger)
        return stranger

    async def close(self) -> None:
        for stranger in self._strangers:
            stranger.leave()
        for peer_node in self._peer_nodes:
            await peer_node.network.stop()


class Stranger:
    """A bare connection to a node's port, which can also do a valid handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def heard_until_closed(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def handshake(self, me: PeerHello, *, key: bytes | None = None, expects: int = 1) -> Handshake:
        nonce = secrets.token_bytes(NONCE_SIZE)
        return Handshake(dials=True, me=me, key=key, nonce=nonce, judge=accept_all, expects=expects)

    async def introduce(self, me: PeerHello, *, key: bytes | None = None) -> Handshake:
        """The whole handshake, as a node does it."""
        return await self.complete(self.handshake(me, key=key))

    async def complete(self, handshake: Handshake) -> Handshake:
        self.say(handshake.opening())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not handshake.over:
                data = await self.reader.read(65536)
                assert data, "the node closed the connection"
                self.say(handshake.feed(data))
        return handshake

    def frame(self, kind: int, body: bytes) -> None:
        self.say(frame(kind, body))

    async def frames(self, handshake: Handshake, count: int) -> AsyncIterator[tuple[int, bytes]]:
        """Frames of the node after the handshake, each checked for its tag, without pings."""
        seals = handshake.seals()
        buffered = handshake.rest()
        while count:
            while len(buffered) < 4 or len(buffered) < 4 + int.from_bytes(buffered[:4], "big"):
                data = await self.reader.read(2**20)
                assert data, "the node has closed the connection"
                buffered += data
            end = 4 + int.from_bytes(buffered[:4], "big")
            head, body, buffered = buffered[:5], buffered[5:end], buffered[end:]
            if seals is not None:
                body, tag = body[:-TAG_SIZE], body[-TAG_SIZE:]
                assert seals[1].is_next(head, memoryview(body), memoryview(tag))
            if head[4] != PING:
                count -= 1
                yield head[4], body

    def leave(self) -> None:
        self.writer.transport.abort()


class Relay:
    """A relay for a connection, which can cut it at one end only."""

    address: Address

    def __init__(self, far: Address) -> None:
        self._far = far
        self._server: asyncio.Server | None = None
        self._near_ends: list[asyncio.StreamWriter] = []
        self._far_ends: list[asyncio.StreamWriter] = []
        self._cut = False

    @classmethod
    async def open(cls, far: Address) -> "Relay":
        relay = cls(far)
        listening = listen(Address("127.0.0.1", 0))
        relay.address = Address("127.0.0.1", listening.getsockname()[1])
        relay._server = await asyncio.start_server(relay._carry, sock=listening)
        return relay

    def cut_far_end(self) -> None:
        """From now on bytes of the near side are lost, and new connections get no bytes."""
        self._cut = True
        for end in self._far_ends:
            end.transport.abort()

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for end in (*self._near_ends, *self._far_ends):
            end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._near_ends.append(writer)
        if self._cut:
            return
        far_reader, far_writer = await asyncio.open_connection(self._far.host, self._far.port)
        self._far_ends.append(far_writer)
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if not self._cut:
                    target.write(data)


def accept_all(introduction: Introduction) -> PeerRefusal | None:
    return None


def listen(address: Address) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((address.host, address.port))
    listening.listen()
    listening.setblocking(False)
    return listening


def unused_address() -> Address:
    """An address without a listener, where a test may listen later."""
    with listen(Address("127.0.0.1", 0)) as listening:
        return Address("127.0.0.1", listening.getsockname()[1])
