"""The carrier NATS: nats://host:port, with the extra penstock[nats].

Messages are core NATS: the current subscribers get them, and nothing is stored. So a message is lost if the process
that has it crashes, or if no worker runs when it is published. If the server has JetStream, the state of
cliques is in the key-value bucket BUCKET, whose keys change by compare-and-set: then a key has one owner at a time.
Without JetStream, owners are decided by gossip, as a best effort.

A client that has lost its server reconnects for as long as it takes. Meanwhile messages to it are lost, and heartbeats
fail: a worker that is away for longer than its lease has lost its slots when it is back.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.js.errors import (
    APIError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    ServiceUnavailableError,
)

from penstock.client.errors import Unreachable
from penstock.clique.errors import CliqueError, Closed, OverLimit
from penstock.clique.pubsub import Callback, Capabilities, Cell, PubSub

log = logging.getLogger("penstock.clique")

BUCKET: Final = "penstock-cliques"
"""Create it beforehand, with more replicas, if the servers are a cluster: it is created with one."""
NO_JETSTREAM: Final = (None, 10039, 10076)
"""Error codes of a server that has no JetStream, for this account or at all; None: no server answers such requests."""
CONNECT_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = 1
"""Between two attempts to reach the same server."""
DRAIN_SECONDS: Final = 5.0
"""How long the end of a subscription waits for messages that have arrived and were not taken."""
PENDING_MAX: Final = 65_536
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Messages that have arrived at a subscription and that the worker has no room for. More are dropped, and logged: core
NATS does not slow publishers down."""


class NatsDelivery:
    """Core NATS has no acknowledgements."""

    __slots__ = ("_message",)

    def __init__(self, message: Any) -> None:
        self._message = message

    @property
    def subject(self) -> str:
        return str(self._message.subject)

    @property
    def data(self) -> bytes:
        return bytes(self._message.data)

    @property
    def headers(self) -> Mapping[str, str]:
        return self._message.headers or {}

    @property
    def reply(self) -> str | None:
        return self._message.reply or None

    def ack(self) -> None:
        pass

    def nack(self) -> None:
        pass


class NatsSubscription:
    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    async def unsubscribe(self) -> None:
        """Messages that have arrived are given to the callback first."""
        with translated():
            try:
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._subscription.drain()
            except TimeoutError:
                log.warning("messages of %s were not taken in time and are lost", self._subscription.subject)


class NatsCells:
    """A key-value bucket of JetStream."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    async def get(self, key: str) -> Cell | None:
        with translated():
            try:
                entry = await self._bucket.get(key)
            except KeyNotFoundError:
                return None
        return Cell(entry.revision, entry.value or b"")

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        with translated():
            try:
                return int(await self._bucket.update(key, value, last=revision))
            except KeyWrongLastSequenceError:
                return None


class NatsPubSub:
    """A connection to NATS."""

    def __init__(self, servers: str | list[str], **options: Any) -> None:
        """`options`: those of `nats.connect`, such as user_credentials or tls."""
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self._options = options
        self._client: Any = None
        self._cells: NatsCells | None = None

    def __repr__(self) -> str:
        """Without passwords."""
        return ",".join(f"nats://{urlsplit(server).netloc.rpartition('@')[2]}" for server in self._servers)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(ordered=True, compare_and_set=self._cells is not None)

    @property
    def max_message_bytes(self) -> int | None:
        return int(self._client.max_payload)

    @property
    def store(self) -> NatsCells | None:
        return self._cells

    def another(self) -> PubSub:
        return NatsPubSub(self._servers, **self._options)

    async def connect(self) -> None:
        client = Client()
        reached = client.connect(
            servers=self._servers,
            error_cb=self._log_error,
            name="penstock-clique",
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_SECONDS,
            **self._options,
        )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                with translated():
                    await reached
        except (TimeoutError, Unreachable) as problem:
            await client.close()
            why = str(problem) or "no answer"
            raise Unreachable(
                f"{self!r}: no server was reached within {CONNECT_SECONDS:g} s: {why}"
            ) from None
        self._client = client
        self._cells = await self._open_bucket()

    async def _open_bucket(self) -> NatsCells | None:
        """None if the server has no JetStream. A server that has it and does not answer is an error: workers that do
        not know of each other's bucket would own the same keys."""
        context = self._client.jetstream(timeout=CONNECT_SECONDS)
        with translated():
            try:
                await context.account_info()
            except ServiceUnavailableError as unavailable:
                if unavailable.err_code not in NO_JETSTREAM:
                    raise
                return None
            try:
                return NatsCells(await context.key_value(BUCKET))
            except BucketNotFoundError:
                pass
            with suppress(APIError):  # another worker has just created it
                return NatsCells(await context.create_key_value(bucket=BUCKET))
            return NatsCells(await context.key_value(BUCKET))

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str | None = None
    ) -> None:
        with translated():
            await self._open_client().publish(
                subject, data, reply=reply or "", headers=dict(headers or {}) or None
            )

    async def subscribe(
        self, subject: str, callback: Callback, queue_group: str | None = None
    ) -> NatsSubscription:
        async def received(message: Any) -> None:
            await callback(NatsDelivery(message))

        client = self._open_client()
        with translated():
            subscription = await client.subscribe(
                subject,
                queue=queue_group or "",
                cb=received,
                pending_msgs_limit=PENDING_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
            # From when this has returned, messages come. The ping of `flush` goes out directly, and may overtake the
            # subscription, which is still in the client's buffer: the second ping is behind it.
            await client.flush()
            await client.flush()
        return NatsSubscription(subscription)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        with suppress(Exception):  # a server that is away must not keep the process from ending
            await client.flush(timeout=1)
        await client.close()

    def _open_client(self) -> Any:
        if self._client is None:
            raise Closed(f"the connection to {self!r} was closed")
        return self._client

    async def _log_error(self, problem: Exception) -> None:
        if isinstance(problem, nats.errors.SlowConsumerError):
            log.error("%r: a message of %s was dropped: this worker is too slow", self, problem.subject)
        else:
            log.warning("%r: %s", self, _text(problem))


@contextmanager
def translated() -> Iterator[None]:
    """Errors of nats-py as those of cliques."""
    try:
        yield
    except nats.errors.MaxPayloadError:
        raise OverLimit("the message is larger than the server takes (max_payload)") from None
    except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
        raise Closed("the connection to NATS was closed") from None
    except nats.errors.AuthorizationError as problem:
        raise CliqueError(f"NATS: {problem}") from None
    except (nats.errors.Error, OSError) as problem:
        raise Unreachable(f"NATS: {_text(problem)}") from None


def _text(problem: Exception) -> str:
    """Some errors have no text, such as those of timeouts."""
    return str(problem) or type(problem).__name__
