"""Attempts of tasks: producers from their owner's coordinator, and the driver's decision which of them count.

Requests go to the HTTP port of any broker (`broker_http.py`), which asks the coordinator. All of them may be repeated,
so that a request whose answer was lost is sent again. The rules are in docs/http-api.md, "Attempts".
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from penstock.client.broker_http import BrokerHttp
from penstock.client.wire.producer import TransactionIdentity
from penstock.client.wire.settings import ClientSettings

OPERATION: Final = "/v1/transactions/{transactional_id}/attempts"
"""The path in a broker's list of operations that tells whether it has attempts."""
NOT_OPEN: Final = "invalid_txn_state"


class Version(NamedTuple):
    """A part of the output of a program, which counts once: a micro-batch of a query."""

    owner: str
    number: int


class AttemptClient:
    """For one thread. `urls` are tried first; without any the brokers are asked for them."""

    def __init__(self, settings: ClientSettings, urls: Sequence[str] = (), named: Sequence[str] = ()) -> None:
        """`named`: addresses of HTTP ports that the user has named, instead of those that brokers announce."""
        self._brokers = BrokerHttp(settings, urls, named)

    @property
    def urls(self) -> tuple[str, ...]:
        return self._brokers.urls

    def is_possible(self) -> bool:
        """Whether the brokers have attempts. Raises ClientError if that is not certain."""
        if not self._brokers.find():
            return False
        index = self._brokers.ask("GET", "/v1")
        return any(row.get("path") == OPERATION for row in index.get("paths", ()))

    def lend(self, version: Version, timeout_ms: int) -> TransactionIdentity | None:
        """A producer of an attempt; None if the version is committed already."""
        answer = self._post(version.owner, "attempts", version=version.number, timeout_ms=timeout_ms)
        producer = answer["producer"]
        if producer is None:
            return None
        return TransactionIdentity(version.owner, producer["producer_id"], producer["producer_epoch"])

    def renew(self, owner: str) -> None:
        """A sign of life."""
        self._post(owner, "renew")

    def commit(self, version: Version, winners: Iterable[TransactionIdentity]) -> bool:
        """Whether it was committed before. Denied with NOT_OPEN: nothing is committed."""
        named = [{"producer_id": one.producer_id, "producer_epoch": one.epoch} for one in winners]
        answer = self._post(version.owner, "commit", version=version.number, winners=named)
        return bool(answer["was_committed"])

    def rollback(self, version: Version) -> None:
        self._post(version.owner, "rollback", version=version.number)

    def _post(self, owner: str, what: str, **body: object) -> Any:
        return self._brokers.ask("POST", f"/v1/transactions/{quote(owner, safe='')}/{what}", body)
