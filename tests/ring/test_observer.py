"""Members that share a cell with compare-and-set: they judge each other, and only what they have seen."""

from penstock.ring import SLOTS, HeartbeatReply, HeartbeatStatus
from penstock.ring.clique_state import CliqueState
from penstock.ring.member import MemberCore
from penstock.ring.observer import SILENCE, SilenceObserver, apply_heartbeat, conflict_pause_s
from penstock.ring.state_codec import decode_state, encode_state

LEASE_MS = 8_000


class Cell:
    def __init__(self) -> None:
        self.data = encode_state(CliqueState.begin(1_000_000))
        self.revision = 1

    def put_if(self, revision: int, data: bytes) -> bool:
        if revision != self.revision:
            return False
        self.data, self.revision = data, revision + 1
        return True


class SharingMember:
    """As the recipe in `observer.py` says."""

    def __init__(self, cell: Cell, worker: str, member_id: str = "1") -> None:
        self.cell = cell
        ids = iter(f"{worker}-{member_id}-{life}" for life in range(9))
        self.core = MemberCore(worker=worker, new_member_id=lambda: next(ids), now_ms=0, lease_ms=LEASE_MS)
        self.observer = SilenceObserver()

    def prepare(self, now_ms: float) -> tuple[int, bytes, HeartbeatReply]:
        """Everything but the write."""
        heartbeat = self.core.heartbeat(now_ms)
        state = decode_state(self.cell.data)
        after, reply = apply_heartbeat(state, heartbeat, self.observer.silent(state, now_ms), 0)
        return self.cell.revision, encode_state(after), reply

    def heartbeat(self, now_ms: float) -> HeartbeatStatus:
        revision, data, reply = self.prepare(now_ms)
        assert self.cell.put_if(revision, data)
        self.core.replied(reply, now_ms)
        self.core.released(self.core.take_releasable(), now_ms)
        self.core.acquired(self.core.take_acquired())
        return reply.status

    def join(self, now_ms: float) -> None:
        while not self.core.is_member:
            self.heartbeat(now_ms)

    @property
    def held(self) -> set[int]:
        return set(self.core.held)


def _pair() -> tuple[Cell, SharingMember, SharingMember]:
    cell = Cell()
    first, second = SharingMember(cell, "w1"), SharingMember(cell, "w2")
    first.join(0)
    second.join(0)
    for _ in range(3):
        first.heartbeat(0)
        second.heartbeat(0)
    assert len(first.held) == len(second.held) == SLOTS // 2
    return cell, first, second


def test_a_silent_member_is_removed_after_more_than_its_lease_as_its_observer_counts() -> None:
    _, first, second = _pair()
    over_ms = LEASE_MS * SILENCE
    second.heartbeat(over_ms - 1)
    assert len(second.held) == SLOTS // 2
    second.heartbeat(over_ms)
    assert len(second.held) == SLOTS
    assert first.heartbeat(over_ms) is HeartbeatStatus.FENCED


def test_a_member_that_sends_heartbeats_is_not_removed() -> None:
    _, first, second = _pair()
    for turn in range(20):
        assert first.heartbeat(turn * 2_000.0) is HeartbeatStatus.OK
        assert second.heartbeat(turn * 2_000.0) is HeartbeatStatus.OK
    assert len(first.held) == len(second.held) == SLOTS // 2


def test_an_observer_that_has_just_come_has_not_seen_anybody_silent() -> None:
    cell, first, _ = _pair()
    third = SharingMember(cell, "w3")
    third.join(1_000_000)
    assert "w1" in decode_state(cell.data).members
    assert first.heartbeat(1_000_000) is HeartbeatStatus.OK


def test_a_judgement_on_an_outdated_state_is_not_written() -> None:
    cell, first, second = _pair()
    over_ms = LEASE_MS * SILENCE
    revision, data, _ = second.prepare(over_ms)
    first.heartbeat(over_ms)
    assert not cell.put_if(revision, data)
    assert "w1" in decode_state(cell.data).members


def test_a_newcomer_under_the_name_of_a_silent_member_takes_its_place() -> None:
    cell, first, second = _pair()
    mine = first.held
    new = SharingMember(cell, "w1", "2")
    assert new.heartbeat(0) is HeartbeatStatus.NAME_TAKEN
    epoch = decode_state(cell.data).epoch
    second.heartbeat(5_000)
    assert new.heartbeat(LEASE_MS * SILENCE) is HeartbeatStatus.OK
    assert new.held == mine
    assert decode_state(cell.data).epoch == epoch + 1


def test_a_newcomer_joins_in_the_same_write_that_removes_others() -> None:
    cell, _, _ = _pair()
    third = SharingMember(cell, "w3")
    assert third.heartbeat(0) is HeartbeatStatus.INTRODUCED
    assert third.heartbeat(LEASE_MS * SILENCE) is HeartbeatStatus.OK
    assert decode_state(cell.data).members.keys() == {"w3"}


def test_a_write_with_an_unknown_outcome_can_be_repeated() -> None:
    cell, first, second = _pair()
    first.core.leave(10)
    revision, data, reply = first.prepare(10)
    assert cell.put_if(revision, data)
    state = decode_state(cell.data)
    again, answer = apply_heartbeat(state, first.core.heartbeat(10), {}, 0)
    assert (answer.status, answer.epoch) == (HeartbeatStatus.OK, reply.epoch)
    assert again is state
    assert second.heartbeat(10) is HeartbeatStatus.OK


def test_pauses_after_conflicts_grow_up_to_half_a_second() -> None:
    pauses = [conflict_pause_s(tries) for tries in range(1, 100)]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.5
