"""NetworkCuts between nodes: a relay in front of each node's inter-node port, which knows both ends of each connection.

Every node advertises its relay's port, so that all traffic between nodes passes here: connections, and gossip's
datagrams. Clients do not: they reach a node that no other node reaches.

    node A --> relay of B --> node B

A connection belongs to a pair once the dialler's introduction has been read (node/peers/handshake.py has the bytes). A
datagram belongs to the node whose real port it came from, and goes on from that node's relay, so that answers come back
by the same way.

A cut drops all traffic in one direction or both, silently. Bytes that were sent into a connection meanwhile
arrive after the cut heals, if the connection still exists: TCP resends its packets.
Datagrams are lost.
"""

import asyncio
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from penstock.node.peers.frames import INTRODUCTION, KIND_SIZE, LENGTH_SIZE
from penstock.node.peers.handshake import PREAMBLE_SIZE
from penstock.node.peers.hello import decode_introduction
from tests.faults.nodes import Node
from tests.ports import free_port

CHUNK_BYTES = 64 * 1024
Way = tuple[int, int]
"""From a node to a node."""


class NetworkCuts:
    """Relays for some nodes. Make it, give `ports` to the cluster, enter it, then tell it the nodes with `watch`."""

    def __init__(self, node_ids: Iterable[int]) -> None:
        self.ports: dict[int, int] = {node_id: free_port() for node_id in node_ids}
        self._real_ports: dict[int, int] = {}
        self._closed: set[Way] = set()
        self._delay_seconds = 0.0
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._datagrams: dict[int, asyncio.DatagramTransport] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> "NetworkCuts":
        self._thread.start()
        for node_id, port in self.ports.items():
            asyncio.run_coroutine_threadsafe(self._open(node_id, port), self._loop).result()
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def watch(self, nodes: Mapping[int, Node]) -> None:
        """Tells the relays the real ports of the nodes."""
        self._real_ports.update({node_id: node.cluster_port for node_id, node in nodes.items()})

    # --- called by tests

    def close_way(self, source: int, target: int) -> None:
        """Nothing gets from `source` to `target` any more; the other direction stays open."""
        self._change(closed={(source, target)})

    def close_pair(self, one: int, other: int) -> None:
        self._change(closed={(one, other), (other, one)})

    def isolate(self, node_id: int) -> None:
        """From all other nodes, both ways."""
        others = [other for other in self.ports if other != node_id]
        self._change(closed={way for other in others for way in ((node_id, other), (other, node_id))})

    def deafen(self, node_id: int) -> None:
        """The other nodes receive its traffic, and it receives none."""
        self._change(closed={(other, node_id) for other in self.ports if other != node_id})

    def mute(self, node_id: int) -> None:
        """It receives the other nodes' traffic, and none of them receives its own."""
        self._change(closed={(node_id, other) for other in self.ports if other != node_id})

    def delay(self, seconds: float) -> None:
        """All traffic from now on arrives that much later."""
        self._delay_seconds = seconds

    def heal(self) -> None:
        self._delay_seconds = 0.0
        self._change(closed=set(), all_others_open=True)

    def _change(self, closed: set[Way], all_others_open: bool = False) -> None:
        def on_loop() -> None:
            self._closed = closed if all_others_open else self._closed | closed
            self._changed.set()
            self._changed = asyncio.Event()
            done.set()

        done = threading.Event()
        self._loop.call_soon_threadsafe(on_loop)
        assert done.wait(60)

    # --- the relays

    async def _open(self, node_id: int, port: int) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await self._relay(node_id, reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass  # either side ended it, or this relay does
            finally:
                writer.close()
                self._tasks.discard(task)

        self._server = await asyncio.start_server(accepted, sock=listening)
        transport, _ = await self._loop.create_datagram_endpoint(
            lambda: _Datagrams(self, node_id), local_addr=("127.0.0.1", port)
        )
        self._datagrams[node_id] = transport

    async def _close(self) -> None:
        for transport in self._datagrams.values():
            transport.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._server.close()

    async def _relay(self, target: int, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        """One connection to `target`: first its beginning, then both ways until one side ends."""
        far, far_out = await asyncio.open_connection("127.0.0.1", self._real_ports[target])
        try:
            source = await self._introduce(near, near_out, far, far_out)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump((source, target), near, far_out))
                both.create_task(self._pump((target, source), far, near_out))
        except* (OSError, asyncio.IncompleteReadError, _Ended):
            pass
        finally:
            far_out.close()

    async def _introduce(
        self,
        near: asyncio.StreamReader,
        near_out: asyncio.StreamWriter,
        far: asyncio.StreamReader,
        far_out: asyncio.StreamWriter,
    ) -> int:
        """Forwards both preambles, reads the dialling node's id, and forwards the introduction once the way is open."""
        far_out.write(await near.readexactly(PREAMBLE_SIZE))
        near_out.write(await far.readexactly(PREAMBLE_SIZE))
        head = await near.readexactly(LENGTH_SIZE)
        body = await near.readexactly(int.from_bytes(head, "big"))
        assert body[0] == INTRODUCTION
        source = int(decode_introduction(body[KIND_SIZE:]).hello.node)
        target = next(node for node, port in self._real_ports.items() if port == _port_of(far_out))
        await self._until_open((source, target))
        far_out.write(head + body)
        return source

    async def _pump(self, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            data = await source.read(CHUNK_BYTES)
            await self._until_open(
                way
            )  # also the end of a connection is news that a cut keeps from the other side
            if not data:
                raise _Ended
            if self._delay_seconds:
                await asyncio.sleep(self._delay_seconds)
            sink.write(data)
            await sink.drain()

    async def _until_open(self, way: Way) -> None:
        while way in self._closed:
            await self._changed.wait()

    def take_datagram(self, target: int, data: bytes, port: int) -> None:
        source = next((node for node, real in self._real_ports.items() if real == port), None)
        if source is not None and (source, target) not in self._closed:
            where = ("127.0.0.1", self._real_ports[target])
            self._loop.call_later(self._delay_seconds, self._datagrams[source].sendto, data, where)


class _Ended(Exception):
    """One side closed its connection."""


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, cuts: NetworkCuts, target: int) -> None:
        self._cuts = cuts
        self._target = target

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        with suppress(KeyError):
            self._cuts.take_datagram(self._target, data, addr[1])


def _port_of(writer: asyncio.StreamWriter) -> int:
    return int(writer.get_extra_info("peername")[1])
