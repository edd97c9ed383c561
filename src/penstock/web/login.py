"""Identifies the sender of an HTTP request or WebSocket, and refuses browsers that another site has sent here.

Checked before anything else, in this order:

    Host                a name that this node does not know is refused: a page of another site whose name was made to
                        point here (DNS rebinding) would be of the same origin for its browser
    Sec-Fetch-Site      cross-site is refused: a browser says so of requests that pages of other sites make
    Authorization       Basic (a user and its password), Bearer with an API token (`pst_...`) or with a JWT of the
                        identity provider. A client that has shown a certificate needs none. Where no login is
                        required, it is not looked at
    Sec-WebSocket-Protocol   `bearer.TOKEN`, as one of several, instead of Authorization: Bearer TOKEN. A page in a
                        browser cannot give a WebSocket other headers

`/health` and `/ready` need no login, nor does `/metrics` if the setting `metrics_without_login` says so. The files of
the console need none, and may be asked for by a link on a page of another site: they are the same for everybody. The
caller is in the request's scope from then on (`caller_of`).
"""

import asyncio
import base64
import ipaddress
import logging
import socket
from collections.abc import Iterable

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from penstock.node import Node
from penstock.node.limits.limited_log import LimitedLog
from penstock.security.errors import AuthenticationError
from penstock.security.exchange import Accepted
from penstock.security.tokens import is_api_token, parse_token
from penstock.types import ANONYMOUS_PRINCIPAL, Caller
from penstock.web.api.problems import Problem
from penstock.web.api.responses import error_response
from penstock.web.callers import CALLER, EXPIRES_MS, PASSWORD_USER, TOKEN, header_of, unknown_caller
from penstock.web.console_files import is_console_path, wants_page

log = logging.getLogger("penstock.web")

OPEN_PATHS = frozenset({"/health", "/ready"})
METRICS_PATH = "/metrics"
BEARER_PROTOCOL = "bearer."
"""Begins the subprotocol of a WebSocket by which a page in a browser logs in."""
CHALLENGE = {"www-authenticate": 'Basic realm="penstock", charset="UTF-8", Bearer'}
MAX_AUTHORIZATION_BYTES = 12 * 1024
"""Tokens of identity providers have a few kilobytes; all headers together have at most 16."""
ANY_NAME = "*"
MAX_HOSTS = 100
"""Host headers that are remembered. A caller chooses them, each at most as long as all headers may be."""


class LoginGate:
    """The outermost layer of the HTTP port."""

    def __init__(self, app: ASGIApp, node: Node) -> None:
        self._app = app
        self._node = node
        self._names = known_names(node)
        self._hosts: set[str] = set()
        """Host headers that were found to be good."""
        self._warnings = LimitedLog(log, asyncio.get_running_loop().time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check_host(header_of(scope, b"host"))
            is_page = _is_page(scope)
            if not is_page:
                check_site(header_of(scope, b"sec-fetch-site"))
            caller = unknown_caller(scope)
            if self._node.config.require_login and not is_page:
                caller = await self._logged_in_caller(scope, caller)
            scope[CALLER] = caller
        except Problem as problem:
            headers = CHALLENGE if problem.status == 401 else None
            await _refuse(error_response(problem, headers), scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        if host not in self._hosts:
            check_host(host, self._names)
            if len(self._hosts) < MAX_HOSTS:
                self._hosts.add(host)

    async def _logged_in_caller(self, scope: Scope, caller: Caller) -> Caller:
        path = scope["path"]
        if path in OPEN_PATHS or (path == METRICS_PATH and self._node.config.metrics_without_login):
            return caller
        authorization = header_of(scope, b"authorization") or _bearer_protocol(scope)
        if not authorization and caller.principal != ANONYMOUS_PRINCIPAL:
            return caller  # it has shown a certificate
        if not authorization:
            message = "log in with the header Authorization: Basic (user and password), or Bearer (a token)"
            raise Problem(401, "login_required", message)
        try:
            return await self._logged_in(authorization, caller, scope)
        except AuthenticationError as refused:
            await self._tell_failure(refused, caller)
            raise Problem(401, "login_failed", refused.message) from None

    async def _logged_in(self, authorization: str, caller: Caller, scope: Scope) -> Caller:
        if len(authorization) > MAX_AUTHORIZATION_BYTES:
            raise AuthenticationError("an Authorization header that is too long")
        scheme, _, value = authorization.partition(" ")
        logins = self._node.logins
        if scheme.lower() == "basic":
            user, password = read_basic(value)
            accepted = Accepted(b"", await logins.check_password(user, password, caller.host))
            scope[PASSWORD_USER] = user
        elif scheme.lower() == "bearer":
            token = value.strip()
            accepted = await logins.check_bearer(token, caller.host)
            if is_api_token(token):
                scope[TOKEN] = parse_token(token)[0]
        else:
            raise AuthenticationError("an Authorization header that is neither Basic nor Bearer")
        if (expires_ms := logins.expires_ms(accepted)) is not None:
            scope[EXPIRES_MS] = expires_ms
        return Caller(accepted.principal, caller.host, caller.client_id, accepted.groups)

    async def _tell_failure(self, refused: AuthenticationError, caller: Caller) -> None:
        node = self._node
        node.metrics.failed_logins += 1
        self._warnings.warn("login failed", f"login of {caller.host} failed: {refused.reason}")
        node.audit.login_failed(caller.host, caller.host, "http", "", refused.reason)
        await asyncio.sleep(node.logins.failed(caller.host))


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


def _is_page(scope: Scope) -> bool:
    """Whether it asks for a file of the console, or is a browser that will be led there."""
    path: str = scope["path"]
    return is_console_path(path) or (path == "/" and wants_page(HTTPConnection(scope).headers))


def _bearer_protocol(scope: Scope) -> str:
    """The Authorization that a WebSocket's subprotocols stand for; empty if there is none."""
    if scope["type"] != "websocket":
        return ""
    offered: list[str] = scope.get("subprotocols", [])
    found = (one for one in offered if one.startswith(BEARER_PROTOCOL))
    return next((f"Bearer {one.removeprefix(BEARER_PROTOCOL)}" for one in found), "")


def read_basic(value: str) -> tuple[str, str]:
    """The user and the password. AuthenticationError if it is not Basic's form."""
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except ValueError:
        raise AuthenticationError("Basic without base64 of user:password") from None
    if not colon:
        raise AuthenticationError("Basic without a colon between user and password")
    return user, password


# --- pages of other sites


def check_site(fetch_site: str) -> None:
    """Problem if a page of another site made the browser send this, as the header Sec-Fetch-Site says."""
    if fetch_site == "cross-site":
        raise Problem(403, "foreign_site", "a page of another site may not send requests here")


def known_names(node: Node) -> frozenset[str]:
    """Names at which clients may reach this node, in lower case. `*` is in it if any will do."""
    config = node.config
    addresses = [config.advertised.host, *(one.advertised.host for one in config.kafka_listeners)]
    if config.http is not None:
        addresses.append(config.http.host)
    own = (socket.gethostname(), socket.getfqdn())
    return frozenset(name.lower() for name in (*addresses, *own, *config.http_hosts))


def check_host(host: str, names: Iterable[str]) -> None:
    """Problem if the Host header names another site. Addresses, and names without a dot, cannot be another site's: the
    public DNS has no such names."""
    name = _name(host).lower().rstrip(".")
    if "." not in name or _is_address(name) or name in names or ANY_NAME in names:
        return
    message = (
        f"Host {name[:100]!r} is not a name of this node. If it is one, add it to the setting http_hosts "
        '(--set http_hosts=NAME, or "*" for any)'
    )
    raise Problem(421, "unknown_host", message, "Host")


def _name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
