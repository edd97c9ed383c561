"""The nodes' HTTP ports: where they are, and how requests and WebSockets to them log in.

A password or token goes with every request, so that a mistake here would tell it to a stranger:

 1. Credentials go to nodes only: to addresses that the nodes announce or that the caller has named. A redirect to
    another address is not followed.
 2. They travel encrypted, or within this machine. An `http://` address of another machine gets them only if the caller
    has named such an address itself (`http=`): the addresses that nodes announce may come over a connection that a
    stranger could change.
"""

import base64
import ssl
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

from penstock.client.errors import LoginFailed
from penstock.client.security_arguments import ClientSecurity
from penstock.client.tls_context import client_context

ENCRYPTED: Final = ("https", "wss")
_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class HttpNodes:
    """Of one client. Usable from all threads."""

    def __init__(
        self, find: Callable[[], list[str]], security: ClientSecurity, named: Iterable[str] = ()
    ) -> None:
        """`find`: asks for the nodes' addresses, and waits. `named`: those that the caller has named itself."""
        self._find = find
        self._security = security
        self._known: set[tuple[str, int]] = set()
        self._may_be_clear = any(urlsplit(_absolute(url)).scheme not in ENCRYPTED for url in named)

    def find_urls(self) -> list[str]:
        """The addresses of all nodes that answer."""
        urls = self._find()
        self.announced(urls)
        return urls

    def announced(self, urls: Iterable[str]) -> None:
        """Nodes have told these addresses of nodes."""
        self._known.update(_origin(urlsplit(_absolute(url))) for url in urls)

    def may_redirect_to(self, url: str) -> bool:
        """Whether a redirect may be followed (1)."""
        return not self._security.has_credentials or _origin(urlsplit(_absolute(url))) in self._known

    def headers(self, url: str) -> dict[str, str]:
        """The Authorization of a request to this address; empty if the client has no credentials. LoginFailed if it
        must not be sent there (2)."""
        if not self._security.has_credentials:
            return {}
        parts = urlsplit(_absolute(url))
        if not (parts.scheme in ENCRYPTED or self._may_be_clear or _is_this_machine(parts.hostname or "")):
            raise LoginFailed(
                f"{parts.scheme}://{parts.netloc} is not encrypted, so the login was not sent: give the HTTP port TLS "
                f'(docs/security.md); or, if you trust the network, name it: http="http://{parts.netloc}"'
            )
        return {"Authorization": self._authorization()}

    def _authorization(self) -> str:
        current = self._security.current()
        if current.token:
            return f"Bearer {current.token}"
        pair = f"{current.user}:{current.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"

    def context(self, url: str) -> ssl.SSLContext | None:
        """None for an address without TLS. Raises TlsFailed if a file cannot be used."""
        is_encrypted = urlsplit(_absolute(url)).scheme in ENCRYPTED
        return client_context(self._security.settings) if is_encrypted else None


def _absolute(url: str) -> str:
    return url if "//" in url else f"http://{url}"


def _origin(parts: SplitResult) -> tuple[str, int]:
    return (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
