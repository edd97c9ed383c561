"""What a client asks the nodes' HTTP ports, as JSON. Any node of a cluster can answer."""

import json
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from penstock.client.errors import ClientError, Denied, Garbled, Unreachable

REQUEST_SECONDS: Final = 15.0
REFUSAL_BYTES_MAX: Final = 64 * 1024


class HttpPort:
    """Asks the first node that answers."""

    def __init__(self, find_urls: Callable[[], list[str]]) -> None:
        self._find_urls = find_urls

    def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """None where the answer has no content. Denied if a node said no."""
        trouble: ClientError = Unreachable(f"{method} {path}: no node has an HTTP port")
        for url in self._find_urls():
            try:
                return _ask(method, f"{url.rstrip('/')}{path}", body)
            except Unreachable as unreachable:
                trouble = unreachable
        raise trouble


def _ask(method: str, url: str, body: Mapping[str, object] | None) -> Any:
    opener = build_opener(ProxyHandler({}))
    data = None if body is None else json.dumps(body).encode()
    headers = {"accept": "application/json", "content-type": "application/json"}
    try:
        with opener.open(Request(url, data, headers, method=method), timeout=REQUEST_SECONDS) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except HTTPError as refused:
        with refused:
            raise _denied(method, url, refused.code, refused.read(REFUSAL_BYTES_MAX)) from None
    except (OSError, HTTPException) as problem:
        raise Unreachable(
            f"{url}: {problem}: check that the broker's HTTP port is open to this host"
        ) from None
    except ValueError as problem:
        raise Garbled(f"{url}: not JSON: {problem}: is this address a broker's HTTP port?") from None


def _denied(method: str, url: str, status: int, body: bytes) -> ClientError:
    try:
        told = json.loads(body)["error"]
        code, message = str(told["code"]), str(told["message"])
    except (ValueError, LookupError, TypeError):
        code, message = f"http_{status}", f"{method} {url}"
    return Unreachable(f"{url}: {message}") if status >= 500 else Denied(code, message)
