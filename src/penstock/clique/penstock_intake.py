"""Records on their way from the brokers to their handlers, and back with the outcome.

1. A record that is in hand does not run a second time when its connection breaks and the leader sends it again: the
   newest delivery is the one that is settled.
2. A record whose handler has returned, and whose acknowledgement was lost, is acknowledged when it comes again, as long
   as this worker owns its slot without interruption.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from penstock.client.aio.client import AsyncClient
from penstock.client.retry_policy import WorkerPolicy
from penstock.clique.clique_queue import Acknowledgement, CliqueJob, CliqueQueue
from penstock.clique.errors import CliqueError
from penstock.clique.handlers import Handler, HandlerTable
from penstock.clique.limits import KEY_BYTES_MAX, REMEMBERED_MAX, check_size
from penstock.clique.message import Message, Slot
from penstock.clique.penstock_jobs import (
    JobIdentity,
    chain_of,
    deadline_of,
    identity_of,
    is_request,
    message_of,
    rekeyed_headers,
    rekeyed_topic,
    slot_of_record,
)
from penstock.clique.penstock_requests import respond
from penstock.clique.replies import encoded_result, error_of
from penstock.clique.runner import HandlerRunner
from penstock.clique.transport import Codecs
from penstock.clique.work import Confirmation, Expired, Failed, Handled, Outcome, Returned, Work
from penstock.ring.slots import slot_of

log = logging.getLogger("penstock.clique")

REKEY_POLICY: Final = WorkerPolicy(max_attempts=None, backoff_s=0.1, max_backoff_s=5.0)
"""Publishing a record again is repeated until it succeeds: later records of its key wait."""


class JobItem:
    """A record in hand, and its newest delivery (1)."""

    __slots__ = ("identity", "is_request", "job", "queue", "slot", "stream", "work")

    def __init__(self, queue: CliqueQueue, job: CliqueJob, identity: JobIdentity, stream: str) -> None:
        self.queue = queue
        self.job = job
        self.identity = identity
        self.stream = stream
        self.slot = slot_of_record(job)
        self.is_request = is_request(job)
        self.work: Work | None = None

    @property
    def epoch(self) -> int | None:
        """Of its slot, when its handler was called."""
        return None if self.work is None else self.work.epoch


class JobIntake:
    """The records that this worker has in hand."""

    def __init__(
        self,
        clique: str,
        client: AsyncClient,
        runner: HandlerRunner,
        handlers: HandlerTable,
        codecs: Codecs,
        streams: Mapping[str, str],
        start_task: Callable[[Coroutine[Any, Any, None]], "asyncio.Future[Any]"],
        *,
        keeps_dead_letters: bool,
    ) -> None:
        """`streams`: by topic. `keeps_dead_letters`: whether records that are given up go to the dead letters, or are
        only logged."""
        self._clique = clique
        self._client = client
        self._runner = runner
        self._handlers = handlers
        self._codecs = codecs
        self._streams = streams
        self._start_task = start_task
        self._keeps_dead_letters = keeps_dead_letters
        self._working: dict[JobIdentity, JobItem] = {}
        self._unacknowledged: dict[JobIdentity, int] = {}
        """Records that were handled, with their slots, until the broker has confirmed it (2)."""

    def __len__(self) -> int:
        return len(self._working)

    def take(self, queue: CliqueQueue, job: CliqueJob) -> None:
        identity = identity_of(job)
        in_hand = self._working.get(identity)
        if in_hand is not None:
            in_hand.queue, in_hand.job = queue, job  # (1)
            if in_hand.work is not None:
                in_hand.work.table_epoch = job.table_epoch
            return
        if identity in self._unacknowledged:
            queue.settle(job, "accept")  # (2)
            return
        item = JobItem(queue, job, identity, self._streams[job.topic])
        try:
            work = item.work = self._work(item)
        except Exception as problem:  # noqa: BLE001 - of the application's codec and key function
            self._settled(item, Failed(problem, 0))
        else:
            self._working[identity] = item
            self._runner.submit(work)

    def _work(self, item: JobItem) -> Work:
        """Raises anything that the codec or the key function raises."""
        job, stream = item.job, item.stream
        handler = self._handlers.handler_of(stream, is_request=item.is_request)
        if handler is None:
            raise CliqueError(f"the clique {self._clique} has no responder for {stream}")
        message = message_of(job, stream, self._codecs.of(stream))
        key = handler.key_of(message)
        check_size("the key", len(key or b""), KEY_BYTES_MAX, "limits.KEY_BYTES_MAX")
        if key is not None and slot_of(key) != item.slot:
            handler, key = self._rekeying(handler, job, key), job.key
        return Work(
            handler,
            message,
            key=key,
            slot=item.slot,
            settle=partial(self._settled, item),
            is_request=item.is_request and handler.is_responder,
            attempts=job.deliveries - 1,
            chain=chain_of(job),
            deadline=deadline_of(job) if item.is_request else None,
            announce=partial(self._announce, item) if job.is_suspect else None,
            table_epoch=job.table_epoch,
        )

    def _announce(self, item: JobItem, told: Callable[[bool], None]) -> None:
        """By its newest delivery (1)."""
        made = item.queue.settle(item.job, "announce")
        made.add_done_callback(lambda acknowledgement: told(acknowledgement.error is None))

    # --- another key

    def _rekeying(self, handler: Handler, job: CliqueJob, key: bytes) -> Handler:
        """Runs as the handler of the record's own key: in order, and only while this worker owns that."""
        return Handler(
            stream=handler.stream,
            function=partial(self._publish_again, job, key),
            is_responder=False,
            key=None,
            codec=None,
            policy=REKEY_POLICY,
            timeout_s=None,
            is_coroutine=True,
        )

    async def _publish_again(self, job: CliqueJob, key: bytes, message: Message, slot: Slot) -> None:
        headers, ttl_s = rekeyed_headers(job, time.time())
        topic = rekeyed_topic(self._clique, message.stream)
        await self._client.publish(topic, job.value, key=key, headers=headers, ttl=ttl_s)

    # --- outcomes

    def _settled(self, item: JobItem, outcome: Outcome) -> Confirmation:
        self._working.pop(item.identity, None)
        was_rekeyed = item.work is not None and item.is_request and not item.work.is_request
        match outcome:
            case Returned():
                return item.queue.settle(item.job, "return")
            case Handled(result=result) if item.is_request and not was_rekeyed:
                return self._start_task(self._respond(item, result))
            case Failed(problem=problem) if item.is_request:
                return self._start_task(self._respond_error(item, error_of(problem)))
            case Failed(problem=problem) if self._keeps_dead_letters:
                return item.queue.settle(item.job, "reject", epoch=item.epoch, error=problem)
            case Failed(problem=problem):
                log.error("%r is given up: %s", item.job, error_of(problem))
                return self._accept(item)
            case Expired() | Handled():
                return self._accept(item)

    def _accept(self, item: JobItem) -> Acknowledgement:
        """The record is remembered until the broker has confirmed it (2)."""
        self._unacknowledged[item.identity] = item.slot
        if len(self._unacknowledged) > REMEMBERED_MAX:
            del self._unacknowledged[next(iter(self._unacknowledged))]
        made = item.queue.settle(item.job, "accept", epoch=item.epoch)
        made.add_done_callback(partial(self._confirmed, item.identity))
        return made

    def _confirmed(self, identity: JobIdentity, acknowledgement: Acknowledgement) -> None:
        if acknowledgement.error is None:
            self._unacknowledged.pop(identity, None)

    async def _respond(self, item: JobItem, result: object) -> None:
        """First the response, then the acknowledgement: a worker that dies in between must rather respond twice."""
        try:
            data = encoded_result(self._codecs.of(item.stream), item.stream, result)
        except Exception as unsuitable:  # noqa: BLE001 - of the application's responder and codec
            await self._respond_error(item, error_of(unsuitable))
            return
        await respond(self._client, item.job, data, None)
        await self._accept(item).wait()

    async def _respond_error(self, item: JobItem, error: str) -> None:
        await respond(self._client, item.job, b"", error)
        await self._accept(item).wait()

    # --- slots

    def forget(self, slots: Collection[int]) -> None:
        """Slots are given up. If they come back, what on_acquire loads then may not have what was handled before: a
        record whose acknowledgement was lost runs again (2)."""
        gone = frozenset(slots)
        self._unacknowledged = {one: slot for one, slot in self._unacknowledged.items() if slot not in gone}
