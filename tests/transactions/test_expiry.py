"""Transactional ids that no producer uses are forgotten, and those with a transaction never are."""

import sys

from penstock.config import Limits, TransactionSettings
from penstock.effects import PERSIST_RECORDS_MAX
from penstock.errors import ErrorCode
from penstock.transactions import Dialect
from penstock.transactions.states import COMPLETE_COMMIT, PREPARE_COMMIT
from penstock.transactions.store import COMPLETION_DELAY_MS, WRITE_RETRY_MS
from tests.transactions.transaction_harness import HOUR_MS, ID, Client, TransactionHarness, complete, ongoing

DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS


def names(harness: TransactionHarness) -> list[str]:
    return sorted(each.transactional_id for each in harness.coordinator.list_transactions(harness.now_ms))


def test_an_id_expires_a_week_after_its_last_change() -> None:
    harness, client = complete()
    harness.passes(WEEK_MS - COMPLETION_DELAY_MS - 1)
    client.adds()
    client.commits()
    harness.reports()
    harness.passes(WEEK_MS - 1)
    assert harness.state is COMPLETE_COMMIT
    harness.passes(1)
    assert names(harness) == []
    assert harness.coordinator.next_deadline_ms is None
    assert client.adds() is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_an_id_that_expired_is_not_in_the_log_any_more() -> None:
    harness, _ = complete()
    harness.passes(WEEK_MS)
    assert names(harness.restarted()) == []


def test_the_time_counts_from_the_last_change_also_after_a_failover() -> None:
    harness, _ = complete()
    Client(harness, transactional_id="first").inits()
    harness.passes(DAY_MS)
    Client(harness, transactional_id="second").inits()
    harness.passes(WEEK_MS - DAY_MS - COMPLETION_DELAY_MS - 1)
    harness = harness.restarted()
    assert names(harness) == ["first", ID, "second"]
    harness.passes(1)
    assert names(harness) == ["first", "second"]
    harness.passes(COMPLETION_DELAY_MS)
    assert names(harness) == ["second"]
    harness.passes(DAY_MS)
    assert names(harness) == []


def test_an_id_with_a_decided_transaction_does_not_expire() -> None:
    harness, client = ongoing()
    client.commits()
    harness.passes(2 * WEEK_MS)
    assert harness.state is PREPARE_COMMIT
    harness.marks()
    assert harness.state is COMPLETE_COMMIT


def test_an_id_that_comes_back_while_it_expires_is_told_to_come_again() -> None:
    harness, client = complete()
    harness.disk = "slow"
    harness.passes(WEEK_MS)
    assert client.inits() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.adds() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert names(harness) == []
    assert harness.coordinator.describe(ID) is None
    harness.disk = "prompt"
    harness.flush()
    assert client.inits() is ErrorCode.NONE
    assert client.producer.epoch == 0


def test_a_deletion_that_could_not_be_written_is_tried_again() -> None:
    harness, _client = complete()
    Client(harness, transactional_id="other").inits()
    harness.disk = "full"
    harness.passes(WEEK_MS + 5 * WRITE_RETRY_MS)
    assert names(harness) == ["other", ID]
    assert harness.coordinator.describe(ID) is not None
    harness.disk = "prompt"
    harness.passes(WRITE_RETRY_MS)
    assert names(harness) == []


def test_many_ids_expire_in_writes_of_bounded_size() -> None:
    harness = TransactionHarness(TransactionSettings(id_expiration_ms=1000))
    count = PERSIST_RECORDS_MAX + 5
    for number in range(count):
        Client(harness, transactional_id=f"id-{number}").inits()
    harness.disk = "slow"
    harness.passes(1000)
    assert [len(write.records) for write in harness.in_flight] == [PERSIST_RECORDS_MAX]
    harness.disk = "prompt"
    harness.flush()
    harness.passes(0)
    assert names(harness) == []
    assert len(harness.durable) == 2 * count


def test_an_idle_id_takes_no_more_memory_after_many_transactions() -> None:
    harness, client = complete(Dialect.V2)

    def size() -> int:
        each = harness.coordinator._store.find(ID)
        assert each is not None
        assert each.committed is not None
        return sys.getsizeof(each.committed) + sys.getsizeof(each.committed.partitions) + len(each.unmarked)

    before, timers = size(), len(harness.coordinator._store.timers)
    for _ in range(100):
        client.adds()
        client.commits()
        harness.marks()
    assert (size(), len(harness.coordinator._store.timers)) == (before, timers)


def test_an_idle_id_has_no_timer_of_its_own() -> None:
    harness = TransactionHarness(limits=Limits(max_transactional_ids=1000))
    for number in range(50):
        Client(harness, transactional_id=f"id-{number}").inits()
    assert len(harness.coordinator._store.timers) == 1
