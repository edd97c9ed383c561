"""Transcripts of cliques: workers join, hand slots over, leave, die and come back."""

from penstock.ring import SLOTS, HeartbeatStatus
from tests.ring.clique_harness import LEASE_MS, START_MS, TestHost, Worker, settle


def test_the_first_worker_owns_everything_once_it_knows_the_table() -> None:
    host = TestHost()
    first = Worker(host, "w1")
    assert first.heartbeat().status is HeartbeatStatus.INTRODUCED
    assert not first.startable
    assert first.heartbeat().status is HeartbeatStatus.OK
    assert len(first.startable) == SLOTS


def test_a_newcomer_gets_a_slot_when_its_owner_has_let_go_of_it() -> None:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    second.join()
    assert not second.startable
    assert len(first.startable) == SLOTS, "it has not been told yet"
    first.heartbeat()
    assert len(first.startable) == SLOTS // 2
    second.heartbeat()
    assert not second.startable, "the first one has not reported yet that it let go"
    first.heartbeat()
    second.heartbeat()
    assert len(second.startable) == SLOTS // 2
    assert not first.startable & second.startable


def test_a_slot_is_handed_over_when_its_last_handler_has_finished() -> None:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    for slot in range(SLOTS):
        first.core.start(slot, host.now_ms)
    second.join()
    settle(first, second)
    assert not second.startable
    moving = sorted(set(range(SLOTS)) - first.startable)
    first.core.finish(moving[0])
    first.work()
    settle(first, second)
    assert second.startable == {moving[0]}


def test_slot_epochs_grow_from_owner_to_owner() -> None:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    epochs = {slot: first.core.may_start(slot, host.now_ms) for slot in range(SLOTS)}
    second.join()
    settle(first, second)
    for slot in second.startable:
        assert second.core.may_start(slot, host.now_ms) > epochs[slot]
    for slot in first.startable:
        assert first.core.may_start(slot, host.now_ms) == epochs[slot]


def test_a_worker_that_leaves_hands_over_without_waiting_for_a_lease() -> None:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    second.join()
    settle(first, second)
    first.core.leave(host.now_ms)
    while not first.core.has_left:
        first.heartbeat()
    second.heartbeat()
    assert len(second.startable) == SLOTS
    assert host.now_ms == START_MS


def test_a_worker_that_dies_loses_its_slots_after_one_lease_and_cannot_use_them_any_more() -> None:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    second.join()
    settle(first, second)
    assert first.startable
    for _ in range(5):
        host.pass_time(LEASE_MS // 4)
        second.heartbeat()
    assert not first.startable
    assert len(second.startable) == SLOTS
    assert first.heartbeat().status is HeartbeatStatus.FENCED
    first.join()
    settle(first, second)
    assert len(first.startable) == SLOTS // 2


def test_the_same_name_gets_the_same_slots_back() -> None:
    host = TestHost()
    first, second, third = (Worker(host, name) for name in ("w1", "w2", "w3"))
    for worker in (first, second, third):
        worker.join()
        settle(*(each for each in (first, second, third) if each.core.is_member))
    mine = second.startable
    second.core.leave(host.now_ms)
    while not second.core.has_left:
        second.heartbeat()
    settle(first, third)
    again = Worker(host, "w2")
    again.join()
    settle(first, third, again)
    assert again.startable == mine


def test_a_new_incarnation_waits_for_the_lease_of_the_old_one_and_takes_its_place() -> None:
    host = TestHost()
    other, old = Worker(host, "w1"), Worker(host, "w2")
    other.join()
    old.join()
    settle(other, old)
    mine = old.startable
    new = Worker(host, "w2")
    reply = new.heartbeat()
    assert reply.status is HeartbeatStatus.NAME_TAKEN
    assert reply.retry_ms <= LEASE_MS
    epoch_before = host.newest_table().epoch
    while not new.core.is_member:
        host.pass_time(LEASE_MS // 8)
        assert not new.core.is_member or not old.startable
        new.heartbeat()
        other.heartbeat()
    assert new.startable == mine
    assert host.newest_table().epoch == epoch_before + 1, "the slots did not move to another worker and back"


def test_an_owner_is_not_replaced_while_its_lease_lasts_whatever_happens_to_the_coordinator() -> None:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    second.join()
    settle(first, second)
    for _ in range(20):
        host.fail_over()
        host.pass_time(LEASE_MS // 5)
        first.heartbeat()
        second.heartbeat()
        assert len(first.startable) == len(second.startable) == SLOTS // 2
