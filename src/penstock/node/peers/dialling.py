"""Keeps one address connected: dials it, learns which node is there, waits while that node is connected, dials again.

Either side may dial. To spare most pairs a second connection that one of them then has to drop, the node with the
larger id gives the other LARGER_WAITS_SECONDS before it dials an address whose node it knows.
"""

import asyncio
import logging
from contextlib import suppress
from random import Random
from typing import Protocol

from penstock.config import Address
from penstock.node.peers.connection import PeerConnection
from penstock.node.peers.hello import QUIET, RefusalCode
from penstock.types import NodeId

log = logging.getLogger("penstock.peers")

CONNECT_TIMEOUT_SECONDS = 3.0
"""How long to wait for an answer to the first packet: the host may be off, or a firewall may drop packets."""

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
"""The pause doubles from the one to the other. It is short, because a node that comes back must be found before its
partitions elect another leader; and one attempt every two seconds costs little."""

CALM_SECONDS = 5.0
"""A connection that lasted this long counts as a success: the next attempt follows soon. A shorter one counts as a
failure."""

LARGER_WAITS_SECONDS = 0.2


class Exchange(Protocol):
    """The part of the network that a dialler uses."""

    def is_connected(self, node: NodeId) -> bool: ...

    def new_connection(self, dialled: Address, expects: NodeId | None) -> PeerConnection: ...

    def outer(self, connection: PeerConnection) -> asyncio.BaseProtocol:
        """The protocol of its socket: the connection itself, or TLS around it."""
        ...

    def is_larger_than(self, node: NodeId) -> bool: ...


class Dialler:
    """One address, until `stop`."""

    def __init__(self, exchange: Exchange, address: Address, node: NodeId | None, random: Random) -> None:
        self._exchange = exchange
        self._random = random
        self.address = address
        self.node = node
        """The node that should be there or was found there; None: not known yet."""
        self._is_self = False
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._said = ""
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def look_again(self) -> None:
        """Some node has connected or disconnected."""
        self._changed.set()

    def hurry(self) -> None:
        """The next attempt is likely to succeed: it is made now."""
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._hurry.set()

    def stop(self) -> None:
        self._task.cancel()

    async def stopped(self) -> None:
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        if self._waits_for_the_other():
            await self._pause(LARGER_WAITS_SECONDS)
        while True:
            await self._until_wanted()
            began = loop.time()
            await self._attempt()
            await self._until_wanted()
            if loop.time() - began >= CALM_SECONDS:
                self._pause_seconds = FIRST_PAUSE_SECONDS
            # Half of the pause is random: nodes that lost each other at the same moment should not dial in step.
            head_start = LARGER_WAITS_SECONDS if self._waits_for_the_other() else 0.0
            await self._pause(head_start + self._pause_seconds * (0.5 + self._random.random() / 2))
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    def _waits_for_the_other(self) -> bool:
        return self.node is not None and self._exchange.is_larger_than(self.node)

    async def _until_wanted(self) -> None:
        while self._is_self or (self.node is not None and self._exchange.is_connected(self.node)):
            self._changed.clear()
            await self._changed.wait()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        self._hurry.clear()

    async def _attempt(self) -> None:
        """Returns when the handshake is over, with or without success."""
        loop = asyncio.get_running_loop()
        connection = self._exchange.new_connection(self.address, self.node)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                transport, _ = await loop.create_connection(
                    lambda: self._exchange.outer(connection), self.address.host, self.address.port
                )
        except TimeoutError:
            self._say("it does not answer")
            return
        except (OSError, UnicodeError) as problem:
            self._say(getattr(problem, "strerror", None) or str(problem))
            return
        try:
            await connection.over
        finally:
            if not connection.over.done():
                connection.close("this node no longer dials it")
                transport.abort()  # TLS may be on its way, of which the connection does not know yet
        self._learn(connection)

    def _learn(self, connection: PeerConnection) -> None:
        refused = connection.refused
        if connection.peer is not None:
            self.node = connection.peer.node
            self._said = ""
        elif refused is not None:
            if refused.hello is not None:  # otherwise the other side has not proven that it holds the key
                self.node = refused.hello.node
                self._is_self = refused.refusal.code == RefusalCode.ITSELF
            if refused.refusal.code not in QUIET:
                self._pause_seconds = LONGEST_PAUSE_SECONDS  # only an operator can change that
        else:
            self._say(connection.reason)

    def _say(self, problem: str) -> None:
        """Logs each kind of failure once, not each attempt."""
        if problem != self._said:
            self._said = problem
            whose = f" of node {self.node}" if self.node is not None else ""
            log.info(
                "the inter-node address %s%s: %s; this node tries it again until it answers",
                self.address,
                whose,
                problem.lower(),
            )
