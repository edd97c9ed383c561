"""Which of the waiting consumers of a queue are woken, and when."""

import asyncio
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.node.queues.lane_reader import LaneReader
from penstock.node.queues.waiting_consumers import WaitingConsumers
from penstock.queue.partition import QueuePartition
from penstock.types import Offset


class Waking:
    """Wakes the first consumers that came, as many as there are messages."""

    def __init__(
        self, core: QueuePartition, consumers: WaitingConsumers, end_offset: Callable[[], Offset]
    ) -> None:
        self._core = core
        self._consumers = consumers
        self._end_offset = end_offset
        """Where the log ends for this queue."""

    def changed(self) -> None:
        """Messages may have become available, or leases were settled."""
        if len(self._consumers) and self._has_more:
            self.committed()

    def committed(self) -> None:
        """The log has more records, or another leader: a consumer that asks finds out."""
        self._consumers.wake(max(1, self._core.available_count))

    @property
    def _has_more(self) -> bool:
        """Whether any consumer could get messages: not when the limit of leases is reached, or waiting consumers would
        wake each other forever."""
        core = self._core
        if core.leased_count >= core.settings.max_leased:
            return False
        return core.available_count > 0 or self._is_readable

    @property
    def _is_readable(self) -> bool:
        return self._core.next_offset < self._end_offset() and self._core.wants_more(1)


class LaneWaking(Waking):
    """Wakes the consumers whose lanes have messages. It reads the log for those that wait: if each new record woke a
    consumer to read, that would mostly find messages of others."""

    def __init__(
        self,
        core: QueuePartition,
        consumers: WaitingConsumers,
        end_offset: Callable[[], Offset],
        *,
        reader: LaneReader,
        begin_read: Callable[[], int],
        finish_read: Callable[[], None],
    ) -> None:
        """`begin_read` returns the time, or raises an error if this node does not lead the partition (any more);
        `finish_read` is called when records were read."""
        super().__init__(core, consumers, end_offset)
        self._reader = reader
        self._begin_read = begin_read
        self._finish_read = finish_read
        self._is_reading = False

    def changed(self) -> None:
        self._consumers.wake_those(self._core.may_get)
        if len(self._consumers) and self._is_readable:
            self.committed()

    def committed(self) -> None:
        """Reads in a later turn, once for all commits of this one."""
        if not self._is_reading:
            self._is_reading = True
            asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        self._is_reading = False
        if not len(self._consumers):
            return
        try:
            now_ms = self._begin_read()
            self._reader.read_until(now_ms, lambda: self._consumers.has_any(self._core.may_get))
        except PenstockError:
            self._consumers.wake_all()  # each gets the error when it asks
        else:
            self._finish_read()
