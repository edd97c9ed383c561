"""Messages that are settled in a transaction: held until it ends, also by the next leader. Numbers: `partition.py`."""

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.queue.open_settlements import MAX_HELD
from penstock.queue.partition import QueuePartition
from penstock.queue.settlements import (
    SettledRange,
    TransactionSettlement,
    decode_settlement,
    encode_settlement,
)
from penstock.queue.state_records import is_settlement, settlement_suffix
from penstock.queue.values import AckKind, Acknowledgement
from penstock.types import Term
from tests.queue.partition_harness import ACCEPT, NOT_YOURS, REJECT, RELEASE, RENEW, PartitionHarness

TXN = settlement_suffix(1, 1)


class TransactionHarness(PartitionHarness):
    """The state topic has the records of open transactions apart from the others."""

    open: dict[bytes, bytes]

    def settles(
        self,
        kinds: bytes,
        first: int,
        last: int | None = None,
        *,
        suffix: bytes = TXN,
        delay_ms: int | None = None,
    ) -> list[ErrorCode]:
        """The consumer `ada` settles a range in the transaction `billing`, and that is stored."""
        self.open = getattr(self, "open", {})
        ack = Acknowledgement(first, first if last is None else last, kinds, delay_ms)
        errors, settlement = self.queue.begin_settlement(self.now_ms, suffix, "ada", "billing", [ack])
        if settlement is not None:
            self.open[suffix] = encode_settlement(settlement)
        return errors

    def ends(self, *, commit: bool, suffix: bytes = TXN) -> None:
        """The marker is in the log, and the driver has heard of it."""
        self.marked(commit=commit, suffix=suffix)
        self.queue.end_settlement(self.now_ms, suffix, commit=commit)

    def marked(self, *, commit: bool, suffix: bytes = TXN) -> None:
        """The marker is in the log; the driver has not heard of it."""
        value = self.open.pop(suffix)
        if commit:
            self.stored[suffix] = value

    def fails_over(self, messages: int | None = None) -> None:
        """The next leader restores the partition, and reads so many messages of the log."""
        self.term += 1
        self.queue = QueuePartition.restore(
            self.settings,
            term=Term(self.term),
            records=self.stored,
            open_settlements=self.open,
            now_ms=self.now_ms,
        )
        if messages is not None:
            self.reads(messages - self.queue.next_offset)

    @property
    def settlements(self) -> list[bytes]:
        """The stored records of committed settlements."""
        return [suffix for suffix in self.stored if is_settlement(suffix)]


def test_a_transaction_holds_its_messages_until_it_ends() -> None:
    queue = TransactionHarness(3)
    assert queue.gets("ada", 2) == [0, 1]
    assert queue.settles(ACCEPT, 0) == [ErrorCode.NONE]
    assert queue.queue.held_by_transactions == 1
    queue.queue.release_member(queue.now_ms, "ada")
    queue.passes(10_000_000)
    assert queue.gets("bob", 9) == [1, 2], (
        "0 is held, although its consumer has gone and its lease would be over"
    )
    assert queue.says("ada", ACCEPT, 0) == NOT_YOURS
    queue.ends(commit=True)
    queue.passes(10_000_000)
    assert queue.gets("bob", 9) == [1, 2]
    assert queue.queue.start_offset == 1
    queue.check_counters()


@pytest.mark.parametrize("kinds", [ACCEPT, RELEASE, REJECT])
def test_an_abort_gives_messages_back_and_counts_the_delivery(kinds: bytes) -> None:
    queue = TransactionHarness(2)
    queue.gets("ada", 2)
    queue.settles(kinds, 0, 1)
    queue.ends(commit=False)
    assert [(one.first, one.last, one.deliveries) for one in queue.queue.acquire(queue.now_ms, "bob", 9)] == [
        (0, 1, 2)
    ]
    assert not queue.queue.take_dead_letters()


def test_a_message_that_makes_every_transaction_fail_becomes_a_dead_letter() -> None:
    queue = TransactionHarness(1, delivery_limit=2)
    for number in (1, 2):
        assert queue.gets("ada") == [0]
        queue.settles(ACCEPT, 0, suffix=settlement_suffix(1, number))
        queue.ends(commit=False, suffix=settlement_suffix(1, number))
    assert [(one.first, one.deliveries, one.member) for one in queue.queue.take_dead_letters()] == [
        (0, 2, "ada")
    ]


def test_a_commit_applies_each_kind() -> None:
    queue = TransactionHarness(4)
    queue.gets("ada", 4)
    assert queue.settles(ACCEPT + REJECT + RELEASE, 0, 2, delay_ms=5_000) == [ErrorCode.NONE]
    queue.ends(commit=True)
    [letter] = queue.queue.take_dead_letters()
    assert (letter.first, letter.last, letter.member) == (1, 1, "ada")
    assert queue.gets("bob", 9) == []
    queue.passes(5_000)
    assert queue.gets("bob", 9) == [2]
    queue.check_counters()


def test_only_the_consumer_that_holds_a_message_can_settle_it_and_only_once() -> None:
    queue = TransactionHarness(3)
    assert queue.gets("bob") == [0]
    assert queue.gets("ada") == [1]
    assert queue.settles(ACCEPT, 0) == [ErrorCode.INVALID_RECORD_STATE]
    assert queue.settles(ACCEPT, 2) == [ErrorCode.INVALID_RECORD_STATE]
    assert queue.settles(ACCEPT, 1) == [ErrorCode.NONE]
    assert queue.settles(ACCEPT, 1, suffix=settlement_suffix(1, 2)) == [ErrorCode.INVALID_RECORD_STATE]
    assert queue.settles(RENEW, 1) == [ErrorCode.INVALID_REQUEST]


def test_transactions_hold_a_bounded_number_of_messages() -> None:
    queue = TransactionHarness(MAX_HELD + 1)
    queue.gets("ada", MAX_HELD + 1)
    queue.settles(ACCEPT, 0, MAX_HELD - 1)
    with pytest.raises(KafkaError) as refused:
        queue.settles(ACCEPT, MAX_HELD, suffix=settlement_suffix(1, 2))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    queue.ends(commit=True)
    assert queue.settles(ACCEPT, MAX_HELD, suffix=settlement_suffix(1, 2)) == [ErrorCode.NONE]


def test_a_clique_has_no_settlements_in_transactions() -> None:
    queue = TransactionHarness(lanes=True)
    with pytest.raises(KafkaError) as refused:
        queue.settles(ACCEPT, 0)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


# --- order


def test_later_messages_of_a_key_wait_for_the_transaction() -> None:
    queue = TransactionHarness(key_ordered=True)
    queue.reads_keys(7, 7, 8)
    assert queue.gets("ada", 9) == [0, 2]
    queue.settles(ACCEPT, 0)
    assert queue.gets("bob", 9) == []
    queue.ends(commit=True)
    assert queue.gets("bob", 9) == [1]


def test_key_order_holds_under_the_next_leader() -> None:
    queue = TransactionHarness(key_ordered=True)
    queue.reads_keys(7, 7, 8)
    queue.gets("ada", 9)
    queue.settles(ACCEPT, 0)
    queue.saves()
    queue.fails_over()
    queue.reads_keys(7, 7, 8)
    assert queue.gets("bob", 9) == [2], "0 is held by the transaction, and 1 waits for it"
    queue.ends(commit=False)
    assert queue.gets("bob", 9) == [0]


def test_in_a_strict_queue_all_later_messages_wait_for_the_transaction() -> None:
    queue = TransactionHarness(3, strict=True)
    assert queue.gets("ada", 1) == [0]
    queue.settles(ACCEPT, 0)
    assert queue.queue.available_count == 0
    assert queue.gets("ada", 9) == []
    queue.ends(commit=True)
    assert queue.gets("ada", 9) == [1, 2]


# --- [11] restarts


def test_the_next_leader_holds_the_messages_of_open_transactions() -> None:
    queue = TransactionHarness(3)
    queue.gets("ada", 3)
    queue.settles(ACCEPT, 1)
    queue.saves()
    queue.fails_over(3)
    assert queue.gets("bob", 9) == [0, 2]
    queue.ends(commit=True)
    queue.passes(10_000_000)
    assert queue.gets("bob", 9) == [0, 2]
    queue.check_counters()


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_may_end_before_the_next_leader_has_read_its_messages(commit: bool) -> None:
    queue = TransactionHarness(3)
    queue.gets("ada", 3)
    queue.settles(ACCEPT, 1)
    queue.saves()
    queue.fails_over()
    queue.ends(commit=commit)
    queue.reads(3 - queue.queue.next_offset)
    assert queue.gets("bob", 9) == ([0, 2] if commit else [0, 1, 2])
    queue.check_counters()


def test_a_retry_delay_counts_also_if_the_next_leader_has_not_read_the_message() -> None:
    queue = TransactionHarness(1)
    queue.gets("ada")
    queue.settles(RELEASE, 0, delay_ms=5_000)
    queue.saves()
    queue.fails_over()
    queue.ends(commit=True)
    queue.reads(1)
    assert queue.gets("bob") == []
    queue.passes(5_000)
    assert queue.gets("bob") == [0]


def test_a_committed_settlement_is_applied_by_the_next_leader_and_then_deleted() -> None:
    queue = TransactionHarness(5)
    queue.gets("ada", 5)
    queue.settles(ACCEPT + REJECT + RELEASE, 1, 3)
    queue.saves()
    queue.marked(commit=True)
    queue.fails_over(5)
    assert queue.settlements == [TXN]
    assert [(one.first, one.last) for one in queue.queue.take_dead_letters()] == [(2, 2)]
    assert queue.gets("bob", 9) == [0, 3, 4]
    queue.saves()
    assert queue.settlements == []
    queue.fails_over(5)
    assert [(one.first, one.last) for one in queue.queue.take_dead_letters()] == [(2, 2)], (
        "it was not copied yet"
    )
    assert queue.gets("cleo", 9) == [0, 3, 4]
    queue.check_counters()


def test_a_crash_between_the_marker_and_the_save_applies_the_settlement_again_and_no_more() -> None:
    queue = TransactionHarness(2)
    queue.gets("ada", 2)
    queue.settles(ACCEPT, 0)
    queue.saves()
    queue.ends(commit=True)
    assert queue.writes() is not None, "the write is in the log, and its writer dies before it hears of that"
    assert queue.settlements == [], "the record is deleted in the write that has the message as done"
    queue.fails_over(2)
    assert queue.gets("bob", 9) == [1]


def test_the_last_delivery_is_no_dead_letter_while_its_transaction_is_open() -> None:
    queue = TransactionHarness(2, delivery_limit=1)
    queue.gets("ada", 2)
    queue.settles(ACCEPT, 0)
    queue.says("ada", ACCEPT, 1)  # stores the chunk with the count of 0
    queue.saves()
    queue.fails_over(2)
    assert not queue.queue.take_dead_letters()
    queue.ends(commit=True)
    assert not queue.queue.take_dead_letters()
    assert queue.queue.start_offset == 2


def test_retention_ends_what_a_transaction_holds() -> None:
    queue = TransactionHarness(3)
    queue.gets("ada", 3)
    queue.settles(ACCEPT, 0, 1)
    assert queue.queue.trimmed(queue.now_ms, 2) == 2
    assert queue.queue.held_by_transactions == 0
    queue.says("ada", RELEASE, 2)
    assert queue.gets("bob") == [2]
    queue.ends(commit=False)
    assert queue.gets("cleo") == [], "what bob holds now is no part of the transaction"
    queue.saves()
    queue.fails_over(3)
    assert queue.gets("cleo", 9) == [2]


def test_people_see_the_transaction_as_the_holder() -> None:
    queue = TransactionHarness(1)
    queue.gets("ada")
    queue.settles(ACCEPT, 0)
    [run] = queue.queue.peek(0, 0)
    assert (run.member, run.until_ms, run.deliveries) == ("transaction billing", None, 1)


def test_a_record_of_a_settlement_is_read_as_it_was_written() -> None:
    made = TransactionSettlement(
        "ada",
        "bílling",
        (SettledRange(5, 9, AckKind.ACCEPT, 1), SettledRange(11, 11, AckKind.RELEASE, 255, delay_ms=0)),
    )
    assert decode_settlement(encode_settlement(made)) == made
