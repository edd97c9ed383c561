"""Drives the queue of a clique on one partition: the messages of a lane go to the lane's owner.

The caller says who owns which lane (`assign_lanes`), and for which owner a consumer receives (`attach_owner`). Both are
in memory only: the owners are durable elsewhere (`node.cliques`), and the next leader is told of them again.
"""

from collections.abc import Iterable

from penstock.errors import ErrorCode, KafkaError
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.lane_reader import LaneReader
from penstock.node.queues.retention_notices import RetentionNotices
from penstock.node.queues.waking import LaneWaking
from penstock.queue.lanes import LaneTable

Range = tuple[int, int]
"""First and last offset."""


class LaneDriver(QueueDriver):
    """One queue with lanes on one partition."""

    @property
    def lane_epoch(self) -> int:
        """The epoch of the table by which it delivers; 0 if it has none."""
        return self.core.lanes.epoch if self.core.lanes is not None else 0

    def attach_owner(self, member: str, owner: str) -> None:
        """The consumer receives for this owner of lanes, until `release`."""
        self.core.attach(member, owner)

    def assign_lanes(self, table: LaneTable) -> None:
        """Lanes have other owners from now on. Messages that an owner has lost are available to the next one."""
        now_ms = self.now_ms
        self._tick(now_ms)
        self.stats.count_withdrawn(self.core.assign(now_ms, table))
        self._after()

    def suspects_among(self, ranges: Iterable[Range]) -> list[Range]:
        """Messages that a worker held when it crashed: the next one announces them before it begins them."""
        return self.core.lanes.suspects_among(ranges) if self.core.lanes is not None else []

    def announce(self, member: str, ranges: Iterable[Range]) -> list[Range]:
        """The consumer is about to begin these messages: if it crashes, their delivery counts. Returns the ranges that
        it does not hold (any more), at least not all of it."""
        now_ms = self._begin()
        refused = [one for one in ranges if not self.core.announce(now_ms, member, *one)]
        self._after()
        return refused

    def check_admits(self, member: str) -> None:
        """POLICY_VIOLATION if this consumer is no worker of the clique."""
        if self.core.lanes is None or not self.core.lanes.has_owner(member):
            message = (
                f"queue {self.key.group_id!r} is that of a clique (penstock.queue.order=owner): only the clique's "
                "workers get its messages; use another queue"
            )
            raise KafkaError(ErrorCode.POLICY_VIOLATION, message)

    def _open_reader(self, notices: RetentionNotices) -> None:
        reader = LaneReader(self.core, self.partition, self.config.isolation, notices=notices)
        self._log = reader
        self._waking = LaneWaking(
            self.core,
            self._consumers,
            lambda: self.end_offset,
            reader=reader,
            begin_read=self._begin,
            finish_read=self._after,
        )
