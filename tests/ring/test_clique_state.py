"""The invariants of `clique_state.py`, under heartbeats that honest workers send and heartbeats that no worker should
send."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ring import SLOTS, CliqueLimits, Heartbeat, HeartbeatStatus, bitmap_of
from penstock.ring.clique_state import CliqueState
from penstock.ring.state_codec import decode_state, encode_state

ALL = bitmap_of(range(SLOTS))
NOW_MS = 1_000_000


def _heartbeat(
    worker: str = "a", number: int = 1, *, sequence: int = 1, epoch: int = 0, **fields
) -> Heartbeat:
    return Heartbeat(worker=worker, member_id=f"{worker}-{number}", sequence=sequence, epoch=epoch, **fields)


def _joined(state: CliqueState, worker: str, number: int = 1) -> CliqueState:
    state, reply = state.heartbeat(_heartbeat(worker, number, epoch=state.epoch), NOW_MS)
    assert reply.status is HeartbeatStatus.OK
    return state


def _clique(*workers: str) -> CliqueState:
    state = CliqueState.begin(NOW_MS)
    for worker in workers:
        state = _joined(state, worker)
    return state


def test_an_uninformed_newcomer_is_only_introduced() -> None:
    state = _clique("a")
    after, reply = state.heartbeat(_heartbeat("b"), NOW_MS)
    assert after is state
    assert (reply.status, reply.epoch, reply.table) == (HeartbeatStatus.INTRODUCED, state.epoch, None)


def test_a_newcomer_owns_nothing_that_another_worker_holds() -> None:
    state = _clique("a", "b")
    assert state.share_of("a") == SLOTS
    assert state.share_of("b") == 0
    assert len(state.revoked) == SLOTS // 2


def test_silence_of_a_member_that_does_not_know_the_table_releases_nothing() -> None:
    before = _clique("a")
    state = _joined(before, "b")
    after, reply = state.heartbeat(_heartbeat("a", sequence=2, epoch=before.epoch, held=b""), NOW_MS)
    assert after is state
    assert reply.table is not None


def test_a_member_that_knows_of_the_handover_releases_what_it_does_not_hold() -> None:
    state = _clique("a", "b")
    slot = next(iter(state.revoked))
    held = bitmap_of(set(range(SLOTS)) - {slot})
    after, _ = state.heartbeat(_heartbeat("a", sequence=2, epoch=state.epoch, held=held), NOW_MS)
    assert after.owners[slot] == "b"
    assert after.slot_epochs[slot] == after.epoch == state.epoch + 1
    assert after.share_of("b") == 1


def test_a_heartbeat_that_comes_twice_or_late_changes_nothing() -> None:
    state = _clique("a", "b")
    state, _ = state.heartbeat(_heartbeat("a", sequence=5, epoch=state.epoch, held=ALL), NOW_MS)
    for sequence in (5, 4):
        after, reply = state.heartbeat(
            _heartbeat("a", sequence=sequence, epoch=state.epoch, held=b""), NOW_MS
        )
        assert after is state
        assert reply.status is HeartbeatStatus.OK


def test_a_late_heartbeat_is_harmless_also_to_a_coordinator_that_does_not_know_its_number() -> None:
    """A released what it was to hand over, got it back, and was then told again to hand it over."""
    state = _clique("a", "b")
    released = _heartbeat("a", sequence=2, epoch=state.epoch, held=b"")
    state = state.expire("b", "b-1", NOW_MS)
    state = _joined(state, "c")
    assert state.revoked
    after, _ = state.heartbeat(released, NOW_MS)
    assert after is state


def test_a_removed_member_is_fenced_and_does_not_come_back() -> None:
    state = _clique("a", "b")
    known = state.epoch
    state = state.expire("a", "a-1", NOW_MS)
    assert state.share_of("b") == SLOTS
    for epoch, leaving in ((known, False), (known, True), (1, False)):
        heartbeat = _heartbeat("a", sequence=9, epoch=epoch, held=ALL, leaving=leaving)
        after, reply = state.heartbeat(heartbeat, NOW_MS)
        assert after is state
        assert reply.status is HeartbeatStatus.FENCED


def test_the_join_of_a_removed_member_that_was_delayed_brings_nobody_back() -> None:
    state = CliqueState.begin(NOW_MS)
    join = _heartbeat("a", epoch=state.epoch)
    state, _ = state.heartbeat(join, NOW_MS)
    state = state.expire("a", "a-1", NOW_MS)
    after, reply = state.heartbeat(join, NOW_MS)
    assert after is state
    assert reply.status is HeartbeatStatus.FENCED


def test_a_member_from_the_future_is_fenced() -> None:
    state = _clique("a")
    after, reply = state.heartbeat(_heartbeat("a", sequence=2, epoch=state.epoch + 1), NOW_MS)
    assert after is state
    assert reply.status is HeartbeatStatus.FENCED
    after, reply = state.heartbeat(_heartbeat("b", epoch=state.epoch + 1), NOW_MS)
    assert after is state
    assert reply.status is HeartbeatStatus.FENCED


def test_a_name_belongs_to_one_incarnation_at_a_time() -> None:
    state = _clique("a")
    after, reply = state.heartbeat(_heartbeat("a", 2, epoch=state.epoch), NOW_MS)
    assert after is state
    assert reply.status is HeartbeatStatus.NAME_TAKEN


def test_a_successor_gets_the_same_slots_with_new_epochs() -> None:
    state = _clique("a", "b")
    state, _ = state.heartbeat(_heartbeat("a", sequence=2, epoch=state.epoch), NOW_MS)
    owned = [slot for slot in range(SLOTS) if state.owners[slot] == "a"]
    after = state.succeed("a-1", _heartbeat("a", 2, epoch=state.epoch), NOW_MS)
    assert after.owners == state.owners
    assert after.members["a"].member_id == "a-2"
    assert all(after.slot_epochs[slot] == after.epoch for slot in owned)


def test_a_successor_must_know_the_clique() -> None:
    state = _clique("a", "b")
    assert state.succeed("a-1", _heartbeat("a", 2, epoch=0), NOW_MS) is state
    assert state.succeed("a-0", _heartbeat("a", 2, epoch=state.epoch), NOW_MS) is state


def test_a_leaving_member_is_gone_when_it_has_let_go_of_everything() -> None:
    state = _clique("a", "b")
    state, _ = state.heartbeat(_heartbeat("a", sequence=2, epoch=state.epoch, held=ALL, leaving=True), NOW_MS)
    assert len(state.revoked) == SLOTS
    state, reply = state.heartbeat(
        _heartbeat("a", sequence=3, epoch=state.epoch, held=b"", leaving=True), NOW_MS
    )
    assert reply.status is HeartbeatStatus.FENCED
    assert state.members.keys() == {"b"}
    assert state.share_of("b") == SLOTS


def test_the_last_one_to_leave_leaves_an_empty_clique_whose_epochs_go_on() -> None:
    state = _clique("a")
    state, _ = state.heartbeat(_heartbeat("a", sequence=2, epoch=state.epoch, leaving=True), NOW_MS)
    state, _ = state.heartbeat(_heartbeat("a", sequence=3, epoch=state.epoch, leaving=True), NOW_MS)
    assert not state.members
    assert state.share_of("a") == 0
    assert _joined(state, "a", 2).epoch == state.epoch + 1


def test_a_member_cannot_change_its_mind_about_leaving() -> None:
    state = _clique("a", "b")
    state, _ = state.heartbeat(_heartbeat("a", sequence=2, epoch=state.epoch, held=ALL, leaving=True), NOW_MS)
    state, _ = state.heartbeat(_heartbeat("a", sequence=3, epoch=state.epoch, held=ALL), NOW_MS)
    assert state.members["a"].leaving


def test_a_full_clique_takes_no_more_members() -> None:
    state = _clique("a", "b")
    limits = CliqueLimits(max_members=2)
    after, reply = state.heartbeat(_heartbeat("c", epoch=state.epoch), NOW_MS, limits)
    assert after is state
    assert reply.status is HeartbeatStatus.FULL
    assert reply.retry_ms > 0


def test_homes_of_workers_that_do_not_come_back_are_forgotten() -> None:
    state = _clique("a")
    for number in range(70):
        state = _joined(state, f"w{number}")
        state = state.expire(f"w{number}", f"w{number}-1", NOW_MS)
    assert len(state.homes) == 64
    assert "w69" in state.homes
    assert "w0" not in state.homes


def test_a_slot_whose_next_owner_died_stays_where_it_is() -> None:
    before = _clique("a", "b", "c", "d")
    state = _joined(before, "e")
    state = state.expire("e", "e-1", NOW_MS)
    assert state.owners == before.owners


def test_a_worker_that_leaves_before_it_got_its_slots_moves_no_others() -> None:
    before = _clique("x").expire("x", "x-1", NOW_MS)
    for worker in ("a", "b", "c", "d"):
        before = _joined(before, worker)
    assert before.share_of("a") == SLOTS, "nothing was handed over yet"
    after = before.expire("d", "d-1", NOW_MS)
    moved = {slot for slot in range(SLOTS) if before.targets[slot] != after.targets[slot]}
    assert moved == {slot for slot in range(SLOTS) if before.targets[slot] == "d"}


# --- any sequence of anything

WORKERS = st.sampled_from("abcde")
SETS = st.one_of(st.just(b""), st.just(ALL), st.sets(st.integers(0, SLOTS - 1), max_size=40).map(bitmap_of))
BEHIND = st.sampled_from([0, 0, 0, 1, 2, 5, -1, None])
"""By how many epochs the sender is behind; None: it knows none."""
HEARTBEATS = st.tuples(
    st.just("heartbeat"),
    WORKERS,
    st.integers(1, 3),
    st.integers(1, 30),
    BEHIND,
    SETS,
    st.sampled_from([0, 0, 0, 1]),
)
REMOVALS = st.tuples(st.sampled_from(["expire", "succeed"]), WORKERS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(HEARTBEATS, HEARTBEATS, HEARTBEATS, REMOVALS), max_size=40))
def test_whatever_is_sent_there_is_one_owner_and_epochs_only_grow(steps) -> None:
    state = CliqueState.begin(1_000)
    for step in steps:
        before = state
        state = _apply(state, step)
        _check_step(before, state)
        _check_state(state)


def _apply(state: CliqueState, step) -> CliqueState:
    if step[0] == "heartbeat":
        _, worker, number, sequence, behind, held, leaving = step
        epoch = 0 if behind is None else max(0, state.epoch - behind)
        heartbeat = _heartbeat(
            worker, number, sequence=sequence, epoch=epoch, held=held, leaving=bool(leaving)
        )
        after, reply = state.heartbeat(heartbeat, NOW_MS)
        assert reply.epoch == after.epoch
        assert (reply.status is HeartbeatStatus.OK) == (
            after.has_member(worker, heartbeat.member_id) and epoch <= after.epoch
        )
        return after
    _, worker = step
    if worker not in state.members:
        return state
    member_id = state.members[worker].member_id
    if step[0] == "expire":
        return state.expire(worker, member_id, NOW_MS)
    return state.succeed(member_id, _heartbeat(worker, 9, epoch=state.epoch), NOW_MS)


def _check_step(before: CliqueState, after: CliqueState) -> None:
    if after is before:
        return
    assert after.epoch == before.epoch + 1
    for slot in range(SLOTS):
        was = before.owners[slot] and before.members[before.owners[slot]].member_id
        now = after.owners[slot] and after.members[after.owners[slot]].member_id
        assert after.slot_epochs[slot] >= before.slot_epochs[slot] or not after.members
        if now is not None and now != was:
            assert after.slot_epochs[slot] == after.epoch


def _check_state(state: CliqueState) -> None:
    staying = {worker for worker, member in state.members.items() if not member.leaving}
    assert {owner for owner in state.owners if owner is not None} <= state.members.keys()
    assert set(state.targets) == (staying or {None})
    assert {
        slot for slot in range(SLOTS) if state.owners[slot] != state.targets[slot]
    } == state.revoked.keys()
    assert not state.homes.keys() & staying
    again = decode_state(encode_state(state))
    assert _facts(again) == _facts(state)


def _facts(state: CliqueState) -> dict:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in vars(state).items()
    } | {"table": state.table}
