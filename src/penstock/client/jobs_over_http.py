"""Jobs of a queue, received and settled over HTTP, for programs whose work outlives a connection.

Each job has a receipt, which settles it on any node until its lease ends. The rules are in docs/http-api.md, "Queues".
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from penstock.client.broker_http import BrokerHttp
from penstock.client.errors import Garbled
from penstock.client.wire.settings import ClientSettings
from penstock.types import TopicPartition

MAX_JOBS: Final = 1_000
"""The most that a request receives or settles: the broker's own limit."""


class LeasedJob(NamedTuple):
    tp: TopicPartition
    offset: int
    receipt: str


class ReceivedJobs(NamedTuple):
    jobs: list[LeasedJob]
    lease_ms: int


class JobClient:
    """One consumer of a queue, for one thread."""

    def __init__(
        self, settings: ClientSettings, queue: str, consumer: str, *, named: Sequence[str] = ()
    ) -> None:
        self._brokers = BrokerHttp(settings, named=named)
        self._path = f"/v1/queues/{quote(queue, safe='')}"
        self._consumer = consumer

    def is_possible(self) -> bool:
        """Whether the brokers announce HTTP ports."""
        return bool(self._brokers.find())

    def waiting(self) -> int:
        """Jobs that could be received now, one after the other where keys have an order."""
        answer = self._brokers.ask("GET", self._path)
        return sum((row["available"] or 0) + (row["waiting"] or 0) for row in answer["partitions"])

    def receive(self, most: int, wait_ms: int) -> ReceivedJobs:
        """Waits for the first job only. A consumer of an exclusive queue that another one holds waits its turn."""
        body = {"max": min(most, MAX_JOBS), "wait_ms": wait_ms, "consumer": self._consumer, "standby": True}
        answer = self._brokers.ask("POST", f"{self._path}/receive", {**body, "encoding": "base64"})
        try:
            jobs = [
                LeasedJob(TopicPartition(row["topic"], row["partition"]), row["offset"], row["receipt"])
                for row in answer["jobs"]
            ]
            return ReceivedJobs(jobs, int(answer["lease_ms"]))
        except (LookupError, TypeError, ValueError) as problem:
            raise Garbled(f"{self._path}/receive: an answer of another shape ({problem!r})") from None

    def accept(self, receipts: Iterable[str]) -> list[str]:
        """Reports jobs as done. The receipts whose lease was over: their jobs are delivered again."""
        return [refused for some in _parts(receipts) for refused in self._settle("accept", some)]

    def renew(self, receipts: Iterable[str]) -> list[str]:
        """The leases run from now. The receipts whose lease was over."""
        return [refused for some in _parts(receipts) for refused in self._settle("renew", some)]

    def _settle(self, what: str, receipts: Sequence[str]) -> list[str]:
        answer = self._brokers.ask("POST", f"{self._path}/settle", {what: list(receipts)})
        return [row["receipt"] for row in answer.get("refused", ())]


def _parts(receipts: Iterable[str]) -> Iterator[list[str]]:
    every = list(receipts)
    return (every[at : at + MAX_JOBS] for at in range(0, len(every), MAX_JOBS))
