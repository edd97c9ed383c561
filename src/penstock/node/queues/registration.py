"""Registers each queue as a share group at its group coordinator before it begins.

So Kafka's tools list, describe and delete it, and no consumer group can begin under its name, whichever way its
messages are consumed. A share consumer registers the queue by joining; this module registers all others.

Invariants:
 1. A queue begins only under a name that the coordinator has registered. If the coordinator does not answer in time,
    the queue begins anyway, and the coordinator is asked again while the queue is in use: work must not wait for a
    listing.
 2. A queue with stored state continues whatever the coordinator answers: an older version may have created it beside a
    consumer group.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import BROKER
from penstock.node.queues.state_client import QueueStateClient
from penstock.queue import QueueKey

log = logging.getLogger("penstock.queues")

Register = Callable[[str], Awaitable[None]]
"""Asks the coordinator to register a share group. POLICY_VIOLATION: it refuses, and says why."""

WAIT_SECONDS = 2.0
"""How long a new queue waits for the coordinator: as long as an election takes with the usual settings. The request
goes on in the background; if it fails, `refresh` or the next use of the queue sends another one."""
FRESH_SECONDS = 600.0
"""How long a registration is trusted while its queue is in use. It may get lost if the queue begins at the moment when
its group is being deleted."""


class QueueRegistration:
    """The groups that are registered. Every method is called on the event loop."""

    def __init__(self, store: QueueStateClient, register: Register) -> None:
        self._store = store
        self._register_group = register
        self._registered: dict[str, float] = {}
        """When each was registered, by the loop's clock."""
        self._asking: dict[str, asyncio.Task[KafkaError | None]] = {}

    async def admit(self, queue: QueueKey) -> None:
        """Returns when the queue may be opened; POLICY_VIOLATION if it must not begin."""
        if queue.group_id in self._registered:
            return
        self._ask(queue.group_id)
        if await self._store.start_of(queue) is None:
            await self.begin(queue.group_id)

    async def begin(self, group_id: str) -> None:
        """Returns when queues may begin under this name; POLICY_VIOLATION if they must not. The coordinator is asked in
        any case: this node is not told when queues that it does not drive are deleted."""
        asking = self._ask(group_id)
        await asyncio.wait({asking}, timeout=WAIT_SECONDS)
        refusal = asking.result() if asking.done() and not asking.cancelled() else None
        if refusal is not None and not await self._store.starts(group_id, caller=BROKER):
            raise refusal

    def refresh(self, group_ids: Iterable[str]) -> None:
        """Called periodically with the groups of all queues in use: registers them again when their registration is
        old."""
        old = asyncio.get_running_loop().time() - FRESH_SECONDS
        at_work = dict.fromkeys(group_ids)
        self._registered = {one: when for one, when in self._registered.items() if one in at_work}
        for group_id in at_work:
            if self._registered.get(group_id, old) <= old:
                self._ask(group_id)

    def forget(self, group_id: str) -> None:
        """A queue of this group has ended, perhaps because the group was deleted."""
        self._registered.pop(group_id, None)

    def stop(self) -> None:
        for task in self._asking.values():
            task.cancel()

    def _ask(self, group_id: str) -> "asyncio.Task[KafkaError | None]":
        """One request for all partitions that are opened at once."""
        task = self._asking.get(group_id)
        if task is None:
            task = self._asking[group_id] = asyncio.ensure_future(self._register(group_id))
            task.add_done_callback(lambda _: self._asking.pop(group_id))
        return task

    async def _register(self, group_id: str) -> KafkaError | None:
        """The refusal, if there was one."""
        try:
            await self._register_group(group_id)
        except KafkaError as problem:
            if problem.code == ErrorCode.POLICY_VIOLATION:
                log.warning("%s", problem.message)
                return problem
            log.warning("queue %r is not registered as a share group: %s", group_id, problem.message)
            return None
        self._registered[group_id] = asyncio.get_running_loop().time()
        return None
