"""The login in the scope of an HTTP request or a WebSocket, and whether it still holds.

A login is checked once. A request that waits and a WebSocket may outlive it: the user is deleted, its token revoked, a
rule removed. `while_allowed` ends a request then; `websocket_frames.lost_permission` does it for WebSockets.
"""

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import HTTPConnection
from starlette.types import Scope

from penstock.errors import KafkaError
from penstock.node import Node
from penstock.types import ANONYMOUS_PRINCIPAL, Caller
from penstock.web.api.problems import Problem

T = TypeVar("T")

CALLER = "penstock.caller"
"""The caller, in a request's scope."""
PASSWORD_USER = "penstock.password_user"
"""The user that logged in with a password, in a request's scope. One that is deleted may not stay."""
TOKEN = "penstock.token"
"""The API token by which a caller logged in, in a request's scope. One that is revoked may not stay."""
HEADERS = "penstock.headers"
"""The headers by their names, in a request's scope."""
EXPIRES_MS = "penstock.expires_ms"
"""When a caller's login ends, in a request's scope: its token expires, or `max_session_ms` is over. Missing if it never
does."""

LOGIN_EXPIRED, LOGIN_EXPIRED_CLOSE = "login_expired", 4401
"""The client should open another WebSocket: unlike after `login_failed`, the same password or a newer token is good."""


def header_of(scope: Scope, name: bytes) -> str:
    """A header of a request or a WebSocket, the first of several; empty if there is none."""
    found: dict[bytes, bytes] | None = scope.get(HEADERS)
    if found is None:
        found = scope[HEADERS] = dict(reversed(scope["headers"]))
    return found.get(name, b"").decode("latin-1")


def caller_of(connection: HTTPConnection) -> Caller:
    """The client that sent a request or opened a WebSocket; anonymous before `web.login` has found out who it is."""
    known: Caller | None = connection.scope.get(CALLER)
    return known if known is not None else unknown_caller(connection.scope)


def unknown_caller(scope: Scope) -> Caller:
    """The client before it has logged in."""
    client: tuple[str, int] | None = scope.get("client")
    # A client that has shown a certificate is the principal that its subject names (`web.port`).
    principal = scope.get("state", {}).get("principal", ANONYMOUS_PRINCIPAL)
    return Caller(principal, client[0] if client is not None else "", header_of(scope, b"user-agent"))


def check_login(node: Node, scope: Scope) -> None:
    """Problem if the user or the token of a login is gone, or the login has expired."""
    access = node.metadata.state.access
    user, token_id = scope.get(PASSWORD_USER), scope.get(TOKEN)
    if user is not None and user not in access.users:
        raise Problem(401, "login_failed", f"the user {user} was deleted")
    if node.clock.wall_ms() >= scope.get(EXPIRES_MS, math.inf):
        by_token = "" if token_id is None else f" by the API token {token_id}"
        how = ", by opening another WebSocket" if scope["type"] == "websocket" else ""
        raise Problem(401, LOGIN_EXPIRED, f"the login{by_token} has expired: log in again{how}")
    if token_id is not None and token_id not in access.tokens:
        raise Problem(401, "login_failed", f"the API token {token_id} was revoked")


async def while_allowed(node: Node, check: Callable[[], None], work: "asyncio.Future[T]") -> T:
    """The result of the work, which ends when `check` raises after a change of access rules or users. Call it in the
    same turn of the event loop in which the caller was checked: no change is missed then."""
    lost: list[KafkaError | Problem] = []

    def look() -> None:
        try:
            check()
        except (KafkaError, Problem) as refused:
            lost.append(refused)
            work.cancel()

    unwatch = node.access.watch(look)
    try:
        return await work
    except asyncio.CancelledError:
        if not lost:
            raise
        raise lost[0] from None
    finally:
        work.cancel()
        unwatch()
