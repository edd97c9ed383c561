"""A clique on Penstock: the brokers hand the messages of a slot to its owner, and nothing is forwarded between workers.

    publisher --> topic --> partition's leader --the slot's owner, by the newest table--> worker --> handler
                                   <-- settled, with the epoch of the slot --

The clique has a queue of its name over the topics of its streams. A leader delivers a slot to its owner only, lets it
drain before the next owner gets it, and refuses what an old owner says. Heartbeats go over HTTP (http_coordinator.py).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, Final

import msgspec

from penstock.client.aio.client import AsyncClient
from penstock.client.errors import ClientError
from penstock.client.queue_session import CliqueClaim
from penstock.clique.chains import chain_of_request
from penstock.clique.clique_queue import CliqueQueue, is_fenced
from penstock.clique.codecs import RecordCodec
from penstock.clique.coordination import Coordinator
from penstock.clique.errors import Closed
from penstock.clique.handlers import HandlerTable
from penstock.clique.http_coordinator import HttpCoordinator
from penstock.clique.limits import KEY_BYTES_MAX, MESSAGE_BYTES_MAX, check_size
from penstock.clique.membership import Membership
from penstock.clique.message import Message
from penstock.clique.penstock_intake import JobIntake
from penstock.clique.penstock_jobs import rekeyed_topic
from penstock.clique.penstock_requests import LocalRequests, ask_by_topic
from penstock.clique.pubsub import Capabilities
from penstock.clique.replies import request_timed_out
from penstock.clique.runner import HandlerRunner
from penstock.clique.tasks import end_tasks
from penstock.clique.transport import Codecs

log = logging.getLogger("penstock.clique")

TOPIC_CONFIGS: Final = {"penstock.retention.keep.undone": "true"}
"""Of a stream's topic that a clique creates: retention does not delete messages that a clique has not handled."""
CLOSE_SECONDS: Final = 5.0
"""How long the end waits for answers to what was settled."""


class PenstockTransport:
    """Of one process."""

    capabilities: Final = Capabilities(
        durable=True, ordered=True, acks=True, exclusive=True, compare_and_set=True
    )

    def __init__(
        self,
        clique: str,
        worker: str,
        make_client: Callable[[], AsyncClient],
        handlers: HandlerTable,
        codecs: Codecs,
        *,
        keeps_dead_letters: bool,
    ) -> None:
        """`keeps_dead_letters`: whether messages that are given up go to the dead letters, or are only logged."""
        self._clique = clique
        self._worker = worker
        self._make_client = make_client
        self._handlers = handlers
        self._codecs = codecs
        self._keeps_dead_letters = keeps_dead_letters
        self._opened_client: AsyncClient | None = None
        self._topics: set[str] = set()
        """Those that are known to exist."""
        self._streams: dict[str, str] = {}
        """The stream of each topic that is consumed."""
        self._membership: Membership | None = None
        self._runner: HandlerRunner | None = None
        self._intake: JobIntake | None = None
        self._local: LocalRequests | None = None
        self._on_failure: Callable[[Exception], None] = lambda _problem: None
        self._queue: CliqueQueue | None = None
        self._fenced_id: str | None = None
        """The member id that the brokers have refused: the worker is about to join with another one."""
        self._is_taking = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._asking: set[asyncio.Task[bytes]] = set()

    # --- the start

    @property
    def in_flight(self) -> int:
        return 0 if self._intake is None else len(self._intake)

    async def open(self) -> None:
        self._opened_client = self._make_client()

    @property
    def _client(self) -> AsyncClient:
        if self._opened_client is None:
            raise Closed("the clique is not open: use it inside `async with clique`")
        return self._opened_client

    def new_member_id(self) -> str:
        return secrets.token_hex(16)

    async def open_coordinator(self) -> Coordinator:
        return HttpCoordinator(self._clique, self._client.http_nodes)

    async def attach(
        self, membership: Membership, runner: HandlerRunner, on_failure: Callable[[Exception], None]
    ) -> None:
        self._membership, self._runner, self._on_failure = membership, runner, on_failure
        for stream in self._handlers.streams:
            self._streams[stream] = stream
            if self._handlers.has_key_function(stream):
                self._streams[rekeyed_topic(self._clique, stream)] = stream
        for topic in self._streams:
            await self._ensure_topic(topic)
        self._local = LocalRequests(membership, runner, self._codecs)
        self._intake = JobIntake(
            self._clique,
            self._client,
            runner,
            self._handlers,
            self._codecs,
            self._streams,
            self._start_task,
            keeps_dead_letters=self._keeps_dead_letters,
        )

    async def begin_intake(self) -> None:
        self._is_taking = True
        self.table_changed()

    async def _ensure_topic(self, name: str) -> None:
        if name not in self._topics:
            await self._client.admin.create_topic(name, configs=TOPIC_CONFIGS, exist_ok=True)
            self._topics.add(name)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- publish and request

    async def publish(self, message: Message, timeout_s: float) -> None:
        value = self._encode(message)
        await self._ensure_topic(message.stream)
        await self._client.publish(
            message.stream, value, key=message.key, headers=message.headers, timeout=timeout_s
        )

    async def request(self, message: Message, timeout_s: float) -> bytes:
        """In a task of its own, which ends when the clique is closed."""
        asking = asyncio.get_running_loop().create_task(self._request(message, timeout_s))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            return await asking
        except asyncio.CancelledError:
            if self._opened_client is None:
                raise Closed("the clique was closed") from None
            raise

    async def _request(self, message: Message, timeout_s: float) -> bytes:
        deadline = time.time() + timeout_s
        value, chain = self._encode(message), chain_of_request()
        handler = self._handlers.handler_of(message.stream, is_request=True)
        codec = self._codecs.of(message.stream)
        answer: bytes | None = None
        try:
            async with asyncio.timeout(timeout_s):
                if handler is not None and self._local is not None:
                    decoded = codec.decode(message.stream, value or b"")
                    received = msgspec.structs.replace(message, value=decoded.value)
                    answer = await self._local.ask(handler, received, chain, deadline)
                if answer is None:
                    await self._ensure_topic(message.stream)
                    left_s = max(0.001, deadline - time.time())
                    answer = await ask_by_topic(self._client, message, value, chain, left_s)
        except TimeoutError:
            raise request_timed_out(message.stream, timeout_s) from None
        return codec.decode(message.stream, answer).value or b""

    def _encode(self, message: Message) -> bytes | None:
        """The record's value. Only that of the default codec can be None, as in a compacted topic."""
        codec = self._codecs.of(message.stream)
        check_size("the key", len(message.key or b""), KEY_BYTES_MAX, "limits.KEY_BYTES_MAX")
        if message.value is None and isinstance(codec, RecordCodec):
            return None
        value = codec.encode(message)
        check_size("the message", len(value), MESSAGE_BYTES_MAX, "limits.MESSAGE_BYTES_MAX")
        return value

    # --- slots

    def table_changed(self) -> None:
        """Opens the queue for the member that this worker is now, and tells the brokers which table it knows."""
        membership, runner = self._membership, self._runner
        if membership is None or runner is None:
            return
        known_epoch = membership.epoch if membership.is_member else None
        runner.take_back(lambda slot: not membership.is_granted(slot), known_epoch)
        table = membership.latest_table
        if self._queue is not None and self._queue.member_id != membership.member_id:
            self._start_task(self._queue.close(CLOSE_SECONDS))
            self._queue = None
        if not membership.is_member or table is None:
            return
        if self._queue is not None:
            self._queue.learn(table.epoch)
        elif self._is_taking and membership.member_id != self._fenced_id:
            self._queue = self._open_queue(membership.member_id, table.epoch)

    def _open_queue(self, member_id: str, epoch: int) -> CliqueQueue:
        assert self._intake is not None
        return CliqueQueue(
            self._clique,
            list(self._streams),
            CliqueClaim(self._worker, member_id),
            epoch,
            self._client.http_nodes,
            self._intake.take,
            self._queue_ended,
        )

    def _queue_ended(self, queue: CliqueQueue, ended: ClientError) -> None:
        if queue is not self._queue:
            return
        self._queue = None
        self._start_task(queue.close(CLOSE_SECONDS))
        if is_fenced(ended):
            log.warning("worker %s: %s", self._worker, ended)
            self._fenced_id = queue.member_id
        elif self._is_taking:
            self._on_failure(ended)

    async def hand_over(self, slots: Collection[int]) -> None:
        self.lose(slots)

    def lose(self, slots: Collection[int]) -> None:
        if self._intake is not None:
            self._intake.forget(slots)

    # --- the end

    async def end_intake(self) -> None:
        self._is_taking = False
        if self._queue is not None:
            self._queue.drain()

    async def drain(self, timeout_s: float) -> None:
        if self._queue is not None:
            await self._queue.flush(max(0.0, timeout_s))

    async def close(self) -> None:
        """Messages that are not handled go to other workers."""
        if self._queue is not None:
            await self._queue.close(CLOSE_SECONDS)
            self._queue = None
        client, self._opened_client = self._opened_client, None
        await end_tasks(self._asking)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        await end_tasks(self._tasks)
        if client is not None:
            with suppress(ClientError):
                await client.close()
