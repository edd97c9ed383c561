"""The leader of a partition serves the owner of a slot, and refuses everybody else."""

from penstock.ring import SLOTS
from penstock.ring.owner_fence import OwnerFence
from tests.ring.clique_harness import LEASE_MS, TestHost, Worker, settle


def _two_workers() -> tuple[TestHost, Worker, Worker, OwnerFence]:
    host = TestHost()
    first, second = Worker(host, "w1"), Worker(host, "w2")
    first.join()
    second.join()
    settle(first, second)
    fence = OwnerFence()
    fence.take(host.newest_table())
    return host, first, second, fence


def test_messages_go_to_the_owner_of_their_slot_only() -> None:
    _, first, second, fence = _two_workers()
    assert fence.deliverable("w1", first.core.member_id).keys() == first.startable
    assert fence.deliverable("w2", second.core.member_id).keys() == second.startable
    assert not fence.deliverable("w1", "another incarnation")
    assert not fence.deliverable("w2", first.core.member_id)


def test_a_slot_that_is_handed_over_gets_no_new_messages_and_its_owner_may_still_settle_the_old_ones() -> (
    None
):
    host, first, _, fence = _two_workers()
    before = fence.deliverable("w1", first.core.member_id)
    Worker(host, "w3").join()
    assert fence.take(host.newest_table()) == {}
    now = fence.deliverable("w1", first.core.member_id)
    handed_over = before.keys() - now.keys()
    assert handed_over
    assert all(fence.may_settle(first.core.member_id, slot, before[slot]) for slot in handed_over)


def test_an_owner_that_was_removed_loses_its_leases_and_cannot_settle() -> None:
    host, first, second, fence = _two_workers()
    slots = fence.deliverable("w1", first.core.member_id)
    for _ in range(5):
        host.pass_time(LEASE_MS // 4)
        second.heartbeat()
    lost = fence.take(host.newest_table())
    assert lost == {slot: (first.core.member_id, epoch) for slot, epoch in slots.items()}
    assert not any(fence.may_settle(first.core.member_id, slot, epoch) for slot, epoch in slots.items())
    assert len(fence.deliverable("w2", second.core.member_id)) == SLOTS


def test_an_older_table_changes_nothing() -> None:
    host, first, _, fence = _two_workers()
    old = host.newest_table()
    Worker(host, "w3").join()
    fence.take(host.newest_table())
    now = fence.deliverable("w1", first.core.member_id)
    assert fence.take(old) == {}
    assert fence.deliverable("w1", first.core.member_id) == now


def test_a_slot_that_its_owner_gets_back_in_the_middle_of_a_handover_has_a_new_epoch() -> None:
    host, first, second, fence = _two_workers()
    owned = fence.deliverable("w1", first.core.member_id)
    third = Worker(host, "w3")
    third.join()
    fence.take(host.newest_table())
    handed_over = owned.keys() - fence.deliverable("w1", first.core.member_id).keys()
    third.core.leave(host.now_ms)
    while not third.core.has_left:
        third.heartbeat()
    assert fence.take(host.newest_table()).keys() >= handed_over
    for slot in handed_over:
        assert not fence.may_settle(first.core.member_id, slot, owned[slot])
    settle(first, second)
    now = fence.deliverable("w1", first.core.member_id)
    assert all(now[slot] > owned[slot] for slot in handed_over)
    assert first.startable == now.keys()
