"""The inter-node port: which nodes are connected, and how two nodes end up with one connection.

Rules, for a node that introduces itself on a new connection:

1. It is this very process: its list of seeds names its own address. Refused without a log line.
2. It has this node's id, or that of a node that is connected, but is another process (another incarnation, or the same
   folder copied): refused, and both nodes log it. The first one keeps its connection. This does not affect a node that
   was killed and comes back: its old connection ended with its process, or ends with `peer_silence_ms`.
3. It is of another cluster: refused, and both nodes log it. A node without a cluster may connect with any node.
4. It is connected already, by the same process. Two nodes that dial each other at once must keep the same one of the
   two connections: the one that the node with the smaller id dialled. A new connection replaces the old one unless the
   old one was dialled by the smaller id and the new one was not. (A dialler may have lost a connection that the other
   side still holds open. This rule admits it too; or it is refused, and the other side's next write or silence ends the
   dead connection.) A dialler that expects another node at this address learns which node is here, and nothing else
   changes.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.config import Address, Limits
from penstock.errors import ProtocolViolation
from penstock.node.frames import SCRATCH_SIZE
from penstock.node.limits.limited_log import LimitedLog
from penstock.node.peers.connection import PeerConnection, Traffic
from penstock.node.peers.dialling import Dialler
from penstock.node.peers.frames import FACTS, PING, REFUSAL
from penstock.node.peers.handshake import NONCE_SIZE, Handshake, PeerRefused
from penstock.node.peers.hello import (
    ANY_NODE,
    QUIET,
    Introduction,
    PeerHello,
    PeerRefusal,
    RefusalCode,
    encode,
)
from penstock.node.peers.transport import FIRST_FREE_KIND, LAST_KIND, Body, TransportEvents
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.node.peers.encryption import PeerEncryption

log = logging.getLogger("penstock.peers")

BACKLOG = 128
STOP_SECONDS = 1.0
"""How long peers may take to read the last frames when this node stops."""

LONGEST_SWEEP_SECONDS = 0.5
SWEEPS_PER_SILENCE = 5
"""A connection without traffic gets a ping this often within `peer_silence_ms`: some may be lost or late."""


class PeerNetwork:
    """The Transport over TCP. Make it, then `start`; everything happens on the loop that made it."""

    def __init__(
        self,
        me: PeerHello,
        events: TransportEvents,
        *,
        key: bytes | None = None,
        limits: Limits | None = None,
        silence_ms: int = 5_000,
        urgent_kinds: Iterable[int] = (),
        random: Random | None = None,
        token: Callable[[int], bytes] = secrets.token_bytes,
        encryption: "PeerEncryption | None" = None,
    ) -> None:
        self.events = events
        self.limits = limits or Limits()
        self.traffic = Traffic()
        self.urgent_kinds = frozenset(urgent_kinds) | {PING}
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time()
        self._me = me
        self._key = key
        self._encryption = encryption
        self._random = random or Random()
        self._token = token
        self._warnings = LimitedLog(log, self._loop.time)
        self._silence_seconds = silence_ms / 1000
        self._sweep_seconds = min(LONGEST_SWEEP_SECONDS, self._silence_seconds / SWEEPS_PER_SILENCE)
        self._peers: dict[NodeId, PeerConnection] = {}
        self._hellos: dict[NodeId, PeerHello] = {}
        self._strangers: dict[PeerConnection, None] = {}
        """Connections before their handshake is over, or after a refusal; oldest first."""
        self._addresses: dict[NodeId, Address] = {}
        self._seeds: tuple[Address, ...] = ()
        self._diallers: dict[Address, Dialler] = {}
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopping = False
        self._all_gone = asyncio.Event()

    # --- life

    async def start(self, listening: socket.socket) -> None:
        """Serves the given socket until `stop`, and dials the addresses that were set before."""
        new: Callable[[], asyncio.BaseProtocol] = partial(PeerConnection, self)
        if self._encryption is not None:
            name = f"inter-node port {self._me.cluster}"
            new = self._encryption.accept(name, partial(PeerConnection, self))
        self._server = await self._loop.create_server(new, sock=listening, backlog=BACKLOG)
        self._sweep()
        self._redial()

    async def stop(self) -> None:
        """Ends all connections; peers see them close, and `on_down` comes for each."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for dialler in self._diallers.values():
            dialler.stop()
        for dialler in self._diallers.values():
            await dialler.stopped()
        self._diallers.clear()
        for connection in [*self._peers.values(), *self._strangers]:
            connection.shut_down()
        if self._encryption is not None:
            self._encryption.stop()
        await self._goodbyes()
        if self._server is not None:
            await self._server.wait_closed()

    async def _goodbyes(self) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while self._peers or self._strangers:
                    self._all_gone.clear()
                    await self._all_gone.wait()
        except TimeoutError:
            for connection in [*self._peers.values(), *self._strangers]:
                connection.abort()

    # --- for the node

    def send(self, to: NodeId, kind: int, body: Body) -> bool:
        assert FIRST_FREE_KIND <= kind <= LAST_KIND
        connection = self._peers.get(to)
        if connection is None:
            self.traffic.frames_dropped += 1
            return False
        return connection.send(kind, body)

    def connected(self) -> Mapping[NodeId, PeerHello]:
        return MappingProxyType(self._hellos)

    def version_of(self, node: NodeId) -> int:
        connection = self._peers.get(node)
        return connection.version if connection is not None else 0

    def waiting_bytes(self, node: NodeId) -> int:
        """Bytes that `send` has accepted for a node and the system has not taken yet."""
        connection = self._peers.get(node)
        return connection.waiting_bytes if connection is not None else 0

    def introduce(self, me: PeerHello) -> None:
        assert me.replica == self._me.replica
        self._me = me
        for connection in list(self._peers.values()):
            self._tell_facts(connection)

    def _tell_facts(self, connection: PeerConnection) -> None:
        """Unless the peer has them already. The next sweep sends facts that were dropped, or that changed during the
        handshake."""
        if connection.told is not self._me and connection.send(FACTS, encode(self._me)):
            connection.told = self._me

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """Nodes that are left out are not dialled any more; they may keep the connection that they have."""
        self._addresses = {node: address for node, address in peers.items() if node != self._me.node}
        self._redial()

    def dial_seeds(self, addresses: Iterable[Address]) -> None:
        self._seeds = tuple(addresses)
        self._redial()

    def _redial(self) -> None:
        """Starts and stops diallers, so that there is one for each wanted address."""
        if self._server is None or self._stopping:
            return
        wanted: dict[Address, NodeId | None] = dict.fromkeys(self._seeds)
        wanted.update({address: node for node, address in self._addresses.items()})
        for address in [address for address in self._diallers if address not in wanted]:
            self._diallers.pop(address).stop()
        for address, node in wanted.items():
            dialler = self._diallers.get(address)
            if dialler is None:
                self._diallers[address] = Dialler(self, address, node, self._random)
            elif node is not None and dialler.node != node:
                dialler.node = node
                dialler.look_again()
                dialler.hurry()

    # --- for diallers

    def is_connected(self, node: NodeId) -> bool:
        return node in self._peers

    def is_larger_than(self, node: NodeId) -> bool:
        return self._me.node > node

    def new_connection(self, dialled: Address, expects: NodeId | None) -> PeerConnection:
        return PeerConnection(self, dialled=dialled, expects=ANY_NODE if expects is None else expects)

    def outer(self, connection: PeerConnection) -> asyncio.BaseProtocol:
        if self._encryption is None:
            return connection
        assert connection.dialled is not None
        return self._encryption.dial(connection, connection.dialled)

    # --- for connections

    def opened(self, connection: PeerConnection) -> Handshake:
        """A new connection was accepted or dialled. Past the limit the oldest unidentified one is closed: a node needs
        milliseconds to introduce itself, so the one that has waited longest is the least likely to be a node."""
        self._strangers[connection] = None
        callers = [one for one in self._strangers if one.dialled is None and not one.closed]
        if len(callers) > self.limits.max_peer_handshakes:
            callers[0].close(f"over limits.max_peer_handshakes={self.limits.max_peer_handshakes}")
        connection.told = self._me
        return Handshake(
            dials=connection.dialled is not None,
            me=self._me,
            key=self._key,
            nonce=self._token(NONCE_SIZE),
            judge=lambda introduction: self._judge(connection, introduction),
            expects=connection.expects,
        )

    def _judge(self, connection: PeerConnection, introduction: Introduction) -> PeerRefusal | None:
        """The rules above."""
        hello, me = introduction.hello, self._me
        if hello.run == me.run and hello.replica == me.replica:
            return PeerRefusal(RefusalCode.ITSELF, "a node that dialled itself")
        if hello.node == me.node:
            return _two_of_one_id(hello, me)
        refusal = _other_cluster(hello, me)
        if refusal is not None:
            return refusal
        current = self._peers.get(hello.node)
        if current is None:
            return self._too_many()
        assert current.peer is not None
        if (current.peer.replica, current.peer.run) != (hello.replica, hello.run):
            return _two_of_one_id(hello, current.peer)
        probed = connection.dialled is None and introduction.expects != me.node
        if probed or (self._dialled_by_smaller(current) and not self._dialled_by_smaller(connection, hello)):
            return PeerRefusal(RefusalCode.ALREADY_CONNECTED, "the two nodes are connected already")
        return None

    def _dialled_by_smaller(self, connection: PeerConnection, hello: PeerHello | None = None) -> bool:
        other = hello or connection.peer
        assert other is not None
        return (connection.dialled is not None) == (self._me.node < other.node)

    def _too_many(self) -> PeerRefusal | None:
        if len(self._peers) < self.limits.max_peers:
            return None
        return PeerRefusal(
            RefusalCode.TOO_MANY, f"node {self._me.node} has {len(self._peers)} peers, its limit"
        )

    def refused(self, connection: PeerConnection, refused: PeerRefused) -> None:
        """One of the two sides has refused the other; the connection is about to end."""
        code, hello = refused.refusal.code, refused.hello
        if code in QUIET:
            if hello is not None and connection.dialled is not None:
                self.events.on_hello(hello, connection.dialled)
            return
        who = f"{hello} ({connection.where})" if hello is not None else connection.where
        verb = "refused" if refused.ours else "was refused by"
        subject = f"{verb} {connection.dialled or connection.host} {hello and hello.node} {code}"
        self._warnings.warn(subject, f"{verb} {who}: {refused}")
        if connection.dialled is not None:
            self.events.on_refused(connection.dialled, refused)

    def established(self, connection: PeerConnection) -> None:
        hello = connection.peer
        assert hello is not None
        self._strangers.pop(connection, None)
        former = self._peers.get(hello.node)
        if former is not None:
            former.close("a newer connection of the same node takes its place")
            self._down(former)
        self._peers[hello.node] = connection
        self._hellos[hello.node] = hello
        log.info("connected with %s%s", hello, "" if connection.dialled is None else ", dialled")
        self._wake_diallers()
        self._tell_facts(connection)
        self.events.on_hello(hello, connection.dialled)
        self.events.on_up(hello.node)

    def facts_changed(self, connection: PeerConnection, hello: PeerHello) -> None:
        """A peer sends its facts again, because they have changed."""
        before = connection.peer
        assert before is not None
        if (hello.replica, hello.run) != (before.replica, before.run):
            raise ProtocolViolation("a node that changed its identity")
        refusal = _other_cluster(hello, self._me)
        if refusal is not None:
            connection.send(REFUSAL, encode(refusal))
            self.refused(connection, PeerRefused(refusal, ours=True, hello=hello))
            connection.shut_down()
            return
        connection.peer = self._hellos[hello.node] = hello
        self.events.on_hello(hello, connection.dialled)

    def lost(self, connection: PeerConnection) -> None:
        """A connection has ended, at whatever stage."""
        was_stranger = self._strangers.pop(connection, False) is None
        if connection.peer is not None and self._peers.get(connection.peer.node) is connection:
            log.info("connection with %s ended: %s", connection.peer, connection.reason)
            self._down(connection)
        elif (
            was_stranger and connection.dialled is None and connection.refused is None and not self._stopping
        ):
            self._complain(connection, connection.reason)
        self._all_gone.set()

    def _down(self, connection: PeerConnection) -> None:
        assert connection.peer is not None
        node = connection.peer.node
        del self._peers[node]
        del self._hellos[node]
        self._wake_diallers()
        self.events.on_down(node)

    def _wake_diallers(self) -> None:
        for dialler in self._diallers.values():
            dialler.look_again()

    def _complain(self, stranger: PeerConnection, reason: str) -> None:
        self._warnings.warn(f"{stranger.host} handshake", f"{stranger.where} did not become a peer: {reason}")

    # --- the clock

    def _sweep(self) -> None:
        """Closes connections whose handshake is late or that are silent, and sends pings on the others."""
        now = self._loop.time()
        slept = max(0.0, now - self.now - 2 * self._sweep_seconds)
        self.now = now
        self._sweeper = self._loop.call_later(self._sweep_seconds, self._sweep)
        deadline = now - self.limits.peer_handshake_timeout_ms / 1000
        for stranger in [one for one in self._strangers if one.opened_at < deadline]:
            stranger.close(f"no introduction within {self.limits.peer_handshake_timeout_ms} ms")
        for connection in list(self._peers.values()):
            # While this process slept, its peers' frames waited in the sockets: the peers were not silent.
            connection.last_heard = min(now, connection.last_heard + slept)
            self._tell_facts(connection)
            if connection.last_heard < now - self._silence_seconds:
                connection.close(f"silent for {self._silence_seconds:g} s")
            elif connection.last_sent < now - self._silence_seconds / SWEEPS_PER_SILENCE:
                connection.send(PING, b"")


def _two_of_one_id(newcomer: PeerHello, first: PeerHello) -> PeerRefusal:
    reason = (
        f"two nodes have the id {first.node}: the one at {first.cluster}, which was first, and one at "
        f"{newcomer.cluster} (incarnations {first.incarnation} and {newcomer.incarnation}); each needs a --node-id "
        "and a data folder of its own"
    )
    return PeerRefusal(RefusalCode.DUPLICATE_ID, reason)


def _other_cluster(hello: PeerHello, me: PeerHello) -> PeerRefusal | None:
    if hello.cluster_id is None or me.cluster_id is None or hello.cluster_id == me.cluster_id:
        return None
    reason = f"node {hello.node} is of cluster {hello.cluster_id}, node {me.node} of cluster {me.cluster_id}"
    return PeerRefusal(RefusalCode.CLUSTER, reason)
