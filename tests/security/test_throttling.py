"""How long clients are throttled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.quotas import DEFAULT_ENTITY, QuotaEntity, QuotaKind, QuotaTable
from penstock.security.throttling import (
    MAX_REQUEST_THROTTLE_MS,
    MAX_THROTTLE_MS,
    WINDOW_MS,
    WINDOWS,
    ClientQuotas,
    TokenBucket,
    WindowedRate,
    request_share,
)

PRODUCE = QuotaKind.PRODUCER_BYTE_RATE
START = 1_000_000


def quotas(entity=None, kind=PRODUCE, limit=1_000.0, **settings):
    return ClientQuotas(QuotaTable({entity or QuotaEntity("alice"): {kind: limit}}), **settings)


# --- the windowed rate


def test_a_burst_is_averaged_over_at_least_ten_windows() -> None:
    rate = WindowedRate()
    rate.record(10_000, START)
    assert rate.covered_ms(START) == 10_000
    assert rate.per_second(START) == 1_000
    assert rate.throttle_ms(1_000, START) == 0


def test_the_throttle_time_brings_the_average_back_to_the_limit() -> None:
    """Kafka's example: (rate - limit) / limit * window."""
    rate = WindowedRate()
    rate.record(15_000, START)
    assert rate.throttle_ms(1_000, START) == 5_000
    assert rate.throttle_ms(1_000, START + 500) == 4_500
    assert rate.per_second(START + 5_000) == 1_500, "the first windows are counted as if they were whole"


@pytest.mark.parametrize("limit", [1.0, 5e-324])
def test_the_throttle_time_is_bounded_however_small_the_limit(limit: float) -> None:
    rate, bucket = WindowedRate(), TokenBucket(limit, START)
    rate.record(100_000_000, START)
    bucket.take(100_000_000, limit, START)
    assert rate.throttle_ms(limit, START) == MAX_THROTTLE_MS
    assert bucket.throttle_ms(limit, START) == MAX_THROTTLE_MS < 2**31


def test_a_window_is_forgotten_after_eleven_seconds() -> None:
    rate = WindowedRate()
    rate.record(20_000, START)
    rate.record(1_000, START + WINDOW_MS)
    assert rate.per_second(START + WINDOWS * WINDOW_MS - 1) == pytest.approx(21_000 / 10.999)
    assert rate.per_second(START + WINDOWS * WINDOW_MS) == 100
    assert rate.per_second(START + 100 * WINDOW_MS) == 0


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 10_000)), max_size=60))
def test_the_rate_is_the_sum_of_recent_values_over_the_time_that_they_cover(steps) -> None:
    rate, now_ms, recorded = WindowedRate(), START, []
    for pause_ms, value in steps:
        now_ms += pause_ms
        rate.record(value, now_ms)
        recorded.append((now_ms, value))
    covered_ms = rate.covered_ms(now_ms)
    assert (WINDOWS - 1) * WINDOW_MS <= covered_ms <= WINDOWS * WINDOW_MS
    surely = sum(value for at_ms, value in recorded if now_ms - at_ms < (WINDOWS - 1) * WINDOW_MS)
    at_most = sum(value for at_ms, value in recorded if now_ms - at_ms < WINDOWS * WINDOW_MS)
    total = rate.per_second(now_ms) * covered_ms / 1000
    assert surely - 0.01 <= total <= at_most + 0.01
    assert len(rate._samples) <= WINDOWS


# --- clients


def test_a_client_without_a_quota_is_never_throttled_and_not_tracked() -> None:
    clients = quotas()
    assert clients.record(PRODUCE, "bob", "app", 10**9, START) == 0
    assert clients.most_at_once(PRODUCE, "bob", "app") is None
    assert clients.tracked == 0


def test_clients_of_a_user_share_the_users_quota() -> None:
    clients = quotas()
    assert clients.record(PRODUCE, "alice", "one", 10_000, START) == 0
    assert clients.record(PRODUCE, "alice", "two", 10_000, START) == 10_000


def test_the_default_quota_is_not_shared_by_users() -> None:
    clients = quotas(QuotaEntity(DEFAULT_ENTITY))
    assert clients.record(PRODUCE, "alice", "one", 10_000, START) == 0
    assert clients.record(PRODUCE, "bob", "one", 10_000, START) == 0


def test_a_new_limit_counts_what_was_used_before() -> None:
    clients = quotas()
    clients.record(PRODUCE, "alice", "app", 10_000, START)
    clients.table = clients.table.changed(QuotaEntity("alice"), {PRODUCE: 500.0})
    assert clients.record(PRODUCE, "alice", "app", 0, START) == 10_000


def test_what_was_not_sent_is_taken_back() -> None:
    clients = quotas()
    assert clients.record(PRODUCE, "alice", "app", 20_000, START) == 10_000
    clients.unrecord(PRODUCE, "alice", "app", 20_000, START)
    assert clients.record(PRODUCE, "alice", "app", 1, START) == 0


def test_the_most_at_once_does_not_exceed_the_quota_by_itself() -> None:
    clients = quotas()
    most = clients.most_at_once(PRODUCE, "alice", "app")
    assert most == 10_000
    assert clients.record(PRODUCE, "alice", "app", most, START) == 0


def test_request_time_is_a_share_of_one_thread_and_throttled_for_a_second_at_most() -> None:
    clients = quotas(kind=QuotaKind.REQUEST_PERCENTAGE, limit=50.0)
    kind = QuotaKind.REQUEST_PERCENTAGE
    assert clients.record(kind, "alice", "app", request_share(5_000), START) == 0, "half of ten seconds"
    assert clients.record(kind, "alice", "app", request_share(10), START) == 20
    assert clients.record(kind, "alice", "app", request_share(10_000), START) == MAX_REQUEST_THROTTLE_MS


def test_the_number_of_tracked_clients_is_bounded_and_the_idle_ones_are_forgotten() -> None:
    clients = quotas(QuotaEntity(None, DEFAULT_ENTITY), max_tracked=3)
    for name in ("a", "b", "c"):
        assert clients.record(PRODUCE, "alice", name, 20_000, START) == 10_000
    assert clients.record(PRODUCE, "alice", "a", 0, START) == 10_000
    clients.record(PRODUCE, "alice", "d", 1, START)
    assert clients.tracked == 3
    assert clients.record(PRODUCE, "alice", "a", 0, START) == 10_000, "it was used later than b"
    assert clients.record(PRODUCE, "alice", "b", 0, START) == 0


# --- connections


def test_connections_of_an_address_are_throttled_and_then_not_counted() -> None:
    clients = quotas(QuotaEntity(ip="10.0.0.1"), QuotaKind.CONNECTION_CREATION_RATE, 1.0)
    assert [clients.record_connection("10.0.0.1", START) for _ in range(10)] == [0] * 10
    assert clients.record_connection("10.0.0.1", START) == 1_000
    assert clients.record_connection("10.0.0.1", START) == 1_000, "the attempt before did not count"
    assert clients.record_connection("10.0.0.2", START) == 0
    assert clients.record_connection("10.0.0.1", START + WINDOWS * WINDOW_MS) == 0


# --- controller mutations


def mutations(limit=2.0, **settings):
    return quotas(kind=QuotaKind.CONTROLLER_MUTATION_RATE, limit=limit, **settings)


def test_a_full_bucket_holds_eleven_seconds_and_may_go_into_debt_once() -> None:
    clients = mutations()
    assert clients.record_mutations("alice", "app", 100, START, strict=True) == (True, 0)
    assert clients.record_mutations("alice", "app", 1, START, strict=True) == (False, 39_000)
    assert clients.record_mutations("alice", "app", 1, START + 38_000, strict=True) == (False, 1_000)
    assert clients.record_mutations("alice", "app", 1, START + 39_000, strict=True) == (True, 0)


def test_older_requests_are_admitted_and_throttled_instead() -> None:
    clients = mutations()
    assert clients.record_mutations("alice", "app", 22, START, strict=False) == (True, 0)
    assert clients.record_mutations("alice", "app", 10, START, strict=False) == (True, 5_000)
    assert clients.record_mutations("alice", "app", 10, START, strict=True) == (False, 5_000)


def test_mutations_without_a_quota_are_admitted() -> None:
    assert mutations().record_mutations("bob", "app", 10**6, START, strict=True) == (True, 0)


def test_the_number_of_buckets_is_bounded() -> None:
    clients = ClientQuotas(
        QuotaTable({QuotaEntity(DEFAULT_ENTITY): {QuotaKind.CONTROLLER_MUTATION_RATE: 1.0}}), max_tracked=2
    )
    for name in ("a", "b", "c"):
        clients.record_mutations(name, "app", 1, START, strict=True)
    assert clients.tracked == 2


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 50)), max_size=40))
def test_over_time_a_bucket_grants_the_limit_and_one_burst(steps) -> None:
    bucket, now_ms, taken, largest = TokenBucket(2.0, START), START, 0, 0
    for pause_ms, amount in steps:
        now_ms += pause_ms
        if bucket.throttle_ms(2.0, now_ms) == 0:
            bucket.take(amount, 2.0, now_ms)
            taken, largest = taken + amount, max(largest, amount)
    assert taken <= 22 + 2.0 * (now_ms - START) / 1000 + largest + 0.01
