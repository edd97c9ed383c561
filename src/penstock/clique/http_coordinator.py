"""Heartbeats to the durable coordinator in Penstock's brokers, over the HTTP API. Any node can be asked.

    PUT /v1/cliques/{clique}/members/{worker}      docs/http-api.md

Each request is a blocking call in a thread of its own: the loop of the control thread never waits for one of them only.
"""

import asyncio
from collections import deque
from typing import Final
from urllib.parse import quote

import msgspec

from penstock.client.aio.threads import call_in_thread
from penstock.client.errors import ClientError, Garbled, Unreachable
from penstock.client.http_api import fetch
from penstock.client.http_nodes import HttpNodes
from penstock.ring.heartbeats import Heartbeat, HeartbeatReply
from penstock.ring.table import Table

REQUEST_SECONDS: Final = 10.0
"""How long a request may take when no caller waits for it any more: its thread ends then."""


class HttpCoordinator:
    """Asks one node as long as it answers, then the next one."""

    holds_heartbeats = True

    def __init__(self, clique: str, nodes: HttpNodes) -> None:
        self._clique = clique
        self._nodes = nodes
        self._urls: deque[str] = deque()
        self._failures = 0
        self._decoder = msgspec.json.Decoder(HeartbeatReply)

    async def heartbeat(self, heartbeat: Heartbeat, wait_s: float = 0.0) -> HeartbeatReply:
        url = await self._url()
        fields = msgspec.to_builtins(heartbeat)
        path = f"/v1/cliques/{quote(self._clique, safe='')}/members/{quote(fields.pop('worker'), safe='')}"
        body = msgspec.json.encode({**fields, "wait_ms": round(wait_s * 1000)})
        try:
            answer = await call_in_thread(
                fetch,
                "PUT",
                f"{url.rstrip('/')}{path}",
                body,
                wait_s + REQUEST_SECONDS,
                self._nodes,
                name="penstock-heartbeat",
            )
        except (Unreachable, asyncio.CancelledError):  # it was cancelled because no answer came in time
            self._try_next()
            raise
        self._failures = 0
        return self._decoded(url, answer)

    async def newer_table(self, epoch: int, timeout_s: float) -> Table | None:
        """Heartbeats that are held back tell of new tables."""
        raise NotImplementedError

    def next_owner(self, slot: int) -> str | None:
        """The brokers hand slots over."""
        return None

    async def close(self) -> None:
        """There is no connection."""

    async def _url(self) -> str:
        if not self._urls:
            self._urls.extend(await call_in_thread(self._nodes.find_urls))
            self._failures = 0
        if not self._urls:
            raise Unreachable("no node has an HTTP port (penstock serve --http)")
        return self._urls[0]

    def _try_next(self) -> None:
        """When all nodes have failed, the list is asked for again: there may be others."""
        self._failures += 1
        self._urls.rotate(-1)
        if self._failures >= len(self._urls):
            self._urls.clear()

    def _decoded(self, url: str, answer: bytes) -> HeartbeatReply:
        try:
            reply = self._decoder.decode(answer)
            if reply.table is not None:
                reply.table.check()
        except (msgspec.MsgspecError, ValueError) as problem:
            error: ClientError = Garbled(f"{url}: the answer to a heartbeat makes no sense: {problem}")
            raise error from None
        return reply
