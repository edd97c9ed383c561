"""The worker's side: what it may start, for how long, and what it tells the others that it holds."""

import pytest

from penstock.ring import SLOTS, HeartbeatReply, HeartbeatStatus, Table, slots_of
from penstock.ring.clique_state import CliqueState
from penstock.ring.member import HEARTBEATS_PER_LEASE, LEASE_MARGIN, RETRIES_PER_LEASE, MemberCore

LEASE_MS = 8_000
USABLE_MS = LEASE_MS * (1 - LEASE_MARGIN)


class Clique:
    """The state of a clique, and one worker that reports to it when the test says so."""

    def __init__(self, *others: str) -> None:
        self.state = CliqueState.begin(1_000_000)
        self.ids = iter(range(1, 100))
        self.core = MemberCore(
            worker="me", new_member_id=lambda: f"me-{next(self.ids)}", now_ms=0, lease_ms=LEASE_MS
        )
        for other in others:
            self.add(other)

    def add(self, worker: str) -> None:
        other = MemberCore(worker=worker, new_member_id=lambda: worker, now_ms=0)
        while not other.is_member:
            self.report(other, 0)

    def drop(self, worker: str) -> None:
        self.state = self.state.expire(worker, self.state.members[worker].member_id, 0)

    def report(self, core: MemberCore, now_ms: float) -> HeartbeatReply:
        reply = self.answer(core, now_ms)
        core.replied(reply, now_ms)
        return reply

    def answer(self, core: MemberCore, now_ms: float) -> HeartbeatReply:
        """The reply to a heartbeat that is sent now; the test delivers it, or not."""
        self.state, reply = self.state.heartbeat(core.heartbeat(now_ms), 0)
        return reply

    def join(self, now_ms: float = 0) -> None:
        while not self.core.is_member:
            self.report(self.core, now_ms)
        self.acquire()

    def acquire(self) -> None:
        self.core.acquired(self.core.take_acquired())


def _startable(core: MemberCore, now_ms: float) -> set[int]:
    return {slot for slot in range(SLOTS) if core.may_start(slot, now_ms) is not None}


def test_the_lease_counts_from_the_sending_of_the_heartbeat_less_a_margin() -> None:
    clique = Clique()
    clique.join(now_ms=0)
    assert clique.core.may_start(0, USABLE_MS - 1) is not None
    assert clique.core.may_start(0, USABLE_MS) is None
    reply = clique.answer(clique.core, 5_000)
    clique.core.replied(reply, 7_000)
    assert clique.core.lease_ends_ms == 5_000 + USABLE_MS


def test_a_reply_that_was_late_or_comes_again_does_not_make_the_lease_longer() -> None:
    clique = Clique()
    clique.join(now_ms=0)
    early, later = clique.answer(clique.core, 1_000), clique.answer(clique.core, 2_000)
    clique.core.replied(later, 3_000)
    for reply in (early, later, early):
        clique.core.replied(reply, 9_000)
    assert clique.core.lease_ends_ms == 2_000 + USABLE_MS


def test_a_process_that_was_paused_starts_nothing_when_it_wakes() -> None:
    clique = Clique()
    clique.join(now_ms=0)
    late = clique.answer(clique.core, 1_000)
    clique.core.replied(late, 60_000)
    assert not _startable(clique.core, 60_000)


def test_a_slot_is_held_from_its_acquisition_on_and_started_when_on_acquire_has_finished() -> None:
    clique = Clique()
    while not clique.core.is_member:
        clique.report(clique.core, 0)
    assert clique.core.heartbeat(0).held == b""
    slots = clique.core.take_acquired()
    assert slots.keys() == set(range(SLOTS))
    assert len(slots_of(clique.core.heartbeat(0).held)) == SLOTS
    assert not _startable(clique.core, 0)
    clique.core.acquired([5])
    assert _startable(clique.core, 0) == {5}
    assert clique.core.take_acquired() == {}


def test_a_revoked_slot_is_held_until_its_handlers_and_on_release_have_finished() -> None:
    clique = Clique()
    clique.join()
    core = clique.core
    clique.add("other")
    slot = next(iter(clique.state.revoked))
    epoch = core.start(slot, 0)
    assert epoch == core.start(slot, 0)
    clique.report(core, 1)
    assert core.may_start(slot, 1) is None
    done = core.take_releasable()
    assert slot not in done
    core.released(done, 1)
    core.finish(slot)
    assert core.take_releasable() == []
    core.finish(slot)
    assert core.take_releasable() == [slot]
    assert slots_of(core.heartbeat(1).held).count(slot) == 1
    core.released([slot], 1)
    assert slot not in slots_of(core.heartbeat(1).held)


def test_a_worker_reports_at_once_what_it_has_released() -> None:
    clique = Clique()
    clique.join()
    clique.add("other")
    clique.report(clique.core, 1_000)
    assert clique.core.next_heartbeat_ms == 1_000 + LEASE_MS / HEARTBEATS_PER_LEASE
    clique.core.released(clique.core.take_releasable(), 1_100)
    assert clique.core.next_heartbeat_ms == 1_100


def test_a_worker_reports_at_once_that_it_never_took_a_slot_that_it_must_hand_over() -> None:
    clique = Clique()
    while not clique.core.is_member:
        clique.report(clique.core, 0)
    clique.add("other")
    clique.report(clique.core, 10)
    assert clique.core.next_heartbeat_ms == 10
    clique.report(clique.core, 10)
    assert clique.state.share_of("other") == SLOTS // 2


def test_a_slot_that_is_revoked_during_on_acquire_is_released_after_it() -> None:
    clique = Clique()
    while not clique.core.is_member:
        clique.report(clique.core, 0)
    slots = clique.core.take_acquired()
    clique.add("other")
    clique.report(clique.core, 1)
    assert clique.core.take_releasable() == []
    clique.core.acquired(slots)
    assert set(clique.core.take_releasable()) == clique.state.revoked.keys()


def test_tables_are_taken_up_forwards_only() -> None:
    clique = Clique()
    clique.join()
    old = clique.answer(clique.core, 1)
    clique.add("other")
    clique.report(clique.core, 2)
    granted = _startable(clique.core, 3)
    clique.core.replied(old, 3)
    assert _startable(clique.core, 3) == granted


def test_a_slot_that_was_lost_and_given_again_is_released_and_acquired_again() -> None:
    """The worker sees only the last of the tables: another one may have owned the slot meanwhile."""
    clique = Clique()
    clique.join()
    core = clique.core
    clique.add("other")
    slots = set(clique.state.revoked)
    before = core.may_start(min(slots), 0)
    clique.drop("other")
    clique.report(core, 1)
    assert core.may_start(min(slots), 1) is None
    released = core.take_releasable()
    assert set(released) == slots
    assert core.take_acquired() == {}, "not before on_release has finished"
    core.released(released, 1)
    assert core.take_acquired().keys() == slots
    core.acquired(slots)
    assert core.may_start(min(slots), 1) > before


def test_a_fenced_worker_owns_nothing_and_begins_again_as_another_member() -> None:
    clique = Clique("other")
    clique.join()
    core = clique.core
    late = clique.answer(core, 1)
    clique.drop("me")
    assert clique.report(core, 2).status is HeartbeatStatus.FENCED
    assert core.member_id == "me-2"
    assert not core.is_member
    assert not _startable(core, 2)
    assert core.next_heartbeat_ms == 2
    core.replied(late, 3)
    assert not core.is_member, "a reply to its former self"


def test_a_handler_of_its_former_self_keeps_its_slot_held() -> None:
    clique = Clique()
    clique.join()
    core = clique.core
    core.start(7, 0)
    clique.drop("me")
    clique.report(core, 1)
    done = core.take_releasable()
    assert 7 not in done
    core.released(done, 1)
    clique.join(now_ms=1)
    assert 7 not in _startable(core, 1)
    assert 7 in slots_of(core.heartbeat(1).held)
    core.finish(7)
    core.released(core.take_releasable(), 2)
    clique.acquire()
    assert 7 in _startable(core, 2)


def test_a_table_from_elsewhere_takes_slots_away_and_does_not_renew_the_lease() -> None:
    clique = Clique()
    clique.join()
    clique.add("other")
    clique.core.learned(clique.state.table, 5_000)
    assert len(_startable(clique.core, 5_000)) == SLOTS // 2
    assert clique.core.lease_ends_ms == USABLE_MS
    clique.drop("me")
    clique.core.learned(clique.state.table, 5_000)
    assert clique.core.member_id == "me-2"


def test_a_worker_that_leaves_acquires_nothing_more_and_is_gone_when_the_clique_says_so() -> None:
    clique = Clique()
    clique.join()
    core = clique.core
    core.leave(5)
    assert core.next_heartbeat_ms == 5
    clique.report(core, 5)
    core.released(core.take_releasable(), 5)
    assert core.take_acquired() == {}
    assert not core.has_left
    clique.report(core, 5)
    assert core.has_left
    assert not clique.state.members


def test_a_worker_can_leave_before_it_has_joined() -> None:
    clique = Clique()
    clique.core.leave(0)
    clique.report(clique.core, 0)
    assert clique.core.has_left


def test_a_worker_sends_heartbeats_several_times_per_lease_and_more_often_without_an_answer() -> None:
    clique = Clique()
    clique.join()
    clique.core.heartbeat(100)
    assert clique.core.next_heartbeat_ms == 100 + LEASE_MS / HEARTBEATS_PER_LEASE
    clique.core.unanswered(200)
    assert clique.core.next_heartbeat_ms == 200 + LEASE_MS / RETRIES_PER_LEASE


def test_a_worker_whose_name_is_taken_asks_again_and_does_not_wait_longer_than_a_heartbeat() -> None:
    clique = Clique("me")
    assert clique.report(clique.core, 0).status is HeartbeatStatus.NAME_TAKEN
    assert clique.core.next_heartbeat_ms == LEASE_MS / HEARTBEATS_PER_LEASE


def test_only_the_latest_heartbeats_are_remembered() -> None:
    clique = Clique()
    clique.join()
    first = clique.answer(clique.core, 100)
    for number in range(100):
        clique.core.heartbeat(200 + number)
    clique.core.replied(first, 500)
    assert clique.core.lease_ends_ms == USABLE_MS


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"owners": b"\x00" * 10}, "8192 bytes"),
        ({"slot_epochs": b""}, "8192 bytes"),
        ({"owners": b"\x01\x00" * SLOTS}, "not among its workers"),
        ({"slot_epochs": b"\x09\x00" * SLOTS}, "not among its epochs"),
        ({"member_ids": ()}, "member ids"),
        ({"revoked": b"\x00"}, "512 bytes"),
    ],
)
def test_a_table_that_is_none_is_refused(wrong, says) -> None:
    fields = {"epoch": 1, "workers": ("a",), "member_ids": ("1",), "epochs": (1,)}
    whole = {"owners": bytes(2 * SLOTS), "slot_epochs": bytes(2 * SLOTS)}
    Table(**fields, **whole).check()
    with pytest.raises(ValueError, match=says):
        Table(**(fields | whole | wrong)).check()
