"""InitProducerId: epochs, fencing, continuing (KIP-360), and the end of a producer id's epochs."""

import pytest

from penstock.config import Limits, TransactionSettings
from penstock.errors import ErrorCode
from penstock.transactions import (
    NO_PRODUCER,
    Dialect,
    InitRequest,
    Producer,
    ProducerIdNeeded,
    ProducerResult,
    TransactionState,
)
from penstock.transactions.states import COMPLETE_ABORT, EMPTY, ONGOING, PREPARE_ABORT
from penstock.transactions.transaction import LAST_CLIENT_EPOCH, MAX_EPOCH
from tests.transactions.transaction_harness import (
    HOUR_MS,
    Client,
    TransactionHarness,
    at_epoch,
    complete,
    ongoing,
    ready,
)

BOTH = pytest.mark.parametrize("dialect", Dialect)


def test_a_new_id_gets_a_new_producer_id_with_epoch_0() -> None:
    harness, client = ready()
    assert client.producer == Producer(1000, 0)
    assert harness.transaction.timeout_ms == 60_000


def test_a_new_id_without_a_producer_id_at_hand_changes_nothing() -> None:
    harness = TransactionHarness()
    request = InitRequest(transactional_id="payments", timeout_ms=1)
    token = harness.asks(lambda now, token: harness.coordinator.init_producer_id(now, token, request))
    assert harness.replies[token] == ProducerIdNeeded()
    assert harness.durable == []
    assert harness.coordinator.describe("payments") is None


def test_a_known_id_keeps_its_producer_id_and_gets_the_next_epoch() -> None:
    harness, first = ready()
    second = Client(harness)
    second.inits()
    assert second.producer == Producer(first.producer.producer_id, 1)
    assert next(harness.producer_ids) == 1001, "only the new id took one"


def test_the_answer_waits_until_the_log_has_it() -> None:
    harness = TransactionHarness()
    harness.disk = "slow"
    client = Client(harness)
    assert client.inits() is None
    assert harness.coordinator.describe("payments") is None
    harness.flush()
    assert client.error is ErrorCode.NONE


def test_requests_during_a_write_are_told_to_come_again() -> None:
    harness, client = ready()
    harness.disk = "slow"
    other = Client(harness)
    assert other.inits() is None
    assert client.inits() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.adds() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert client.aborts() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.flush()
    assert other.error is ErrorCode.NONE


def test_two_clients_that_begin_with_one_new_id_do_not_get_one_producer() -> None:
    harness = TransactionHarness()
    harness.disk = "slow"
    first, second = Client(harness), Client(harness)
    assert first.inits() is None
    assert second.inits() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert second.adds() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert second.aborts() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.flush()
    first.adopts()
    assert second.inits() is None
    harness.flush()
    second.adopts()
    assert (first.producer, second.producer) == (Producer(1000, 0), Producer(1000, 1))


def test_an_id_whose_first_write_failed_is_forgotten() -> None:
    harness = TransactionHarness(limits=Limits(max_transactional_ids=1))
    harness.disk = "full"
    client = Client(harness)
    assert client.inits() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.disk = "prompt"
    assert Client(harness, transactional_id="another").inits() is ErrorCode.NONE


def test_a_write_that_failed_leaves_the_producer_as_it_was() -> None:
    harness, client = ready()
    harness.disk = "full"
    assert Client(harness).inits() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.disk = "prompt"
    assert client.adds() is ErrorCode.NONE


# --- limits


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_beyond_the_setting_is_refused(timeout_ms: int) -> None:
    assert Client(TransactionHarness()).inits(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_the_setting_allows_up_to_an_hour() -> None:
    harness = TransactionHarness(TransactionSettings(max_timeout_ms=HOUR_MS))
    assert Client(harness).inits(timeout_ms=HOUR_MS) is ErrorCode.NONE
    assert Client(harness).inits(timeout_ms=HOUR_MS + 1) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_an_empty_id_and_one_that_is_too_long_are_refused() -> None:
    harness = TransactionHarness(limits=Limits(max_transactional_id_bytes=4))
    assert Client(harness, transactional_id="").inits() is ErrorCode.INVALID_REQUEST
    assert Client(harness, transactional_id="äää").inits() is ErrorCode.INVALID_REQUEST
    assert Client(harness, transactional_id="ää").inits() is ErrorCode.NONE


def test_no_more_ids_than_the_limit() -> None:
    harness = TransactionHarness(limits=Limits(max_transactional_ids=2))
    for name in ("a", "b"):
        assert Client(harness, transactional_id=name).inits() is ErrorCode.NONE
    assert Client(harness, transactional_id="c").inits() is ErrorCode.POLICY_VIOLATION
    assert Client(harness, transactional_id="a").inits() is ErrorCode.NONE
    harness.passes(harness.settings.id_expiration_ms)
    assert Client(harness, transactional_id="c").inits() is ErrorCode.NONE


# --- another client takes over


@BOTH
def test_an_open_transaction_is_aborted_before_another_client_takes_over(dialect: Dialect) -> None:
    harness, client = ongoing(dialect)
    other = Client(harness, dialect)
    assert other.inits() is ErrorCode.CONCURRENT_TRANSACTIONS
    (markers,) = harness.sent
    assert not markers.commit
    assert markers.producer == Producer(client.producer.producer_id, 1), "it refuses all of the old epoch"
    assert other.inits() is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.marks()
    assert other.inits() is ErrorCode.NONE
    assert other.producer == Producer(client.producer.producer_id, 2)


@BOTH
def test_a_producer_that_was_fenced_changes_nothing(dialect: Dialect) -> None:
    harness, old = ongoing(dialect)
    other = Client(harness, dialect)
    other.inits()
    harness.marks()
    for _ in range(2):
        before = list(harness.durable)
        assert old.adds() is ErrorCode.PRODUCER_FENCED
        assert old.commits() is ErrorCode.PRODUCER_FENCED
        assert old.aborts() is ErrorCode.PRODUCER_FENCED
        assert old.continues() is ErrorCode.PRODUCER_FENCED
        assert harness.durable == before
        other.inits()
        other.adds()


def test_a_fenced_producer_cannot_abort_the_transaction_of_its_successor() -> None:
    harness, old = ready()
    new = Client(harness)
    new.inits()
    new.adds()
    assert old.continues() is ErrorCode.PRODUCER_FENCED
    assert harness.state is ONGOING


def test_a_failed_fence_is_tried_again_with_the_same_epoch() -> None:
    harness, client = ongoing()
    other = Client(harness)
    harness.disk = "full"
    assert other.inits() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.state is ONGOING
    harness.disk = "prompt"
    assert other.inits() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert harness.sent[0].producer.epoch == client.producer.epoch + 1


# --- continuing as the same producer (KIP-360)


@BOTH
def test_a_client_continues_with_the_next_epoch(dialect: Dialect) -> None:
    _, client = complete(dialect)
    before = client.producer
    assert client.continues() is ErrorCode.NONE
    assert client.producer == Producer(before.producer_id, before.epoch + 1)


def test_a_repeated_request_to_continue_gets_the_same_answer_as_often_as_it_comes() -> None:
    _harness, client = complete()
    first = client.producer
    for _ in range(3):
        assert client.inits(expected=first) is ErrorCode.NONE
        assert client.producer == Producer(first.producer_id, first.epoch + 1)


def test_a_repeated_request_to_continue_gets_the_same_answer_after_a_failover() -> None:
    harness, client = complete()
    first = client.producer
    client.continues()
    second = client.producer
    client.moves_to(harness.restarted())
    assert client.inits(expected=first) is ErrorCode.NONE
    assert client.producer == second


def test_a_late_repetition_does_not_touch_what_the_producer_did_since() -> None:
    harness, client = ready()
    first = client.producer
    client.continues()
    client.adds()
    late = Client(harness)
    assert late.inits(expected=first) is ErrorCode.PRODUCER_FENCED
    assert harness.state is ONGOING
    client.commits()
    harness.marks()
    assert late.inits(expected=first) is ErrorCode.PRODUCER_FENCED
    assert client.commits() is ErrorCode.NONE, "its own repetition is still recognised"


def test_a_client_that_continues_during_its_transaction_gets_the_next_epoch_after_the_abort() -> None:
    harness, client = ongoing()
    assert client.continues() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert harness.state is PREPARE_ABORT
    harness.marks()
    assert client.continues() is ErrorCode.NONE
    assert client.producer == Producer(1000, 1)
    assert client.adds() is ErrorCode.NONE


@pytest.mark.parametrize("other", [Producer(1000, 5), Producer(77, 0), Producer(77, LAST_CLIENT_EPOCH)])
def test_a_client_that_was_never_this_producer_is_fenced(other: Producer) -> None:
    harness, _ = ready()
    assert Client(harness).inits(expected=other) is ErrorCode.PRODUCER_FENCED


def test_a_client_whose_id_has_expired_continues_as_a_new_producer() -> None:
    harness, client = ready()
    harness.passes(harness.settings.id_expiration_ms)
    assert client.continues() is ErrorCode.NONE
    assert client.producer == Producer(1001, 0)


# --- the last epochs


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_ABORT])
def test_the_last_epoch_that_clients_get_is_32766(state: TransactionState) -> None:
    _harness, client = at_epoch(LAST_CLIENT_EPOCH - 1, Dialect.V1, state)
    client.inits()
    assert client.producer == Producer(500, 32_766)
    client.inits()
    assert client.producer == Producer(1000, 0)


def test_a_client_that_continues_past_the_last_epoch_gets_a_new_id_also_when_it_repeats() -> None:
    _harness, client = at_epoch(LAST_CLIENT_EPOCH, Dialect.V1, EMPTY)
    last = client.producer
    for _ in range(3):
        assert client.inits(expected=last) is ErrorCode.NONE
        assert client.producer == Producer(1000, 0)
        client.moves_to(client.harness.restarted())
    assert client.adds() is ErrorCode.NONE


@BOTH
def test_the_coordinator_can_fence_at_the_last_epoch(dialect: Dialect) -> None:
    harness, old = at_epoch(LAST_CLIENT_EPOCH, dialect, ONGOING)
    other = Client(harness, dialect)
    assert other.inits() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert harness.sent[0].producer == Producer(500, MAX_EPOCH)
    harness.marks()
    assert other.inits() is ErrorCode.NONE
    assert other.producer == Producer(1000, 0)
    assert old.adds() is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_after_a_timeout_at_the_last_epoch_the_client_continues_as_a_new_producer() -> None:
    harness, client = at_epoch(LAST_CLIENT_EPOCH, Dialect.V2, ONGOING)
    harness.passes(60_000)
    harness.marks()
    assert harness.transaction.producer == Producer(500, MAX_EPOCH)
    assert client.aborts() is ErrorCode.PRODUCER_FENCED, "there is no epoch to go on with"
    assert client.continues() is ErrorCode.NONE
    assert client.producer == Producer(1000, 0)


def test_no_request_may_use_the_coordinators_own_epoch() -> None:
    harness, client = at_epoch(LAST_CLIENT_EPOCH, Dialect.V2, ONGOING)
    harness.passes(60_000)
    harness.marks()
    client.producer = Producer(500, MAX_EPOCH)
    assert client.adds() is ErrorCode.PRODUCER_FENCED
    assert client.aborts() is ErrorCode.PRODUCER_FENCED
    assert client.continues() is ErrorCode.PRODUCER_FENCED


def test_a_refusal_names_no_producer() -> None:
    harness, _ = ready()
    client = Client(harness)
    client.inits(timeout_ms=0)
    assert client.result == ProducerResult(error=ErrorCode.INVALID_TRANSACTION_TIMEOUT, producer=NO_PRODUCER)
