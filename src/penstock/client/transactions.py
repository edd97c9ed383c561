"""Transactions of a blocking client."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.client.base_transactions import SETTLE_SECONDS, BaseTransaction
from penstock.client.publishing import OutgoingMessage
from penstock.client.thread_driver import Settlement
from penstock.types import TopicPartition

if TYPE_CHECKING:
    from penstock.client.wire.transactional_producer import GroupMember


class Transaction(BaseTransaction[Settlement, None]):
    """Messages, offsets of groups, and jobs of queues that count together, or not at all.

    `with client.transaction("id") as transaction:` commits at the end of the block, and aborts if the block raises.
    """

    def commit(self) -> None:
        """Commits now. Raises TransactionFailed: its `outcome` is "aborted" or "unknown"."""
        self._open_producer()  # a transaction that has ended may be committed: it must not be called aborted
        try:
            self._store()
            deadline = time.monotonic() + SETTLE_SECONDS
            for settlement in self._settlements:
                settlement.wait(max(0.0, deadline - time.monotonic()))
        except BaseException as problem:  # noqa: BLE001 - raised again
            self.abort()
            self._not_committed(problem)
        self._decide()

    def abort(self) -> None:
        """Aborts now: nothing of it becomes visible, and its jobs come again."""
        if self._is_open:
            self._give_up()

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is not None:
            self.abort()
        elif self._is_open:
            self.commit()

    def _publish(self, message: OutgoingMessage) -> None:
        if self._collect(message):
            self._send()

    def _commit_offsets(self, member: "GroupMember", offsets: Mapping[TopicPartition, int]) -> None:
        self._send_offsets(member, offsets)
