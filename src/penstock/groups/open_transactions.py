"""Offsets that producers have committed within transactions which have not ended yet: *pending* offsets.

The offset of a partition is the one of the last record in the log that counts. A plain commit and a deletion count at
once, a record of a transaction counts if a commit marker ends the transaction. So:

1. A pending offset does not count before its marker, however old it is.
2. A marker that commits does not bring back a pending offset behind which the log has another record that counts: a
   plain commit, a deletion, or the offset of another transaction that was committed first.
3. A marker of a producer without pending offsets changes nothing, so that a marker may be repeated.

By rule 2 a pending offset is forgotten when a later record counts. Compaction removes its record by the same rule, so a
coordinator that reads a compacted log has the same offsets.
"""

from collections.abc import Iterable, Mapping

from penstock.groups.group import Group
from penstock.groups.values import CommittedOffset
from penstock.types import TopicPartition


class OpenTransactions:
    """The pending offsets of one coordinator. It is told of every record in the order of the log."""

    def __init__(self) -> None:
        self._partitions: dict[int, dict[Group, set[TopicPartition]]] = {}
        """Where each producer has pending offsets."""

    def add(self, group: Group, producer_id: int, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        partitions = self._partitions.setdefault(producer_id, {}).setdefault(group, set())
        for partition, offset in offsets.items():
            pending = group.pending_offsets.setdefault(partition, {})
            group.pending_count += producer_id not in pending
            pending.pop(producer_id, None)  # the later record is behind those of other producers
            pending[producer_id] = offset
            partitions.add(partition)

    def supersede(self, group: Group, partitions: Iterable[TopicPartition]) -> None:
        """The log has later records of these partitions, which count (2)."""
        for partition in partitions:
            for producer_id in list(group.pending_offsets.get(partition, ())):
                self._forget(group, partition, producer_id)

    def end(self, producer_id: int, *, commit: bool) -> list[Group]:
        """A marker of this producer is in the log. Returns the groups in which it had pending offsets."""
        groups = {group: list(found) for group, found in self._partitions.get(producer_id, {}).items()}
        for group, partitions in groups.items():
            for partition in partitions:
                if commit:
                    self._commit(group, partition, producer_id)
                else:
                    self._forget(group, partition, producer_id)
        return list(groups)

    def _commit(self, group: Group, partition: TopicPartition, producer_id: int) -> None:
        pending = group.pending_offsets[partition]
        group.offsets[partition] = pending[producer_id]
        for earlier in list(pending):  # (2)
            self._forget(group, partition, earlier)
            if earlier == producer_id:
                break

    def _forget(self, group: Group, partition: TopicPartition, producer_id: int) -> None:
        pending, groups = group.pending_offsets[partition], self._partitions[producer_id]
        del pending[producer_id]
        group.pending_count -= 1
        if not pending:
            del group.pending_offsets[partition]
        groups[group].remove(partition)
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._partitions[producer_id]

    def move(self, group: Group, successor: Group) -> None:
        """The successor takes over the pending offsets of a group. It has none of its own yet."""
        pending = {partition: dict(found) for partition, found in group.pending_offsets.items()}
        self.supersede(group, pending)
        for partition, found in pending.items():
            for producer_id, offset in found.items():
                self.add(successor, producer_id, {partition: offset})
