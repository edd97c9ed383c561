"""A member's consumer of its clique's queue: the brokers send it the messages of the slots that it owns.

It lives as long as one incarnation of the worker. When the member is fenced, the session ends, and the worker opens
another queue once it has joined again.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar, Final

from penstock.batch import Record
from penstock.client.aio.driver import TaskDriver
from penstock.client.base_streams import failure_of
from penstock.client.errors import ClientError
from penstock.client.http_nodes import HttpNodes
from penstock.client.queue_session import CliqueClaim, Credit, QueueSession, SettleAction
from penstock.client.received_record import ReceivedRecord
from penstock.clique.limits import BUFFERED_BYTES_MAX, IN_FLIGHT_MAX
from penstock.clique.tasks import end_tasks
from penstock.types import TopicPartition

FIRST_CREDIT: Final = 64
"""Messages from each node before their size is known: with the largest ones that topics take by default, 64 MiB."""
CREDIT_MAX: Final = min(4_000, IN_FLIGHT_MAX)
"""From each node: enough to keep a worker busy while acknowledgements travel."""
SIZE_WEIGHT: Final = 0.05
"""Of a message in the average of their sizes."""
RECORD_BYTES: Final = 300
"""Of memory for each record, beside its key and value."""


class CliqueJob(ReceivedRecord):
    """A record of a stream."""

    __slots__ = ("table_epoch",)
    is_suspect: ClassVar = False

    def __init__(
        self,
        topic_partition: TopicPartition,
        record: Record,
        *,
        connection_id: int,
        order: int,
        deliveries: int = 1,
        table_epoch: int = 0,
    ) -> None:
        super().__init__(
            topic_partition, record, connection_id=connection_id, order=order, deliveries=deliveries
        )
        self.table_epoch = table_epoch
        """Of the table by which this worker got it; 0 if an older broker does not tell."""

    @property
    def size(self) -> int:
        return RECORD_BYTES + len(self.value or b"") + len(self.key or b"")


class SuspectJob(CliqueJob):
    """An earlier owner held it when it crashed. This one announces it before it begins it: a job that crashes each of
    its owners becomes a dead letter, and the others that they held do not."""

    __slots__ = ()
    is_suspect = True


class Acknowledgement:
    """What the broker says to a settled job (session.Promise, work.Confirmation). There is one for every message, so it
    is less than a future: callbacks run at once."""

    __slots__ = ("_callbacks", "error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.error: ClientError | None = None
        self._callbacks: list[Callable[[Acknowledgement], object]] = []

    def resolve(self, error: ClientError | None) -> None:
        self.is_done, self.error = True, error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        if self.is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def wait(self) -> None:
        """Until it is done, however."""
        done = asyncio.Event()
        self.add_done_callback(lambda _self: done.set())
        await done.wait()


class CliqueQueue:
    """On the application's event loop."""

    def __init__(
        self,
        clique: str,
        topics: Sequence[str],
        claim: CliqueClaim,
        epoch: int,
        nodes: HttpNodes,
        on_job: Callable[["CliqueQueue", CliqueJob], None],
        on_end: Callable[["CliqueQueue", ClientError], None],
    ) -> None:
        self.member_id = claim.member_id
        self._on_job = on_job
        self._on_end = on_end
        self._session: QueueSession[CliqueJob] = QueueSession(
            clique,
            topics,
            make=CliqueJob,
            make_suspect=SuspectJob,
            random=Random(),
            credit=Credit(FIRST_CREDIT, FIRST_CREDIT),
            name=claim.worker,
            claim=claim,
        )
        self._session.learn(epoch)
        self._credit = FIRST_CREDIT
        self._mean_size = BUFFERED_BYTES_MAX / FIRST_CREDIT
        self._driver: TaskDriver[CliqueJob] = TaskDriver(self._session, nodes, f"clique-{clique}")
        self._task = asyncio.get_running_loop().create_task(self._receive())

    def learn(self, epoch: int) -> None:
        """This worker knows a newer table: the brokers serve it by that one."""
        self._driver.tell(lambda _now: self._session.learn(epoch))

    def settle(
        self,
        job: CliqueJob,
        action: SettleAction,
        *,
        epoch: int | None = None,
        error: BaseException | None = None,
    ) -> Acknowledgement:
        """Done when it is durable. `epoch`: of the job's slot, when its handler was called."""
        made, failure = Acknowledgement(), failure_of(error)
        self._driver.tell(lambda now: self._session.settle(job, action, None, made, now, failure, epoch))
        return made

    def drain(self) -> None:
        """Takes no more jobs."""
        self._driver.drain()

    async def flush(self, timeout_s: float) -> None:
        await self._driver.flush(timeout_s)

    async def close(self, timeout_s: float) -> None:
        await self._driver.close(timeout_s)
        await end_tasks([self._task])

    async def _receive(self) -> None:
        try:
            while (job := await self._driver.receive(None)) is not None:
                self._take(job)
                while (more := self._driver.take()) is not None:
                    self._take(more)
                self._adapt_credit()
        except ClientError as ended:
            self._on_end(self, ended)

    def _take(self, job: CliqueJob) -> None:
        self._mean_size += SIZE_WEIGHT * (job.size - self._mean_size)
        self._on_job(self, job)

    def _adapt_credit(self) -> None:
        """So many messages as the limit of buffered bytes allows, by their mean size. Doubled or halved at least: each
        change is a frame to every node."""
        fitting = max(1, min(CREDIT_MAX, int(BUFFERED_BYTES_MAX / self._mean_size)))
        if (
            fitting >= 2 * self._credit
            or 2 * fitting <= self._credit
            or fitting == CREDIT_MAX != self._credit
        ):
            self._credit = fitting
            self._driver.tell(lambda _now: self._session.set_credit(fitting))


def is_fenced(ended: Any) -> bool:
    """Whether the brokers know that this member was removed, or another connection serves it."""
    return getattr(ended, "code", None) in ("fenced", "replaced")
