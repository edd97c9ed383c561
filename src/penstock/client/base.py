"""Client and AsyncClient: everything that they share. Only the methods that wait differ (sync.py, aio/client.py)."""

import os
import socket
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack

from confluent_kafka.admin import AdminClient, ResourceType

from penstock.client.admin import Admin, read_configs
from penstock.client.arguments import (
    READ_UNCOMMITTED,
    UNSET,
    Headers,
    IsolationLevel,
    Moment,
    Seconds,
    Text,
    Unset,
    as_ms,
    checked_isolation,
    checked_name,
    checked_prefetch,
    payload,
    queue_and_topics,
    record_headers,
    topic_names,
    wait_seconds,
    wait_seconds_or_none,
)
from penstock.client.base_streams import BaseStream
from penstock.client.calls import ReplyReader, call_headers
from penstock.client.errors import Closed, Unreachable
from penstock.client.http_discovery import http_urls, make_admin
from penstock.client.http_nodes import HttpNodes
from penstock.client.kafka_errors import no_answer_text
from penstock.client.login_diagnosis import ERROR_CALLBACK, LoginDiagnosis
from penstock.client.publishing import OutgoingMessage, Publisher, outgoing
from penstock.client.queue_session import Credit, QueueSession
from penstock.client.registry import HandlerRegistry
from penstock.client.schedule_thread import ScheduleThread, declare
from penstock.client.security_arguments import OAUTH_CALLBACK, SecurityArguments, client_security
from penstock.client.subscription_session import SubscriptionSession
from penstock.client.transactional_ids import TransactionalIds
from penstock.client.worker_policy import WorkerPlan

if TYPE_CHECKING:
    from penstock.client.wire.cluster import Cluster

DEFAULT_PREFETCH: Final = 100
DEFAULT_ACK_TIMEOUT_S: Final = 30.0
DEFAULT_TTL_S: Final = 7 * 24 * 3600.0
DEFAULT_RECONNECT_TIMEOUT_S: Final = 60.0
CALL_SECONDS: Final = 30.0
PUBLISH_SECONDS: Final = 10.0
"""How long `publish` waits. A new leader takes one to three seconds; a web request should not wait much longer."""
FLUSH_SECONDS: Final = 60.0
TRANSACTION_SECONDS: Final = 60.0
"""The default of a transaction's timeout, as in Kafka."""
TRANSACTION_RETRY_MS: Final = 60_000
"""How long the requests of a transaction are retried: several elections, and a node that is started again."""
GRACE_SECONDS: Final = 30.0
"""How long a graceful end waits for handlers: as long as most process managers wait before they kill."""

SECURITY_SETTINGS: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl.",
    "https.",
    "broker.address.",
    "client.",
    OAUTH_CALLBACK,
    ERROR_CALLBACK,
)
"""Prefixes of the producer settings that an admin client needs, too."""

StreamT = TypeVar("StreamT", bound=BaseStream[Any, Any])
QueueT = TypeVar("QueueT", bound=BaseStream[Any, Any])
SubscriptionT = TypeVar("SubscriptionT", bound=BaseStream[Any, Any])
StoredT = TypeVar("StoredT")
"""The result of `publish`: Stored, or a coroutine of it."""
FutureT = TypeVar("FutureT")
"""The result of `publish_soon`: a future of Stored, or a coroutine of one."""


class BaseClient(HandlerRegistry, Generic[QueueT, SubscriptionT, StoredT, FutureT]):
    """A client connects when it is first used. It must be closed; closing it twice is fine."""

    _queue_type: type[QueueT]
    _subscription_type: type[SubscriptionT]

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        http: str | Sequence[str] | None = None,
        kafka: Mapping[str, Any] | None = None,
        reconnect_timeout_s: Seconds | None = DEFAULT_RECONNECT_TIMEOUT_S,
        **security: Unpack[SecurityArguments],
    ) -> None:
        """`http`: the nodes' HTTP addresses, if clients reach them at others than the nodes say (behind a proxy).
        `kafka`: settings of librdkafka. `reconnect_timeout_s`: a queue or subscription that reaches no node for so long
        raises Unreachable; None: it tries for ever.

        `user`, `password`: for brokers that require a login. `token`: of an identity provider, or an API token, which
        is for HTTP and WebSockets alone; a function returns one that is good now. `tls`: the brokers speak TLS.
        `tls_ca`: the authority that signed their certificates, a PEM file; by default those of the system are trusted.
        `tls_cert`, `tls_key`: a certificate of this client. Kafka's names for all these may be in `kafka` instead."""
        if not isinstance(bootstrap_servers, str):
            raise TypeError(
                f"bootstrap_servers={bootstrap_servers!r}: expected text, several addresses with commas"
            )
        super().__init__()
        self._servers = bootstrap_servers
        self._http = [http] if isinstance(http, str) else list(http or ())
        self._security = client_security(security, kafka or {})
        self._diagnosis = LoginDiagnosis(bootstrap_servers, self._security)
        self._kafka_settings = self._diagnosis.listening(self._security.librdkafka)
        self._nodes = HttpNodes(self._find_urls, self._security, self._http)
        self._reconnect_timeout_s = wait_seconds_or_none("reconnect_timeout_s", reconnect_timeout_s)
        self._streams: list[BaseStream[Any, Any]] = []
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None
        self._kafka_admin: AdminClient | None = None
        self._replies: ReplyReader | None = None
        self._transactional_ids = TransactionalIds(self._new_cluster, self._read_topic_configs)
        self._is_closed = False
        self._prepare()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._servers}{' (closed)' if self._is_closed else ''}>"

    @abstractmethod
    def _prepare(self) -> None:
        """Called once, at the end of `__init__`."""

    def _new_admin(self) -> Admin:
        return Admin(self._open_kafka_admin, self._nodes, self._servers, self._diagnosis.explain)

    # --- publish

    def publish(
        self,
        topic: str,
        value: Text | Unset | None = UNSET,
        *,
        json: Any = UNSET,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        message_id: Text | None = None,
        delay: Seconds | None = None,
        deliver_at: Moment | None = None,
        ttl: Seconds | None = None,
        timeout: Seconds = PUBLISH_SECONDS,
    ) -> StoredT:
        """Returns when a majority has the message on disk: where it is stored. Raises PublishFailed otherwise, after
        `timeout` seconds at the latest; the error says whether the message may be stored all the same.

        `json`: a value to be published as JSON, instead of `value`. `message_id`: within the topic's dedup.window.ms
        the topic stores one message of this id, however often it is published; without `key` and `partition`, the id
        also chooses the partition. `delay` (seconds) or `deliver_at`: queues and subscriptions deliver the message
        then. `ttl` (seconds): they do not deliver it later than that.
        """
        made = record_headers(headers, message_id=message_id, delay=delay, deliver_at=deliver_at, ttl=ttl)
        message = outgoing(topic, payload(value, json), key, made, partition)
        return self._publish(message, wait_seconds("timeout", timeout))

    def publish_soon(
        self,
        topic: str,
        value: Text | Unset | None = UNSET,
        *,
        json: Any = UNSET,
        key: Text | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        message_id: Text | None = None,
        delay: Seconds | None = None,
        deliver_at: Moment | None = None,
        ttl: Seconds | None = None,
    ) -> FutureT:
        """Publishes in the background, with many messages in a batch. Returns a future, which has the result or raises
        PublishFailed; `flush` and `close` wait for all. Waits only to look up a topic that is new to this client, and
        while librdkafka's queue is full. Raises PublishFailed at once if there is no such topic."""
        made = record_headers(headers, message_id=message_id, delay=delay, deliver_at=deliver_at, ttl=ttl)
        return self._publish_soon(outgoing(topic, payload(value, json), key, made, partition))

    def _call_message(
        self,
        call_id: bytes,
        topic: str,
        reply_topic: str,
        value: bytes | None,
        key: Text | None,
        headers: Headers | None,
        timeout_s: float,
    ) -> OutgoingMessage:
        """The job of a call. It expires with the call, so that no worker begins a job whose caller has gone."""
        made = record_headers(headers, ttl=timeout_s) + call_headers(call_id, reply_topic)
        return outgoing(topic, value, key, made, None)

    @abstractmethod
    def _publish(self, message: OutgoingMessage, timeout: float) -> StoredT: ...

    @abstractmethod
    def _publish_soon(self, message: OutgoingMessage) -> FutureT: ...

    # --- consume

    def queue(
        self,
        name: str | Sequence[str],
        *,
        topic: str | Sequence[str] | None = None,
        group: str | None = None,
        prefetch: int | None = None,
        standby: bool = False,
        idle_s: Seconds | None = None,
    ) -> QueueT:
        """A consumer of the queue `name` on a topic, or on several: on the topic of its own name, unless `topic` names
        others. Iterate over it, or call `receive`; close it when done. (`queue(topic, group=name)` is the same.)

        `prefetch`: the most jobs that this consumer has at once from each node; by default 100, and 1 of an exclusive
        queue, so that no job is done before an earlier one that failed. `standby`: wait until an exclusive queue is
        free. `idle_s`: iterating ends when no job has come for so long.
        """
        credit = Credit(DEFAULT_PREFETCH, 1) if prefetch is None else Credit(prefetch, prefetch)
        queue, topics = queue_and_topics(name, topic, group)
        idle = wait_seconds_or_none("idle_s", idle_s)
        return self._open_queue(topics, queue, credit, standby, idle, self._reconnect_timeout_s)

    def subscribe(
        self,
        topics: str | Sequence[str],
        *,
        name: str,
        read_old: bool = False,
        prefetch: int = DEFAULT_PREFETCH,
        take_over: bool = False,
        ack_timeout: Seconds = DEFAULT_ACK_TIMEOUT_S,
        ttl: Seconds = DEFAULT_TTL_S,
        idle_s: Seconds | None = None,
        isolation: IsolationLevel = READ_UNCOMMITTED,
    ) -> SubscriptionT:
        """Follows topics in log order, from where the last ack of this name left off.

        `read_old`: a new subscription begins with the oldest message. `prefetch`: the most unacked messages at once.
        `take_over`: if the name is in use, its subscriber is disconnected. A message that is not acked within
        `ack_timeout` is sent again; the broker deletes a subscription that has had no subscriber for its `ttl`. With
        `isolation="read_committed"`, messages of transactions come when these are committed, and never if aborted.
        """

        def open_session(make: Callable[..., Any]) -> SubscriptionSession[Any]:
            return SubscriptionSession(
                checked_name("name", name),
                topic_names(topics),
                make=make,
                random=Random(),
                credit=checked_prefetch(prefetch),
                read_old=read_old,
                take_over=take_over,
                ack_timeout_ms=as_ms("ack_timeout", ack_timeout),
                ttl_ms=as_ms("ttl", ttl),
                isolation=checked_isolation(isolation),
                reconnect_timeout_s=self._reconnect_timeout_s,
                last_problem=no_answer_text(self._servers),
            )

        return self._open(self._subscription_type, open_session, wait_seconds_or_none("idle_s", idle_s))

    def _open_queue(
        self,
        topics: tuple[str, ...],
        group: str,
        credit: Credit,
        standby: bool,
        idle_s: float | None,
        reconnect_timeout_s: float | None,
        max_attempts: int | None = None,
    ) -> QueueT:
        def open_session(make: Callable[..., Any]) -> QueueSession[Any]:
            return QueueSession(
                group,
                topics,
                make=make,
                random=Random(),
                credit=Credit(*map(checked_prefetch, credit)),
                standby=standby,
                name=f"{socket.gethostname()[:200]}-{os.getpid()}",
                reconnect_timeout_s=reconnect_timeout_s,
                last_problem=no_answer_text(self._servers),
                max_attempts=max_attempts,
            )

        return self._open(self._queue_type, open_session, idle_s)

    def _open(
        self, kind: type[StreamT], open_session: Callable[[Callable[..., Any]], Any], idle_s: float | None
    ) -> StreamT:
        self._check_open()
        stream = kind(open_session, self._nodes, idle_s=idle_s, on_close=self._forget)
        with self._lock:
            self._streams.append(stream)
        return stream

    def _forget(self, stream: BaseStream[Any, Any]) -> None:
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)

    # --- workers and schedules

    def _open_worker_queue(self, plan: WorkerPlan) -> QueueT:
        """Workers wait for nodes that are away, however long."""
        most = plan.policy.max_attempts
        return self._open_queue(plan.topics, plan.group, plan.credit, plan.standby, None, None, most)

    def _declare_schedules(self, is_stopped: Callable[[], bool]) -> None:
        """Creates the topics and queues of all schedules, before their workers look for them."""
        declare(self._schedules, self._new_admin(), is_stopped)

    @contextmanager
    def _running_schedules(self, is_wanted: bool) -> Iterator[None]:
        """Publishes the jobs of schedules while the block runs."""
        if not (is_wanted and self._schedules):
            yield
            return

        def publish(job: OutgoingMessage) -> None:
            self._open_publisher().publish(job, PUBLISH_SECONDS)

        thread = ScheduleThread(self._schedules, self._new_admin(), publish)
        try:
            yield
        finally:
            thread.close()

    # --- connections that are made when they are needed, from any thread

    def _check_open(self) -> None:
        self._guard.check()
        if self._is_closed:
            raise Closed("the client was closed: make another one")

    def _open_publisher(self) -> Publisher:
        self._guard.check()  # before the lock: another thread may have had it during the fork
        publisher = self._publisher
        if publisher is not None and not publisher.is_broken:
            return publisher  # without the lock: a publisher that is closed meanwhile refuses messages itself
        with self._lock:
            self._check_open()
            if self._publisher is not None and self._publisher.is_broken:
                broken, self._publisher = self._publisher, None
                threading.Thread(target=broken.close, args=(0.0,), daemon=True).start()
            if self._publisher is None:
                self._publisher = Publisher(
                    self._servers, self._kafka_settings, self._read_topic_configs, self._diagnosis.explain
                )
            return self._publisher

    def _open_kafka_admin(self) -> AdminClient:
        self._guard.check()
        with self._lock:
            self._check_open()
            if self._kafka_admin is None:
                self._kafka_admin = make_admin(self._servers, self._security_settings)
                self._diagnosis.ask_for_reports(self._kafka_admin)
            if OAUTH_CALLBACK in self._kafka_settings:
                self._kafka_admin.poll(0)  # librdkafka asks for a new token there
            return self._kafka_admin

    def _open_replies(self) -> ReplyReader:
        self._guard.check()
        with self._lock:
            self._check_open()
            if self._replies is None:
                self._replies = ReplyReader(self._servers, self._security_settings, self._new_admin())
            return self._replies

    def _new_cluster(self) -> "Cluster":
        """For producers of transactions: librdkafka does not tell the id and epoch of its own."""
        from penstock.client.wire.cluster import Cluster
        from penstock.client.wire.settings import ClientSettings

        return Cluster(
            ClientSettings(
                bootstrap_servers=self._servers,
                retry_for_ms=TRANSACTION_RETRY_MS,
                security=self._security.current(),
            )
        )

    @property
    def _security_settings(self) -> dict[str, Any]:
        settings = self._kafka_settings.items()
        return {name: value for name, value in settings if name.startswith(SECURITY_SETTINGS)}

    def _read_topic_configs(self, topic: str, timeout_s: float) -> dict[str, str]:
        return read_configs(self._open_kafka_admin(), ResourceType.TOPIC, topic, timeout_s)

    def http_urls(self) -> list[str]:
        """The HTTP addresses of the nodes, as they announce them; waits for an answer of the cluster."""
        return self._nodes.find_urls()

    @property
    def http_nodes(self) -> HttpNodes:
        """The nodes' HTTP ports, with the login of this client: for programs that send requests of their own."""
        return self._nodes

    def _find_urls(self) -> list[str]:
        """The nodes' HTTP addresses: those of the argument `http`, or those that the nodes announce."""
        self._guard.check()
        if self._http:
            return self._http
        try:
            return http_urls(self._open_kafka_admin())
        except Unreachable as error:
            unreachable = Unreachable(f"{error} ({self._servers})", retriable=error.retriable)
            raise self._diagnosis.explain(unreachable) from None

    def _close_kafka(self, timeout_s: float) -> None:
        with self._lock:
            self._is_closed = True
            publisher, self._publisher, self._kafka_admin = self._publisher, None, None
            replies, self._replies = self._replies, None
        self._transactional_ids.close()
        if replies is not None:
            replies.close()
        if publisher is not None:
            publisher.close(timeout_s)
