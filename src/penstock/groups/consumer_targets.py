"""When the target assignment of a consumer group is computed, and where.

A computation is due when the group epoch is above the assignment epoch, and not within the assignment interval after
the last one: members that come one after another share a computation. A small one is done at once; a large one goes to
the host (`Send`), which does it in a thread and reports with `Coordinator.assignment_computed`. The members go on with
their old targets meanwhile.
"""

from collections.abc import Callable, Mapping

from penstock.config import ConsumerGroupConfig
from penstock.groups.consumer_assignors import compute
from penstock.groups.consumer_group import ConsumerGroup
from penstock.groups.consumer_storage import RecordKind
from penstock.groups.consumer_values import NOTHING, Assignment
from penstock.groups.shared_state import SharedState

ASSIGNMENT = "assignment"
COMPUTED_AT_ONCE = 1_000
"""Members and partitions of a computation that is done at once, which takes about 3 ms."""


class Targets:
    """Target assignments of one coordinator's groups."""

    def __init__(self, shared: SharedState, config: Callable[[str], ConsumerGroupConfig]) -> None:
        self._shared = shared
        self._config = config

    def compute_if_due(self, now_ms: int, group: ConsumerGroup) -> None:
        if group.epoch <= group.assignment_epoch or group.is_computing or not group.members:
            return
        wait_ms = self._wait_ms(now_ms, group)
        if wait_ms > 0:
            self._shared.timers.set((ASSIGNMENT, group.group_id), now_ms + wait_ms)
            return
        job = group.job()
        if job.size <= COMPUTED_AT_ONCE or group.assignment_epoch == 0:
            # A member's epoch cannot be 0, so a group's first member does not wait for a thread.
            self.computed(now_ms, group, job.epoch, compute(job))
        else:
            group.is_computing = True
            self._shared.outbox.send(job)

    def _wait_ms(self, now_ms: int, group: ConsumerGroup) -> int:
        if group.assigned_ms is None:
            return 0
        return group.assigned_ms + self._config(group.group_id).assignment_interval_ms - now_ms

    def computed(
        self, now_ms: int, group: ConsumerGroup, epoch: int, target: Mapping[str, Assignment]
    ) -> None:
        """Members that came meanwhile have no target yet: the group epoch is higher, and the next computation has
        them."""
        group.is_computing = False
        for member_id in group.members:
            mine = target.get(member_id, NOTHING)
            if mine != group.targets.get(member_id):
                group.targets[member_id] = mine
                group.mark(RecordKind.TARGET, member_id)
        group.assignment_epoch, group.assigned_ms = epoch, now_ms
        group.mark(RecordKind.TARGET_EPOCH)
        who = {"group": group.group_id, "generation": epoch, "members": len(group.members)}
        self._shared.events.tell("group.rebalanced", **who)
        self.compute_if_due(now_ms, group)
