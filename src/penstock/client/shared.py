"""What a blocking and an asynchronous client share: settings, and Kafka clients that are made when they are needed."""

import threading
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from penstock.client.amounts import Headers, Moment, Seconds, Text, as_bytes, as_ms, record_headers
from penstock.client.errors import Closed, Unreachable
from penstock.client.feed_session import FeedSession
from penstock.client.finding import http_urls, make_admin
from penstock.client.kafka_trouble import unanswered
from penstock.client.publishing import Outgoing, Publisher
from penstock.client.session import Item
from penstock.client.work_session import Credit, WorkSession

DEFAULT_CREDIT: Final = 100
DEFAULT_ACK_TIMEOUT_S: Final = 30.0
DEFAULT_TTL_S: Final = 7 * 24 * 3600.0
DEFAULT_PATIENCE_S: Final = 60.0
CREDIT_MAX: Final = 100_000

SECURITY: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "https.", "broker.address.", "client.")
"""What settings of a producer begin with that an admin client needs, too."""


class Workshop:
    """Makes publishers, admin clients and sessions. Usable from all threads."""

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        http: str | Sequence[str] | None,
        kafka: Mapping[str, Any] | None,
        patience_s: float | None,
    ) -> None:
        if not isinstance(bootstrap_servers, str):
            raise TypeError(
                f"bootstrap_servers={bootstrap_servers!r}: expected text, several addresses with commas"
            )
        self.servers = bootstrap_servers
        self._http = [http] if isinstance(http, str) else list(http or ())
        self._settings = dict(kafka or {})
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        self._admin: AdminClient | None = None
        self._is_closed = False

    def check_open(self) -> None:
        if self._is_closed:
            raise Closed("the client was closed: make another one")

    def publisher(self) -> Publisher:
        with self._lock:
            self.check_open()
            if self._publisher is None:
                self._publisher = Publisher(self.servers, self._settings)
            return self._publisher

    def has_publisher(self) -> bool:
        return self._publisher is not None

    def kafka_admin(self) -> AdminClient:
        with self._lock:
            self.check_open()
            if self._admin is None:
                wanted = {name: value for name, value in self._settings.items() if name.startswith(SECURITY)}
                self._admin = make_admin(self.servers, wanted)
            return self._admin

    def find_urls(self) -> list[str]:
        """Where the HTTP ports are: as the client was told, or as the cluster says now."""
        if self._http:
            return self._http
        try:
            return http_urls(self.kafka_admin())
        except Unreachable as trouble:
            raise Unreachable(f"{trouble} ({self.servers})", retriable=trouble.retriable) from None

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self._is_closed = True
            publisher, self._publisher, self._admin = self._publisher, None, None
        if publisher is not None:
            publisher.close(timeout_s)

    def work_session(
        self,
        make: Callable[..., Item],
        topics: Sequence[str],
        group: str,
        *,
        credit: Credit,
        standby: bool,
        forever: bool = False,
    ) -> WorkSession[Item]:
        session = WorkSession(
            _checked_name("group", group),
            topics,
            make=make,
            random=Random(),
            credit=Credit(*map(_checked_credit, credit)),
            standby=standby,
            patience_s=None if forever else self._patience_s,
        )
        session.seek(unanswered(self.servers))
        return session

    def feed_session(
        self,
        make: Callable[..., Item],
        topics: Sequence[str],
        name: str,
        *,
        credit: int,
        read_old: bool,
        take_over: bool,
        ack_timeout: Seconds,
        ttl: Seconds,
    ) -> FeedSession[Item]:
        session = FeedSession(
            _checked_name("name", name),
            topics,
            make=make,
            random=Random(),
            credit=_checked_credit(credit),
            read_old=read_old,
            take_over=take_over,
            ack_timeout_ms=as_ms("ack_timeout", ack_timeout),
            ttl_ms=as_ms("ttl", ttl),
            patience_s=self._patience_s,
        )
        session.seek(unanswered(self.servers))
        return session


def outgoing(
    topic: str,
    value: Text | None,
    *,
    key: Text | None,
    headers: Headers | None,
    partition: int | None,
    message_id: Text | None,
    delay: Seconds | None,
    deliver_at: Moment | None,
    ttl: Seconds | None,
) -> Outgoing:
    made = record_headers(headers, message_id=message_id, delay=delay, deliver_at=deliver_at, ttl=ttl)
    if partition is not None and partition < 0:
        raise ValueError(f"partition={partition!r}: expected 0 or more, or None for any")
    return Outgoing(topic, as_bytes("value", value), as_bytes("key", key), made, partition)


def names(topics: str | Sequence[str]) -> tuple[str, ...]:
    """One topic or many; ValueError for none."""
    found = (topics,) if isinstance(topics, str) else tuple(topics)
    if not found or not all(found):
        raise ValueError(f"topics={topics!r}: expected the name of a topic, or several")
    return found


def queue_credit(prefetch: int | None) -> Credit:
    """What is asked for holds for every queue. By default one for one consumer is worked off one by one: in order."""
    return Credit(DEFAULT_CREDIT, 1) if prefetch is None else Credit(prefetch, prefetch)


def _checked_credit(prefetch: int) -> int:
    if not isinstance(prefetch, int):
        raise TypeError(f"prefetch={prefetch!r}: expected a number, 1 to {CREDIT_MAX}")
    if not 1 <= prefetch <= CREDIT_MAX:
        raise ValueError(f"prefetch={prefetch}: expected 1 to {CREDIT_MAX}")
    return prefetch


def _checked_name(argument: str, name: str) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{argument}={name!r}: expected a name")
    return name
