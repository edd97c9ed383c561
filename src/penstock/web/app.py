"""The paths of the HTTP port.

/health     200 as long as the process answers: restart it when it does not
/ready      200 when the node can serve, else 503: send traffic elsewhere meanwhile
/metrics    Prometheus text
/v1/push    a WebSocket: see `push`
/v1/work    a WebSocket: see `work`
/v1/...     the cluster: see `cluster`; topics, records and groups: see `api`
"""

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.node import Node
from penstock.web.api import api_routes
from penstock.web.cluster import ClusterPages
from penstock.web.metrics import CONTENT_TYPE, render
from penstock.web.push import push_routes
from penstock.web.socket_talk import refuse_path
from penstock.web.source import Source, take_snapshot
from penstock.web.work import work_routes

PATHS = [
    "/health",
    "/ready",
    "/metrics",
    "/v1",
    "/v1/openapi.json",
    "/v1/cluster",
    "/v1/cluster/nodes",
    "/v1/cluster/partitions",
]
"""Where to begin: those of the API are many, and /v1 and /v1/openapi.json have them all."""
CODES = {404: "not_found", 405: "method_not_allowed"}


def build_app(source: Source) -> Starlette:
    """The ASGI application for one node. Whoever stops it sets `state.stopping`: what waits should end then."""
    pages = Pages(source)
    routes: list[BaseRoute] = [
        Route("/", pages.index),
        Route("/health", pages.health),
        Route("/ready", pages.ready),
        Route("/metrics", pages.metrics),
        *ClusterPages(source).routes(),
    ]
    if isinstance(source, Node):  # what is figures only, in a test, cannot be asked
        routes += [*api_routes(source), *push_routes(source), *work_routes(source)]
    routes.append(WebSocketRoute("/{path:path}", refuse_path))
    handlers = {HTTPException: explain, Exception: explain_bug}
    app = Starlette(routes=routes, middleware=[Middleware(OneLength)], exception_handlers=handlers)
    app.state.stopping = asyncio.Event()
    return app


class Pages:
    """The answers, each made from the node as it is at that moment."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def index(self, request: Request) -> Response:
        return JSONResponse({"name": "penstock", "paths": PATHS})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        source = self._source
        if not source.ready:
            return JSONResponse({"ready": False, "reason": "starting or stopping"}, 503)
        facts = {
            "ready": True,
            "node_id": source.node_id,
            "cluster_id": source.cluster_id,
            "offline_partitions": source.partitions.offline_count(),
        }
        return JSONResponse(facts)

    async def metrics(self, request: Request) -> Response:
        snapshot = take_snapshot(self._source)
        text = await asyncio.get_running_loop().run_in_executor(None, render, snapshot)
        return Response(text, media_type=CONTENT_TYPE)


class OneLength:
    """Refuses requests that say twice how long they are. One of both is a lie, and a proxy in front of us may believe
    the other one: what follows would be a request to it, or a part of this one's body, as the caller likes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope["headers"]] if scope["type"] == "http" else []
        if b"transfer-encoding" not in names or b"content-length" not in names:
            await self._app(scope, receive, send)
            return
        message = "Content-Length and Transfer-Encoding exclude each other: send one of them"
        facts = {"error": {"code": "invalid_body", "message": message, "field": None}}
        await JSONResponse(facts, 400, {"connection": "close"})(scope, receive, send)


async def explain(request: Request, problem: Exception) -> Response:
    """Any refusal as JSON that helps."""
    assert isinstance(problem, HTTPException)
    code = CODES.get(problem.status_code, "refused")
    advice = "GET /v1 lists what there is, GET /v1/openapi.json describes it"
    message = f"{problem.detail}: {request.method} {request.url.path}; {advice}"
    facts = {"error": {"code": code, "message": message, "field": None}, "paths": PATHS}
    return JSONResponse(facts, problem.status_code, problem.headers)


async def explain_bug(request: Request, bug: Exception) -> Response:
    """It is raised again after this; uvicorn logs it and ends the connection."""
    message = "a bug in answering this: the node's log has the traceback"
    facts = {"error": {"code": "internal_error", "message": message, "field": None}}
    return JSONResponse(facts, 500, {"connection": "close"})
