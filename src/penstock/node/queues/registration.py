"""A queue is a share group, also for whoever asks the group coordinator: it is noted there before it begins.

So Kafka's tools list it, describe it and delete it, and no consumer group can begin under its name, however its
messages are consumed. A queue that a share consumer has joined is noted by that; all others are by this.

Invariants:
 1. A queue begins only under a name that the coordinator has noted. If the coordinator cannot be asked in time, the
    queue begins all the same, and the coordinator is asked until it answers: work is not to wait for what lists it.
 2. What is stored goes on, whatever the coordinator says: an older version may have begun it beside a consumer group.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from penstock.errors import ErrorCode, KafkaError
from penstock.node.queues.state_client import QueueStateClient
from penstock.queue import QueueKey

log = logging.getLogger("penstock.queues")

Note = Callable[[str], Awaitable[None]]
"""Asks the coordinator to note a share group. POLICY_VIOLATION: it will not, and says why."""

WAIT_SECONDS = 2.0
"""How long a beginning waits for the coordinator: an election with the usual settings, hardly longer."""
ASK_SECONDS = 30.0
"""How long the coordinator is asked in the background, until somebody uses the queue again or `look_after` comes by."""
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 3.0
FRESH_SECONDS = 600.0
"""How long a note is taken for granted while its queue is at work. One may be lost when a queue begins in the moment in
which its group is being deleted."""


class QueueRegistration:
    """Which groups were noted. Every method is called on the event loop."""

    def __init__(self, store: QueueStateClient, note: Note) -> None:
        self._store = store
        self._note = note
        self._noted: dict[str, float] = {}
        """When, by the loop's clock."""
        self._asking: dict[str, asyncio.Task[KafkaError | None]] = {}

    async def admit(self, queue: QueueKey) -> None:
        """Returns when the queue may be opened; POLICY_VIOLATION if it must not begin."""
        if queue.group_id in self._noted:
            return
        self._ask(queue.group_id)
        if await self._store.start_of(queue) is None:
            await self.begin(queue.group_id)

    async def begin(self, group_id: str) -> None:
        """Returns when queues may begin under this name; POLICY_VIOLATION if they must not. The coordinator is asked in
        any case: of queues that are not at work here nobody says when they are deleted."""
        asking = self._ask(group_id)
        await asyncio.wait({asking}, timeout=WAIT_SECONDS)
        refusal = asking.result() if asking.done() and not asking.cancelled() else None
        if refusal is not None and not await self._store.starts(group_id):
            raise refusal

    def look_after(self, group_ids: Iterable[str]) -> None:
        """Now and then: queues of these groups are at work here, and of no others."""
        old = asyncio.get_running_loop().time() - FRESH_SECONDS
        at_work = dict.fromkeys(group_ids)
        self._noted = {one: when for one, when in self._noted.items() if one in at_work}
        for group_id in at_work:
            if self._noted.get(group_id, old) <= old:
                self._ask(group_id)

    def forget(self, group_id: str) -> None:
        """A queue of this group has ended, perhaps because the group was deleted."""
        self._noted.pop(group_id, None)

    def stop(self) -> None:
        for task in self._asking.values():
            task.cancel()

    def _ask(self, group_id: str) -> "asyncio.Task[KafkaError | None]":
        """One question for all partitions that are opened at once."""
        task = self._asking.get(group_id)
        if task is None:
            task = self._asking[group_id] = asyncio.ensure_future(self._noted_in_time(group_id))
            task.add_done_callback(lambda _: self._asking.pop(group_id))
        return task

    async def _noted_in_time(self, group_id: str) -> KafkaError | None:
        """The refusal, if it was refused."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_SECONDS
        pause = PAUSE_SECONDS
        while True:
            try:
                await self._note(group_id)
            except KafkaError as trouble:
                if trouble.code == ErrorCode.POLICY_VIOLATION:
                    log.warning("%s", trouble.message)
                    return trouble
                if loop.time() > deadline:
                    log.warning("queue %r is not noted as a share group: %s", group_id, trouble.message)
                    return None
            else:
                self._noted[group_id] = loop.time()
                return None
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
