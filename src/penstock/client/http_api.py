"""Requests to the nodes' HTTP API, as JSON. Any node of a cluster can answer."""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from penstock.client.errors import ClientError, Garbled, Unreachable
from penstock.client.http_nodes import HttpNodes
from penstock.client.http_refusals import refusal
from penstock.client.tls_context import tls_failure

REQUEST_SECONDS: Final = 15.0
ERROR_BYTES_MAX: Final = 64 * 1024
SERVICE_UNAVAILABLE: Final = 503
NOT_DONE: Final = frozenset({"not_ready", "node_unavailable", "too_busy"})
"""Errors of a node with status 503 after which it is certain that a request was not carried out."""


class HttpApi:
    """Asks the first node that answers."""

    def __init__(self, nodes: HttpNodes) -> None:
        self._nodes = nodes

    def ask(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, repeatable: bool = False
    ) -> Any:
        """None if the answer has no content. Raises Denied or LoginFailed if a node refused the request. A request that
        a node may have carried out goes to another one only if it may be done twice."""
        is_repeatable = repeatable or method == "GET"
        error: ClientError = Unreachable(f"{method} {path}: no node has an HTTP port")
        for url in self._nodes.find_urls():
            try:
                return _ask(method, f"{url.rstrip('/')}{path}", body, self._nodes)
            except Unreachable as unreachable:
                if unreachable.may_be_done and not is_repeatable:
                    raise
                if not (isinstance(error, Unreachable) and error.may_be_done):
                    error = unreachable
        raise error


class _NodeRedirects(HTTPRedirectHandler):
    """A redirected request has the same headers, the login among them."""

    def __init__(self, nodes: HttpNodes) -> None:
        self._nodes = nodes

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        if not self._nodes.may_redirect_to(newurl):
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str, nodes: HttpNodes) -> OpenerDirector:
    context = nodes.context(url)
    tls = [] if context is None else [HTTPSHandler(context=context)]
    return build_opener(ProxyHandler({}), _NodeRedirects(nodes), *tls)


def fetch(method: str, url: str, data: bytes | None, timeout_s: float, nodes: HttpNodes) -> bytes:
    """One request with JSON, and its answer as it came. Raises Denied, LoginFailed, TlsFailed or Unreachable."""
    opener = _opener(url, nodes)
    headers = {"accept": "application/json", "content-type": "application/json", **nodes.headers(url)}
    try:
        with opener.open(Request(url, data, headers, method=method), timeout=timeout_s) as answer:
            text: bytes = answer.read()
            return text
    except HTTPError as refused:
        with refused:
            code, message = error_in(refused.read(ERROR_BYTES_MAX)) or (
                f"http_{refused.code}",
                f"{method} {url}",
            )
        if refused.code < 500:
            raise refusal(code, message) from None
        is_refused = refused.code == SERVICE_UNAVAILABLE and code in NOT_DONE
        raise _unreachable(f"{url}: {message}", may_be_done=not is_refused) from None
    except (OSError, HTTPException) as problem:
        distrust = tls_failure(getattr(problem, "reason", problem), url)
        what = f"{url}: {problem}: check that the broker's HTTP port is open to this host"
        # A URLError is raised while connecting and sending, anything else while waiting for the answer.
        raise distrust or _unreachable(what, may_be_done=not isinstance(problem, URLError)) from None


def _unreachable(what: str, *, may_be_done: bool) -> Unreachable:
    error = Unreachable(f"{what}; the request may have been carried out" if may_be_done else what)
    error.may_be_done = may_be_done
    return error


def error_in(body: bytes | bytearray | None) -> tuple[str, str] | None:
    """Code and message of the HTTP API's error; None if the body is not one."""
    try:
        error = json.loads(body or b"")["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError):
        return None


def _ask(method: str, url: str, body: Mapping[str, object] | None, nodes: HttpNodes) -> Any:
    text = fetch(method, url, None if body is None else json.dumps(body).encode(), REQUEST_SECONDS, nodes)
    try:
        return json.loads(text) if text else None
    except ValueError as problem:
        raise Garbled(f"{url}: not JSON: {problem}: is this address a broker's HTTP port?") from None
