"""The paths of the HTTP port.

/health     200 as long as the process answers: restart it when it does not
/ready      200 when the node can serve, else 503: send traffic elsewhere meanwhile
/metrics    Prometheus text
/v1/...     the web API, and its WebSockets: see `operations`
/console/   the web console, a page on this API: see `console_files`

Every refusal has the shape of `api.problems`, except that of /ready: {"ready": false, "reason": ...}.
"""

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from penstock.errors import KafkaError
from penstock.node import Node
from penstock.node.scheduling.shared_work import SharedWork
from penstock.types import Operation
from penstock.web.api.paths import OperationRoutes
from penstock.web.api.problems import Problem, as_problem
from penstock.web.api.responses import error_response
from penstock.web.callers import caller_of
from penstock.web.console_files import Console, wants_page
from penstock.web.exchanges import has_begun
from penstock.web.login import LoginGate
from penstock.web.metrics import CONTENT_TYPE, render
from penstock.web.operations import DOCUMENT_PATH, operations, socket_routes
from penstock.web.snapshot import take_snapshot
from penstock.web.websocket_frames import refuse_path

PATHS = ["/health", "/ready", "/metrics", "/v1", DOCUMENT_PATH, "/console/"]
"""Where to begin: /v1 and its document list all the others."""
CODES = {404: "not_found", 405: "method_not_allowed"}


class WebApp:
    """The ASGI application of one node: who it is (`LoginGate`), then an operation of the table, or else a page.

    Operations do not go through Starlette's router and its layers, which would cost more than most of them."""

    def __init__(self, node: Node) -> None:
        pages = Pages(node)
        self._operations = OperationRoutes(operations(node), node)
        routes: list[BaseRoute] = [
            self._operations,  # for those that refuse a method
            *socket_routes(node),
            Route("/", pages.index),
            Route("/health", pages.health),
            Route("/ready", pages.ready),
            Route("/metrics", pages.metrics),
            *Console().routes(),
            WebSocketRoute("/{path:path}", refuse_path),
        ]
        handlers = {HTTPException: explain, Exception: explain_bug}
        self._router = Starlette(routes=routes, exception_handlers=handlers)
        self._gate = LoginGate(self._serve, node)
        self.stopping = self._router.state.stopping = asyncio.Event()
        """Set before the node stops: long polls end then."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._gate(scope, receive, send)
        except Exception as bug:  # uvicorn logs it and ends the connection
            if scope["type"] == "http" and not has_begun(scope):
                await (await explain_bug(Request(scope), bug))(scope, receive, send)
            raise

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        match, found = self._operations.matches(scope)
        if match is not Match.FULL:
            await self._router(scope, receive, send)
            return
        scope["app"] = self._router
        scope.update(found)
        await found["endpoint"](scope, receive, send)


class Pages:
    """The pages outside /v1, each made from the node's state at that moment."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._scrapes = SharedWork(self._scrape)

    async def index(self, request: Request) -> Response:
        if wants_page(request.headers):
            return RedirectResponse("console/", 302)
        return JSONResponse({"name": "penstock", "paths": PATHS})

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        node = self._node
        if not node.ready:
            return JSONResponse({"ready": False, "reason": "starting or stopping"}, 503)
        facts = {
            "ready": True,
            "node_id": node.node_id,
            "cluster_id": node.cluster_id,
            "offline_partitions": node.partitions.offline_count(),
        }
        return JSONResponse(facts)

    async def metrics(self, request: Request) -> Response:
        """Names of topics and groups are in it: where login is required, for those who may describe the cluster."""
        if not self._node.config.metrics_without_login:
            try:
                self._node.resources.check_cluster(caller_of(request), Operation.DESCRIBE)
            except KafkaError as refused:
                return error_response(as_problem(refused))
        return Response(await self._scrapes.result(), media_type=CONTENT_TYPE)

    async def _scrape(self) -> bytes:
        snapshot = await take_snapshot(self._node)
        return await asyncio.get_running_loop().run_in_executor(None, render, snapshot)


async def explain(request: Request, refusal: Exception) -> Response:
    """Starlette's own refusals: unknown paths and methods."""
    assert isinstance(refusal, HTTPException)
    code = CODES.get(refusal.status_code, "refused")
    advice = f"there are {', '.join(PATHS)}; GET /v1 lists all operations, GET {DOCUMENT_PATH} describes them"
    problem = Problem(
        refusal.status_code, code, f"{refusal.detail}: {request.method} {request.url.path}; {advice}"
    )
    return error_response(problem, refusal.headers)


async def explain_bug(request: Request, bug: Exception) -> Response:
    """The exception is raised again after this; uvicorn logs it and ends the connection."""
    problem = Problem(500, "internal_error", "a bug of the broker: the node's log has the traceback")
    return error_response(problem, {"connection": "close"})
