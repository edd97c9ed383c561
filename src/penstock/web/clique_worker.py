"""A worker of a queue as a member of its clique: whether it is one, and which slots it is served.

The worker names itself (`Work.clique`) and the newest table that it knows. It is served when this node knows a table
that is not older. A member that such a table does not have was removed: its connection ends with `fenced`. A worker
that claims to know an epoch which the coordinator is far from is refused after one look there (`unknown_epoch`). A
second connection of the same member replaces the first one, which may be dead without having been closed.
"""

from collections.abc import Callable

from penstock.node import Node
from penstock.node.queues import QueueDriver
from penstock.node.queues.lane_driver import LaneDriver
from penstock.web.work_frames import CliqueClaim, Work

QUEUE_SECONDS = 5.0
"""How long a worker waits until this node knows the settings of its queue, which another node has just created."""


class Ended(Exception):
    """The worker's connection must be closed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class CliqueMember:
    """One connection of a member."""

    def __init__(self, node: Node, request: Work, claim: CliqueClaim, wake: Callable[[], None]) -> None:
        self._node = node
        self._clique = request.queue
        self._claim = claim
        self._known_epoch = claim.epoch
        self._wake = wake
        self._is_replaced = False
        self._watch = node.cliques.tables.watch(request.queue, wake)
        self._watch.expect(claim.epoch)

    @property
    def name(self) -> str:
        return self._claim.worker

    @property
    def key(self) -> tuple[str, str]:
        """The clique and the member: one connection of a node serves it."""
        return self._clique, self._claim.member_id

    async def wait_for_queue(self) -> None:
        """Returns when this node knows that the queue is that of a clique; Ended if it is another one."""
        node = self._node
        if not await node.metadata.until(
            lambda: node.resources.queue_config(self._clique).owner_ordered, QUEUE_SECONDS
        ):
            message = f"queue {self._clique!r} is not that of a clique: its penstock.queue.order is not owner"
            raise Ended("not_a_clique", message)

    def learn(self, epoch: int) -> None:
        """The worker knows this table, and is not served by an older one any more."""
        self._known_epoch = max(self._known_epoch, epoch)
        self._watch.expect(epoch)
        self._wake()

    def replace(self) -> None:
        """Another connection serves this member from now on."""
        self._is_replaced = True
        self._wake()

    @property
    def is_served(self) -> bool:
        """Whether this node knows a table that is as new as the worker's. A worker that knows none (epoch 0) is not a
        member yet."""
        return 0 < self._known_epoch <= self._watch.epoch

    def check(self) -> None:
        """Ended if the member was removed or replaced, or if its queue is not that of a clique any more."""
        if self._is_replaced:
            raise Ended("replaced", f"another connection serves the member {self._claim.member_id!r} now")
        if self._watch.refuted_by is not None:
            message = (
                f"epoch: worker {self._claim.worker!r} claims to know epoch {self._watch.claimed_epoch}, and clique "
                f"{self._clique!r} is at {self._watch.refuted_by}: expected an epoch that a reply to a "
                "heartbeat has told"
            )
            raise Ended("unknown_epoch", message)
        if self.is_served and not self._watch.is_member(self._claim.worker, self._claim.member_id):
            self._node.cliques.fenced += 1
            message = (
                f"worker {self._claim.worker!r} with the member id {self._claim.member_id!r} is no longer a member of "
                f"clique {self._clique!r} (epoch {self._watch.epoch}): drop all slots, and join with a new member id"
            )
            raise Ended("fenced", message)

    def attach(self, driver: QueueDriver, consumer: str) -> None:
        """The queue on one partition delivers to this member by the newest table."""
        if not isinstance(driver, LaneDriver):
            raise Ended("not_a_clique", f"the order of queue {self._clique!r} is not owner any more")
        driver.attach_owner(consumer, self._claim.member_id)
        self._watch.apply(driver)

    def leave(self) -> None:
        self._watch.close()


class CliqueConnections:
    """The members that are connected to this node."""

    def __init__(self) -> None:
        self._members: dict[tuple[str, str], CliqueMember] = {}

    def add(self, member: CliqueMember) -> None:
        if (before := self._members.get(member.key)) is not None:
            before.replace()
        self._members[member.key] = member

    def remove(self, member: CliqueMember) -> None:
        if self._members.get(member.key) is member:
            del self._members[member.key]


def check_kind(node: Node, request: Work) -> None:
    """Ended if a worker without a clique asks for the queue of one."""
    if request.clique is None and node.resources.queue_config(request.queue).owner_ordered:
        message = (
            f"queue {request.queue!r} is that of a clique (penstock.queue.order=owner): only its workers get messages; "
            "use another queue"
        )
        raise Ended("clique_only", message)
