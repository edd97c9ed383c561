"""The cluster over HTTP. Any node answers; what only the controller may decide is asked of it.

GET    /v1/cluster                            the whole picture, with lags
GET    /v1/cluster/nodes                      nodes only, as far as this node knows without asking
GET    /v1/cluster/partitions?topic=NAME      partitions with lags, of one topic or of all
POST   /v1/cluster/rebalance                  begins what may begin now; {"dry_run": true} only tells
POST   /v1/cluster/nodes/ID/decommission      has a node emptied and removed
DELETE /v1/cluster/nodes/ID/decommission      lets it stay after all

A refusal is JSON: {"error": what is wrong, "hint": what to do}. What changes something must be sent as
application/json: a browser asks first before it sends that for a page of somebody else, and is not answered here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.errors import ErrorCode, KafkaError, PenstockError
from penstock.web.source import Source

MAX_BODY_BYTES = 4096
"""All bodies are a few words."""
BODY_SECONDS = 5.0
MAX_AT_ONCE = 100
"""Partitions under way by one person's wish: more would starve every client."""

T = TypeVar("T")
Page = Callable[[Request], Awaitable[Response]]

HINTS = {
    ErrorCode.NOT_CONTROLLER: (
        503,
        "a majority of the metadata group's voters must be there: `penstock cluster status` shows who is missing",
    ),
    ErrorCode.BROKER_NOT_AVAILABLE: (404, "`penstock cluster status` shows the nodes there are"),
    ErrorCode.INVALID_REPLICATION_FACTOR: (
        409,
        "start another node with --seeds of this cluster, or give the topic fewer replicas, and try again",
    ),
    ErrorCode.INVALID_REQUEST: (409, "start another node with --seeds of this cluster, and try again"),
}


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, error: str, hint: str) -> None:
        super().__init__(error)
        self.status = status
        self.hint = hint


class RebalanceWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dry_run: bool = False
    at_once: int | None = None
    """Partitions under way at once; None: as the node is configured."""


class EmptyWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ClusterPages:
    """The answers about the cluster of one node."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        decommission = "/v1/cluster/nodes/{node_id}/decommission"
        return [
            Route("/v1/cluster", self._page(self._picture)),
            Route("/v1/cluster/nodes", self._page(self._nodes)),
            Route("/v1/cluster/partitions", self._page(self._partitions)),
            Route("/v1/cluster/rebalance", self._page(self._rebalance), methods=["POST"]),
            Route(decommission, self._page(self._decommission), methods=["POST", "DELETE"]),
        ]

    def _page(self, answer: Callable[[Request], Awaitable[Any]]) -> Page:
        async def page(request: Request) -> Response:
            try:
                self._check_ready()
                body = await answer(request)
            except Refusal as refusal:
                return JSONResponse({"error": str(refusal), "hint": refusal.hint}, refusal.status)
            except KafkaError as refused:
                status, hint = HINTS.get(refused.code, (500, "the nodes' logs may say more"))
                return JSONResponse({"error": refused.message, "hint": hint}, status)
            except PenstockError as trouble:  # no answer from the controller
                return JSONResponse({"error": str(trouble), "hint": "try again in a moment"}, 503)
            # A large cluster's picture is megabytes of text: clients should not wait for it.
            text = await asyncio.get_running_loop().run_in_executor(None, msgspec.json.encode, body)
            return Response(text, media_type="application/json")

        return page

    def _check_ready(self) -> None:
        if not self._source.ready:
            raise Refusal(
                503,
                "this node is starting or stopping, or has not found its cluster yet",
                "its log says what it waits for; the other nodes may know more",
            )

    # --- what there is

    async def _picture(self, request: Request) -> Any:
        return await self._source.status.picture()

    async def _nodes(self, request: Request) -> Any:
        return {"nodes": self._source.status.nodes()}

    async def _partitions(self, request: Request) -> Any:
        topic = request.query_params.get("topic")
        found = await self._source.status.partitions(topic)
        if topic is not None and not found:
            raise Refusal(404, f"there is no topic {topic!r}", "`penstock topics list` shows what there is")
        return {"partitions": found}

    # --- what is to change

    async def _rebalance(self, request: Request) -> Any:
        wish = await _body(request, RebalanceWish)
        self._check_cluster()
        at_once = self._source.config.replication.max_moves if wish.at_once is None else wish.at_once
        if not 1 <= at_once <= MAX_AT_ONCE:
            raise Refusal(400, f"at_once={at_once}: expected 1 to {MAX_AT_ONCE}", "leave it out")
        return await self._source.controller.rebalance(dry_run=wish.dry_run, at_once=at_once)

    async def _decommission(self, request: Request) -> Any:
        on = request.method == "POST"
        if on:
            await _body(request, EmptyWish)
        text = request.path_params["node_id"]
        if not text.isascii() or not text.isdigit():
            raise Refusal(400, f"{text!r} is no node id", "`penstock cluster status` shows the nodes' ids")
        self._check_cluster()
        await self._source.controller.decommission(int(text), on=on)
        return {"node_id": int(text), "decommissioning": on}

    def _check_cluster(self) -> None:
        if self._source.is_alone:
            raise Refusal(
                409,
                f"node {self._source.node_id} is alone: it has no inter-node port, so nothing can move",
                "start nodes with --cluster and --seeds to have a cluster",
            )


async def _body(request: Request, wanted: type[T]) -> T:
    """A small JSON object, or Refusal. Nothing at all is an empty one."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"a body of type {kind or 'nothing'}", "send `Content-Type: application/json`")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            text = await _read(request)
    except TimeoutError:
        raise Refusal(408, f"the body did not end within {BODY_SECONDS:.0f} s", "send it whole") from None
    try:
        return msgspec.json.decode(text or b"{}", type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        fields = ", ".join(wanted.__annotations__) or "no fields"
        raise Refusal(400, f"the body is wrong: {wrong}", f"send a JSON object with {fields}") from None


async def _read(request: Request) -> bytes:
    text = b""
    async for part in request.stream():
        text += part
        if len(text) > MAX_BODY_BYTES:
            raise Refusal(413, f"a body of more than {MAX_BODY_BYTES} bytes", "send a small JSON object")
    return text
