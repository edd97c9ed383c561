"""For any order of plain commits, commits in transactions, markers, deletions, expiry, failed writes and crashes, the
offsets that count are those of the last record of each key that counts."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.config import GroupSettings, Limits
from penstock.effects import Persist
from penstock.types import TopicPartition
from tests.groups.transaction_harness import (
    TransactionHarness,
    commits_in,
    compacted,
    expected_offsets,
    expected_unstable,
)

GROUP_IDS = ("one", "two")
CLIENTS, PARTITIONS = st.integers(0, 1), st.integers(0, 2)
PRODUCERS = st.sampled_from([7, 8, 9])
OFFSETS = st.integers(0, 1000)
MINUTE_MS = 60_000


class RandomTransactions(RuleBasedStateMachine):
    """Two groups, and three producers that take part in both."""

    @initialize(most=st.sampled_from([4, 1000]))
    def start(self, most: int) -> None:
        group_settings = GroupSettings(
            offsets_retention_minutes=5, offsets_retention_check_interval_ms=MINUTE_MS
        )
        self.harness = TransactionHarness(group_settings, Limits(max_group_offsets=most))
        self.most = most
        self.make_clients()

    def make_clients(self) -> None:
        self.clients = [self.harness.client(name, group_id=name) for name in GROUP_IDS]

    @rule(client=CLIENTS, partition=PARTITIONS, offset=OFFSETS)
    def commit(self, client: int, partition: int, offset: int) -> None:
        self.clients[client].commits(partition=partition, offset=offset)

    @rule(client=CLIENTS, partition=PARTITIONS, offset=OFFSETS, producer_id=PRODUCERS)
    def commit_in_transaction(self, client: int, partition: int, offset: int, producer_id: int) -> None:
        commits_in(self.clients[client], producer_id, offset, partition)

    @rule(producer_id=PRODUCERS, commit=st.booleans())
    def end(self, producer_id: int, commit: bool) -> None:
        self.harness.ends(producer_id, commit=commit)

    @rule(group_id=st.sampled_from(GROUP_IDS), partition=PARTITIONS)
    def delete_offset(self, group_id: str, partition: int) -> None:
        self.harness.deletes_offsets(TopicPartition("orders", partition), group_id=group_id)

    @rule(group_id=st.sampled_from(GROUP_IDS))
    def delete_group(self, group_id: str) -> None:
        self.harness.deletes_groups(group_id)

    @rule(minutes=st.sampled_from([1, 6]))
    def wait(self, minutes: int) -> None:
        self.harness.passes(minutes * MINUTE_MS)

    @rule(writes=st.integers(1, 3))
    def slow_disk(self, writes: int) -> None:
        self.harness.disk = "slow"
        self.harness.flush(writes)

    @rule()
    def prompt_disk(self) -> None:
        self.harness.disk = "prompt"
        self.harness.flush()

    @rule()
    def full_disk(self) -> None:
        """All that is under way fails."""
        before, self.harness.disk = self.harness.disk, "full"
        self.harness.flush()
        self.harness.disk = before

    @rule()
    def crash(self) -> None:
        """All that is under way is lost."""
        self.harness = self.harness.restarted()
        self.make_clients()

    @invariant()
    def check_offsets(self) -> None:
        if not self.deletes():
            assert self.harness.numbers() == expected_offsets(self.harness.log)

    def deletes(self) -> bool:
        """A group whose deletion is being written does not answer any more."""
        writes = (each.records for each in self.harness.queue if isinstance(each, Persist))
        return any(value is None for records in writes for _, value in records)

    @invariant()
    def check_unstable(self) -> None:
        if not self.harness.queue:
            assert unstable(self.harness) == expected_unstable(self.harness.log)
            assert self.harness.open_tokens == set()

    @invariant()
    def check_memory(self) -> None:
        transactions = self.harness.coordinator._shared.transactions
        for group in self.harness.coordinator._shared.groups.values():
            count = sum(map(len, group.pending_offsets.values()))
            assert group.pending_count == count
            assert len(group.offsets) + count <= self.most
            listed = {(pid, tp) for tp, found in group.pending_offsets.items() for pid in found}
            indexed = {
                (producer_id, partition)
                for producer_id, groups in transactions._partitions.items()
                for partition in groups.get(group, ())
            }
            assert listed == indexed

    def teardown(self) -> None:
        """A coordinator that starts from any prefix of the log, or from what compaction leaves of it, agrees."""
        if not hasattr(self, "harness"):
            return
        log = self.harness.log
        for end in range(len(log) + 1):
            prefix = log[:end]
            for read in (prefix, compacted(prefix)):
                coordinator = self.harness.loaded_from(read)
                assert coordinator.numbers() == expected_offsets(prefix)
                assert unstable(coordinator) == expected_unstable(prefix)


def unstable(harness: TransactionHarness) -> set[tuple[str, TopicPartition]]:
    return {(group_id, each) for group_id in GROUP_IDS for each in harness.unstable(group_id)}


TestOffsetsInTransactions = RandomTransactions.TestCase
TestOffsetsInTransactions.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
