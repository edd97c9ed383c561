"""Attempts: an owner lends producers to its tasks, and one decision commits the winners and aborts all others."""

import pytest

from penstock.cluster import offsets_partition
from penstock.config import Limits
from penstock.effects import PERSIST_RECORDS_MAX, Persist
from penstock.errors import ErrorCode
from penstock.transactions import (
    LendRequest,
    Producer,
    ProducerIdNeeded,
    TransactionCoordinator,
    TransactionState,
)
from penstock.transactions.records import decode_key, decode_value, encode_value
from penstock.transactions.transaction import LAST_CLIENT_EPOCH, Transaction
from tests.transactions.owner_harness import OWNER, Owner
from tests.transactions.transaction_harness import (
    INVOICES,
    ORDERS,
    TIMEOUT_MS,
    Client,
    TransactionHarness,
)


@pytest.fixture
def owner() -> Owner:
    return Owner(TransactionHarness())


def test_the_winners_are_committed_and_all_others_are_aborted(owner: Owner) -> None:
    winners = [owner.prepares(0), owner.prepares(0, INVOICES)]
    loser = owner.prepares(0)
    decided = owner.commits(0, winners)
    assert decided is not None
    assert (decided.error, decided.was_committed) == (ErrorCode.NONE, False)
    assert owner.outcomes() == {winner.producer_id: True for winner in winners} | {loser.producer_id: False}


def test_a_decision_is_one_write(owner: Owner) -> None:
    """So after a crash the log has all of it, or nothing."""
    winner, loser = owner.prepares(0), owner.prepares(0)
    owner.harness.disk = "slow"
    assert owner.commits(0, [winner]) is None
    [write] = owner.harness.in_flight
    states = {decode_key(key): decode_value(value or b"").state for key, value in write.records}
    assert states == {
        OWNER: TransactionState.EMPTY,
        owner.core.id_of(OWNER, winner): TransactionState.PREPARE_COMMIT,
        owner.core.id_of(OWNER, loser): TransactionState.PREPARE_ABORT,
    }
    assert not owner.harness.sent, "no marker before the log has the decision"


def test_a_decision_that_could_not_be_written_changes_nothing(owner: Owner) -> None:
    winner = owner.prepares(0)
    owner.harness.disk = "full"
    decided = owner.commits(0, [winner])
    assert decided is not None
    assert decided.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not owner.harness.sent
    owner.harness.disk = "prompt"
    assert owner.commits(0, [winner]) is not None
    assert owner.outcomes() == {winner.producer_id: True}


def test_a_repeated_decision_is_answered_as_committed_before(owner: Owner) -> None:
    winner = owner.prepares(0)
    owner.commits(0, [winner])
    for harness in (owner.harness, owner.harness.restarted()):
        again = Owner(harness).commits(0, [winner])
        assert again is not None
        assert (again.error, again.was_committed) == (ErrorCode.NONE, True)


def test_the_attempts_of_a_replay_are_aborted_by_the_repeated_decision(owner: Owner) -> None:
    """Its tasks have got their producers before a decision of the driver that was replaced."""
    first, replayed = owner.prepares(0), owner.prepares(0)
    late = owner.lends(0)
    owner.commits(0, [first])
    assert owner.outcomes()[replayed.producer_id] is False
    again = owner.commits(0, [replayed])
    assert again is not None
    assert again.was_committed
    assert owner.outcomes() == {first.producer_id: True, replayed.producer_id: False}
    assert owner.writes(late) is ErrorCode.PRODUCER_FENCED


def test_a_task_of_a_committed_version_is_told_so_and_gets_no_producer(owner: Owner) -> None:
    owner.commits(3, [owner.prepares(3)])
    for version in (0, 3):
        result = owner.asks_to_lend(version)
        assert result is not None
        assert result.is_committed
    assert owner.lends(4)


def test_a_decision_fails_whole_if_a_winner_is_not_open(owner: Owner) -> None:
    good, unused = owner.prepares(0), owner.lends(0)
    old = Producer(good.producer_id, good.epoch - 1)
    other_version = owner.prepares(1)
    for bad in (unused, old, other_version, Producer(77, 0)):
        decided = owner.commits(0, [good, bad])
        assert decided is not None
        assert decided.error is ErrorCode.INVALID_TXN_STATE
        assert not owner.harness.sent
    assert owner.commits(0, [good]) is not None
    assert owner.outcomes() == {good.producer_id: True}


def test_a_late_decision_leaves_the_attempts_of_later_versions_alone(owner: Owner) -> None:
    first = owner.prepares(0)
    owner.commits(0, [first])
    later = owner.prepares(1)
    owner.commits(0, [first])
    owner.rolls_back(0)
    owner.commits(1, [later])
    assert owner.outcomes()[later.producer_id] is True


def test_a_rollback_aborts_all_attempts_of_the_version(owner: Owner) -> None:
    attempts = [owner.prepares(0), owner.prepares(0)]
    rolled_back = owner.rolls_back(0)
    assert rolled_back is not None
    assert not rolled_back.was_committed
    assert owner.outcomes() == dict.fromkeys((one.producer_id for one in attempts), False)
    assert owner.lends(0), "the version can be written again"


def test_attempts_are_lent_again_under_another_epoch_when_their_markers_are_written(owner: Owner) -> None:
    first = owner.prepares(0)
    owner.commits(0, [first])
    owner.marks_all()
    second = owner.lends(1)
    assert second.producer_id == first.producer_id
    assert second.epoch > first.epoch + 1, "the markers have had the epoch in between"
    assert owner.writes(first) is ErrorCode.PRODUCER_FENCED


def test_an_attempt_whose_markers_are_missing_is_not_lent(owner: Owner) -> None:
    first = owner.prepares(0)
    owner.commits(0, [first])
    assert owner.lends(1).producer_id != first.producer_id


def test_an_attempt_that_is_lent_is_never_lent_twice_also_not_after_a_crash(owner: Owner) -> None:
    lent = {owner.lends(0) for _ in range(3)}
    after = Owner(owner.harness.restarted())
    lent |= {after.lends(0) for _ in range(3)}
    assert len({one.producer_id for one in lent}) == 6


def test_an_attempt_with_the_last_epoch_gets_another_producer_id(owner: Owner) -> None:
    value = Transaction(
        producer_id=500,
        epoch=LAST_CLIENT_EPOCH,
        timeout_ms=TIMEOUT_MS,
        state=TransactionState.ONGOING,
        partitions=frozenset({ORDERS}),
        updated_ms=1_000_000,
        start_ms=1_000_000,
        owner=OWNER,
        version=0,
    )
    owner = Owner(owner.harness.stores(value, f"{OWNER}.attempt-0-0"))
    decided = owner.commits(0, [Producer(500, LAST_CLIENT_EPOCH)])
    assert decided is not None
    assert decided.error is ErrorCode.NONE
    owner.marks_all()
    lent = owner.lends(1)
    assert lent.producer_id != 500
    assert lent.epoch == 0
    assert owner.core.id_of(OWNER, lent) == f"{OWNER}.attempt-0-0"


def test_attempts_stay_open_while_their_owner_gives_signs_of_life(owner: Owner) -> None:
    winner = owner.prepares(0)
    for _ in range(5):
        owner.harness.passes(TIMEOUT_MS - 1)
        assert owner.renews() is ErrorCode.NONE
    owner.harness.passes(TIMEOUT_MS - 1)
    owner.prepares(0)  # a sign of life, too
    owner.harness.passes(TIMEOUT_MS - 1)
    owner.commits(0, [winner])
    assert owner.outcomes()[winner.producer_id] is True


def test_attempts_of_an_owner_that_gives_no_sign_of_life_are_aborted(owner: Owner) -> None:
    producers = [owner.prepares(0), owner.lends(0)]
    owner.harness.passes(TIMEOUT_MS)
    assert owner.outcomes() == {producers[0].producer_id: False}
    assert owner.writes(producers[1]) is ErrorCode.PRODUCER_FENCED
    assert owner.renews() is ErrorCode.INVALID_TXN_STATE
    decided = owner.commits(0, producers[:1])
    assert decided is not None
    assert decided.error is ErrorCode.INVALID_TXN_STATE


def test_the_next_coordinator_begins_to_count_when_it_has_loaded(owner: Owner) -> None:
    winner = owner.prepares(0)
    owner.harness.passes(TIMEOUT_MS - 1)
    after = Owner(owner.harness.restarted())
    after.harness.passes(TIMEOUT_MS - 1)
    assert not after.harness.sent
    after.harness.passes(1)
    assert after.outcomes() == {winner.producer_id: False}


def test_attempts_of_a_lost_owner_are_aborted_later_if_the_disk_was_full(owner: Owner) -> None:
    lost = owner.prepares(0)
    owner.harness.disk = "full"
    owner.harness.passes(TIMEOUT_MS)
    assert not owner.harness.sent
    owner.harness.disk = "prompt"
    owner.harness.passes(1_000)
    assert owner.outcomes() == {lost.producer_id: False}


def test_a_decision_waits_for_an_attempt_that_is_just_being_changed(owner: Owner) -> None:
    winner = owner.prepares(0)
    owner.harness.disk = "slow"
    assert owner.asks_to_lend(0) is None
    decided = owner.commits(0, [winner])
    assert decided is not None
    assert decided.error is ErrorCode.CONCURRENT_TRANSACTIONS
    owner.harness.flush()
    assert owner.core.describe(decided.busy) is not None
    owner.commits(0, [winner])
    owner.harness.flush()
    assert owner.outcomes() == {winner.producer_id: True}


def test_nobody_but_the_owner_commits_an_attempt(owner: Owner) -> None:
    producer = owner.prepares(0)
    stranger = Client(owner.harness, transactional_id=owner.core.id_of(OWNER, producer))
    stranger.producer = producer
    assert stranger.commits() is ErrorCode.INVALID_TXN_STATE
    assert not owner.harness.sent


def test_an_operator_aborts_an_attempt_and_its_version_fails(owner: Owner) -> None:
    producer = owner.prepares(0)
    name = owner.core.id_of(OWNER, producer)
    assert owner.harness.aborts(name) is ErrorCode.NONE
    owner.marks_all()
    decided = owner.commits(0, [producer])
    assert decided is not None
    assert decided.error is ErrorCode.INVALID_TXN_STATE
    assert owner.core.id_of(OWNER, owner.lends(0)) == name, "it is free again"


def test_the_owner_may_have_a_producer_of_its_own_beside(owner: Owner) -> None:
    client = Client(owner.harness, transactional_id=OWNER)
    assert client.inits() is ErrorCode.NONE
    assert client.adds() is ErrorCode.NONE
    winner = owner.prepares(0)
    owner.commits(0, [winner])
    assert client.commits() is ErrorCode.NONE
    assert owner.outcomes() == {winner.producer_id: True, client.producer.producer_id: True}


def test_an_attempt_cannot_have_attempts(owner: Owner) -> None:
    name = owner.core.id_of(OWNER, owner.lends(0))
    result = Owner(owner.harness, name).asks_to_lend(0)
    assert result is not None
    assert result.error is ErrorCode.INVALID_REQUEST


def test_attempts_belong_to_the_partition_of_their_owner() -> None:
    core = TransactionCoordinator(partition_of=lambda name: offsets_partition(name, 50))
    for at in range(20):
        owner, request = f"spark-{at}", LendRequest(owner=f"spark-{at}", version=0, timeout_ms=1)
        [needed] = core.lend(0, at, request)
        assert getattr(needed, "result", None) == ProducerIdNeeded()
        [write] = core.lend(0, at, LendRequest(owner=owner, version=0, timeout_ms=1, new_producer_id=at))
        assert isinstance(write, Persist)
        [(key, _)] = write.records
        assert offsets_partition(decode_key(key), 50) == offsets_partition(owner, 50)
        core.persisted(0, write.id, True)


def test_an_owner_has_no_more_attempts_than_allowed() -> None:
    owner = Owner(TransactionHarness(limits=Limits(max_attempts=2)))
    first, _ = owner.prepares(0), owner.lends(0)
    refused = owner.asks_to_lend(0)
    assert refused is not None
    assert refused.error is ErrorCode.POLICY_VIOLATION
    owner.commits(0, [first])
    owner.lends(1)
    busy = owner.asks_to_lend(1)
    assert busy is not None
    assert busy.error is ErrorCode.CONCURRENT_TRANSACTIONS, "one is free as soon as its markers are written"
    assert busy.busy == owner.core.id_of(OWNER, first)


def test_the_most_attempts_are_decided_in_one_write() -> None:
    most = 998
    owner = Owner(TransactionHarness(limits=Limits(max_attempts=most)))
    winners = [owner.prepares(0) for _ in range(most)]
    owner.harness.disk = "slow"
    owner.commits(0, winners)
    [write] = owner.harness.in_flight
    assert len(write.records) == most + 1
    assert most + 2 == PERSIST_RECORDS_MAX, "the owner may have a completion to write, too"


def test_the_attempts_of_an_owner_have_no_more_partitions_than_allowed() -> None:
    owner = Owner(TransactionHarness(limits=Limits(max_attempt_partitions=3)))
    first, second = owner.lends(0), owner.lends(0)
    assert owner.writes(first, ORDERS, INVOICES) is ErrorCode.NONE
    assert owner.writes(second, ORDERS, INVOICES) is ErrorCode.POLICY_VIOLATION
    assert owner.writes(second, ORDERS) is ErrorCode.NONE
    owner.rolls_back(0)
    owner.marks_all()
    assert owner.writes(owner.lends(0), ORDERS, INVOICES) is ErrorCode.NONE


def test_a_name_that_leaves_no_room_for_those_of_attempts_is_refused() -> None:
    harness = TransactionHarness(limits=Limits(max_transactional_id_bytes=40))
    result = Owner(harness, "123456789").asks_to_lend(0)
    assert result is not None
    assert result.error is ErrorCode.INVALID_REQUEST
    assert Owner(harness, "12345678").lends(0)


def test_a_timeout_above_the_highest_is_refused(owner: Owner) -> None:
    result = owner.asks_to_lend(0, owner.harness.settings.max_timeout_ms + 1)
    assert result is not None
    assert result.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_records_of_attempts_are_what_kafka_stores_with_two_more_tags(owner: Owner) -> None:
    producer = owner.prepares(7)
    [*_, stored] = owner.harness.stored(owner.core.id_of(OWNER, producer))
    assert (stored.owner, stored.version) == (OWNER, 7)
    assert decode_value(encode_value(stored)) == stored


def test_idle_attempts_expire_like_other_ids(owner: Owner) -> None:
    producer = owner.prepares(0)
    name = owner.core.id_of(OWNER, producer)
    owner.commits(0, [producer])
    owner.marks_all()
    owner.harness.passes(owner.harness.settings.id_expiration_ms + 1)
    assert owner.core.describe(name) is None
    assert owner.lends(1).producer_id != producer.producer_id
