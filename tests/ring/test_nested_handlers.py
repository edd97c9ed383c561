"""Requests from inside a handler, to the key of that handler."""

from penstock.ring import SLOTS
from tests.ring.clique_harness import LEASE_MS, TestHost, Worker, settle


def revoked_slot(host: TestHost, first: Worker) -> int:
    """A slot of the first worker that a second one should get, with a handler that runs."""
    first.join()
    for slot in range(SLOTS):
        first.core.start(slot, host.now_ms)
    second = Worker(host, "w2")
    second.join()
    settle(first, second)
    return next(slot for slot in range(SLOTS) if slot not in first.startable)


def test_a_handler_may_ask_its_own_key_while_the_slot_is_being_handed_over() -> None:
    host = TestHost()
    first = Worker(host, "w1")
    slot = revoked_slot(host, first)
    assert first.core.start(slot, host.now_ms) is None
    assert first.core.start_nested(slot, host.now_ms) == first.core.epoch_of(slot)
    assert not first.core.finish(slot), "the handler itself still runs"
    assert slot not in first.core.take_releasable()
    assert first.core.finish(slot)
    assert slot in first.core.take_releasable()


def test_no_request_enters_a_slot_where_nothing_runs() -> None:
    host = TestHost()
    first = Worker(host, "w1")
    first.join()
    assert first.core.start_nested(7, host.now_ms) is None


def test_no_request_enters_after_the_lease_has_ended() -> None:
    host = TestHost()
    first = Worker(host, "w1")
    first.join()
    first.core.start(7, host.now_ms)
    assert first.core.start_nested(7, host.now_ms + LEASE_MS) is None


def test_no_request_enters_a_slot_that_was_lost() -> None:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    second.join()
    first.core.start(7, host.now_ms)
    host.pass_time(LEASE_MS // 2)
    second.heartbeat()
    host.pass_time(LEASE_MS // 2)
    second.heartbeat()
    first.core.learned(host.newest_table(), host.now_ms)
    assert not first.core.is_member
    first.core.lease_ends_ms = host.now_ms + 1  # as if the news had come before the end of the lease
    assert first.core.start_nested(7, host.now_ms) is None
    assert not any(first.core.is_granted(slot) for slot in first.core.held)
