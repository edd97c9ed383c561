"""Requests to the nodes' HTTP API, as JSON. Any node of a cluster can answer."""

import json
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from penstock.client.errors import ClientError, Denied, Garbled, Unreachable

REQUEST_SECONDS: Final = 15.0
ERROR_BYTES_MAX: Final = 64 * 1024


class HttpApi:
    """Asks the first node that answers."""

    def __init__(self, find_urls: Callable[[], list[str]]) -> None:
        self._find_urls = find_urls

    def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """None if the answer has no content. Raises Denied if a node refused the request."""
        error: ClientError = Unreachable(f"{method} {path}: no node has an HTTP port")
        for url in self._find_urls():
            try:
                return _ask(method, f"{url.rstrip('/')}{path}", body)
            except Unreachable as unreachable:
                error = unreachable
        raise error


def fetch(method: str, url: str, data: bytes | None, timeout_s: float) -> bytes:
    """One request with JSON, and its answer as it came. Raises Denied or Unreachable."""
    opener = build_opener(ProxyHandler({}))
    headers = {"accept": "application/json", "content-type": "application/json"}
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
        raise (Unreachable(f"{url}: {message}") if refused.code >= 500 else Denied(code, message)) from None
    except (OSError, HTTPException) as problem:
        raise Unreachable(
            f"{url}: {problem}: check that the broker's HTTP port is open to this host"
        ) from None


def error_in(body: bytes | bytearray | None) -> tuple[str, str] | None:
    """Code and message of the HTTP API's error; None if the body is not one."""
    try:
        error = json.loads(body or b"")["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, LookupError, TypeError):
        return None


def _ask(method: str, url: str, body: Mapping[str, object] | None) -> Any:
    text = fetch(method, url, None if body is None else json.dumps(body).encode(), REQUEST_SECONDS)
    try:
        return json.loads(text) if text else None
    except ValueError as problem:
        raise Garbled(f"{url}: not JSON: {problem}: is this address a broker's HTTP port?") from None
