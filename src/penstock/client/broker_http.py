"""The HTTP API for programs that know the brokers by their Kafka addresses: finds the HTTP ports and retries.

Requests go to the HTTP port of any broker, again and to another broker if need be, for as long as the settings of the
Kafka client say.
"""

from collections.abc import Sequence
from typing import Any

from penstock.client.errors import Garbled, Unreachable
from penstock.client.http_api import HttpApi
from penstock.client.http_nodes import HttpNodes
from penstock.client.security_arguments import ClientSecurity
from penstock.client.wire.cluster import Cluster
from penstock.client.wire.http_urls import find_http_urls
from penstock.client.wire.retry import retrying
from penstock.client.wire.settings import ClientSettings


class BrokerHttp:
    """For one thread. `urls` are tried first; without any the brokers are asked for them."""

    def __init__(self, settings: ClientSettings, urls: Sequence[str] = (), named: Sequence[str] = ()) -> None:
        """`named`: addresses of HTTP ports that the user has named, instead of those that brokers announce."""
        self._settings = settings
        self._named = list(named)
        self._urls = list(urls or named)
        security = ClientSecurity(settings.security, {}, None)
        self._api = HttpApi(HttpNodes(self.find, security, named))

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self._urls)

    def ask(self, method: str, path: str, body: dict[str, object] | None = None) -> Any:
        """The answer, a JSON object. Retries what is temporary: a node may get the request twice."""
        return retrying(self._settings, lambda: self._ask_once(method, path, body))

    def find(self) -> list[str]:
        """Addresses of HTTP ports; none if the brokers announce none."""
        if not self._urls:
            self._urls = list(self._named) or self._announced()
        return self._urls

    def _ask_once(self, method: str, path: str, body: dict[str, object] | None) -> Any:
        try:
            answer = self._api.ask(method, path, body, repeatable=True)
        except Unreachable:
            self._urls = []  # brokers may have moved
            raise
        if not isinstance(answer, dict):
            raise Garbled(f"{method} {path}: an answer of another shape: is this a broker's HTTP port?")
        return answer

    def _announced(self) -> list[str]:
        with Cluster(self._settings) as cluster:
            return find_http_urls(cluster)
