"""The coordinator of cliques: nothing is told before it is stored, leases end in time, and replies wait for news."""

from itertools import permutations

import pytest

from penstock.effects import Persist
from penstock.errors import ErrorCode, KafkaError, UnknownFormat
from penstock.ring import SLOTS, CliqueLimits, Heartbeat, HeartbeatStatus, Table
from penstock.ring.clique_state import CliqueState
from penstock.ring.coordinator import IDLE_RETENTION_MS, WRITE_RETRY_MS, CliqueCoordinator, encode_key
from penstock.ring.state_codec import encode_state
from tests.ring.clique_harness import CLIQUE, LEASE_MS, START_MS, TestHost, Worker, settle


def _heartbeat(worker: str, member_id: str = "1", **fields) -> Heartbeat:
    return Heartbeat(worker=worker, member_id=member_id, **{"sequence": 1, "lease_ms": LEASE_MS, **fields})


def _with(*names: str) -> tuple[TestHost, list[Worker]]:
    host = TestHost()
    workers = [Worker(host, name) for name in names]
    for worker in workers:
        worker.join()
    settle(*workers)
    return host, workers


# --- what is stored


def test_a_reply_waits_until_what_it_says_is_committed() -> None:
    host = TestHost()
    host.commits = False
    epoch = host.reply(host.heartbeat(_heartbeat("w1"))).epoch
    joined = host.heartbeat(_heartbeat("w1", epoch=epoch))
    assert joined not in host.replies
    host.commit()
    assert host.reply(joined).status is HeartbeatStatus.OK


def test_a_heartbeat_that_changes_nothing_is_answered_at_once_and_not_stored() -> None:
    host, (first,) = _with("w1")
    written = host.written
    for _ in range(10):
        assert first.heartbeat().status is HeartbeatStatus.OK
    assert host.written == written


def test_a_first_heartbeat_alone_leaves_no_trace() -> None:
    host = TestHost()
    host.reply(host.heartbeat(_heartbeat("w1")))
    assert not host.log
    assert host.core.listed(host.now_ms) == []
    assert host.replies.pop(host.table()) is None


def test_workers_that_join_during_a_write_are_stored_together() -> None:
    host = TestHost()
    epoch = host.reply(host.heartbeat(_heartbeat("w0"))).epoch
    host.commits = False
    tokens = [host.heartbeat(_heartbeat(f"w{number}", epoch=epoch)) for number in range(20)]
    assert len(host.writes) == 1
    host.commit()
    assert host.written == 2
    assert all(host.reply(token).status is HeartbeatStatus.OK for token in tokens)


def test_when_a_write_fails_everything_is_as_before() -> None:
    host, (first,) = _with("w1")
    before = host.newest_table()
    host.commits = False
    tokens = [
        host.heartbeat(_heartbeat("w2", epoch=before.epoch)),
        host.heartbeat(_heartbeat("w3", epoch=before.epoch)),
    ]
    host.commit(ok=False)
    for token in tokens:
        refused = host.replies.pop(token)
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.commits = True
    assert host.newest_table() == before
    assert first.heartbeat().status is HeartbeatStatus.OK
    second = Worker(host, "w2")
    second.join()


def test_a_clique_whose_first_write_failed_does_not_exist() -> None:
    host = TestHost()
    epoch = host.reply(host.heartbeat(_heartbeat("w1"))).epoch
    host.commits = False
    token = host.heartbeat(_heartbeat("w1", epoch=epoch))
    assert host.replies.pop(host.table()) is None
    host.commit(ok=False)
    assert isinstance(host.replies.pop(token), KafkaError)
    assert host.core.listed(host.now_ms) == []


def test_another_node_goes_on_from_what_was_committed() -> None:
    host, (first, second) = _with("w1", "w2")
    table = host.newest_table()
    host.fail_over()
    assert host.newest_table() == table
    assert first.heartbeat().status is second.heartbeat().status is HeartbeatStatus.OK


def test_a_record_of_a_later_version_is_not_skipped() -> None:
    core = CliqueCoordinator()
    state = encode_state(CliqueState.begin(START_MS))
    with pytest.raises(UnknownFormat):
        core.replay(b"\x00\x02pricing", state)
    with pytest.raises(UnknownFormat):
        core.replay(encode_key(CLIQUE), b"\x63" + state[1:])
    with pytest.raises(UnknownFormat):
        core.replay(b"\x00\x01\xff", state)


# --- leases


def test_a_lease_ends_when_no_heartbeat_came_for_its_whole_length() -> None:
    host, (first, second) = _with("w1", "w2")
    host.pass_time(LEASE_MS // 2)
    second.heartbeat()
    host.pass_time(LEASE_MS // 2 - 1)
    assert set(host.newest_table().workers) == {"w1", "w2"}
    host.pass_time(1)
    assert set(host.newest_table().workers) == {"w2"}
    assert first.heartbeat().status is HeartbeatStatus.FENCED


def test_after_a_change_of_leader_every_member_has_a_whole_lease() -> None:
    host, _ = _with("w1", "w2")
    host.pass_time(LEASE_MS - 1)
    host.fail_over()
    host.pass_time(LEASE_MS - 1)
    assert set(host.newest_table().workers) == {"w1", "w2"}
    host.pass_time(1)
    assert not host.newest_table().workers


def test_a_coordinator_that_was_paused_removes_nobody_before_it_has_read_their_heartbeats() -> None:
    host, (first, second) = _with("w1", "w2")
    host.now_ms += 10 * LEASE_MS
    host.carry_out(host.core.tick(host.now_ms))
    assert first.heartbeat().status is second.heartbeat().status is HeartbeatStatus.OK
    host.pass_time(LEASE_MS - 1)
    assert set(host.newest_table().workers) == {"w1", "w2"}
    host.pass_time(1 + LEASE_MS)
    assert not host.newest_table().workers


def test_a_removal_that_could_not_be_stored_is_tried_again() -> None:
    host, _ = _with("w1")
    host.commits = False
    host.pass_time(LEASE_MS)
    for _ in range(3):
        host.commit(ok=False)
        assert not host.writes, "not in a circle"
        host.pass_time(WRITE_RETRY_MS)
        assert host.writes
    host.commit()
    assert not host.newest_table().workers


def test_a_heartbeat_that_waits_behind_a_write_saves_its_sender() -> None:
    host, (first,) = _with("w1")
    host.pass_time(LEASE_MS - 10)
    host.commits = False
    joined = host.heartbeat(_heartbeat("w2", epoch=first.core.epoch))
    waiting = host.heartbeat(first.core.heartbeat(host.now_ms))
    host.pass_time(LEASE_MS)
    host.commit()
    assert host.reply(joined).status is host.reply(waiting).status is HeartbeatStatus.OK
    assert set(host.newest_table().workers) == {"w1", "w2"}


def test_a_newcomer_that_gave_up_asking_does_not_succeed() -> None:
    host, (_, old) = _with("w1", "w2")
    new = Worker(host, "w2")
    new.heartbeat()
    new.heartbeat()
    host.pass_time(LEASE_MS)
    assert old.core.member_id not in host.newest_table().member_ids
    assert new.core.member_id not in host.newest_table().member_ids


# --- replies that wait


def test_a_reply_without_news_waits_for_them() -> None:
    host, (first,) = _with("w1")
    waiting = host.heartbeat(first.core.heartbeat(host.now_ms), wait_ms=1_000)
    assert waiting not in host.replies
    second = Worker(host, "w2")
    second.join()
    reply = host.reply(waiting)
    assert reply.table is not None
    first.take(reply)
    waiting = host.heartbeat(second.core.heartbeat(host.now_ms), wait_ms=1_000)
    assert waiting not in host.replies
    first.heartbeat()
    second.take(host.reply(waiting))
    assert len(second.startable) == SLOTS // 2


def test_a_reply_without_news_comes_after_its_time_and_at_most_a_quarter_of_the_lease() -> None:
    host, (first,) = _with("w1")
    for wait_ms, takes_ms in ((500, 500), (100_000, LEASE_MS // 4)):
        waiting = host.heartbeat(first.core.heartbeat(host.now_ms), wait_ms=wait_ms)
        host.pass_time(takes_ms - 1)
        assert waiting not in host.replies
        host.pass_time(1)
        assert host.reply(waiting).table is None


def test_a_member_has_one_reply_that_waits_and_its_next_heartbeat_sets_it_free() -> None:
    host, (first,) = _with("w1")
    tokens = [host.heartbeat(first.core.heartbeat(host.now_ms), wait_ms=1_000) for _ in range(5)]
    assert [token in host.replies for token in tokens] == [True] * 4 + [False]


def test_members_whose_slots_do_not_change_are_not_woken() -> None:
    host, (first, second) = _with("w1", "w2")
    waiting = host.heartbeat(second.core.heartbeat(host.now_ms), wait_ms=1_000)
    first.core.streams = ("orders", "returns")
    assert first.heartbeat().epoch > second.core.epoch
    assert waiting not in host.replies
    host.pass_time(1_000)
    second.take(host.reply(waiting))
    assert second.core.epoch == first.core.epoch


def test_a_member_that_is_removed_while_its_reply_waits_is_told() -> None:
    host, (first, _) = _with("w1", "w2")
    first.core.leave(host.now_ms)
    first.heartbeat()
    waiting = host.heartbeat(first.core.heartbeat(host.now_ms), wait_ms=1_000)
    assert host.reply(waiting).status is HeartbeatStatus.FENCED


def test_a_leader_is_told_the_newest_table_when_there_is_a_newer_one() -> None:
    host, _ = _with("w1")
    table = host.newest_table()
    waiting = host.table(known_epoch=table.epoch, wait_ms=5_000)
    assert waiting not in host.replies
    Worker(host, "w2").join()
    newer = host.replies.pop(waiting)
    assert isinstance(newer, Table)
    assert newer.epoch == table.epoch + 1
    waiting = host.table(known_epoch=newer.epoch, wait_ms=5_000)
    host.pass_time(5_000)
    assert host.replies.pop(waiting) == newer


# --- cliques without members


@pytest.mark.parametrize("order", list(permutations(("w1", "w2", "w3"))), ids="-".join)
def test_a_whole_clique_that_stops_and_starts_again_finds_its_slots_and_higher_epochs(order) -> None:
    host, workers = _with("w1", "w2", "w3")
    before = {worker.core.worker: worker.startable for worker in workers}
    for worker in workers:
        worker.core.leave(host.now_ms)
        while not worker.core.has_left:
            worker.heartbeat()
    stopped = host.newest_table()
    assert stopped.workers == ()
    host.pass_time(IDLE_RETENTION_MS - 1)
    host.fail_over()
    again = [Worker(host, name) for name in order]
    for worker in again:
        worker.join()
    settle(*again)
    assert min(host.newest_table().epochs) > stopped.epoch
    kept = sum(len(worker.startable & before[worker.core.worker]) for worker in again)
    assert kept == SLOTS


def test_a_clique_without_members_is_forgotten_after_a_week_and_begins_with_higher_epochs() -> None:
    host, (first,) = _with("w1")
    first.core.leave(host.now_ms)
    while not first.core.has_left:
        first.heartbeat()
    last = host.newest_table().epoch
    host.pass_time(IDLE_RETENTION_MS)
    assert host.log == {encode_key(CLIQUE): None}
    assert host.core.listed(host.now_ms) == []
    again = Worker(host, "w1")
    again.join()
    assert again.core.epoch > last


def test_a_worker_that_joins_while_its_clique_is_being_forgotten_is_stored() -> None:
    host, (first,) = _with("w1")
    first.core.leave(host.now_ms)
    while not first.core.has_left:
        first.heartbeat()
    host.commits = False
    host.pass_time(IDLE_RETENTION_MS)
    assert [write.records for write in host.writes] == [((encode_key(CLIQUE), None),)]
    token = host.heartbeat(_heartbeat("w2", epoch=host.now_ms // 1000))
    host.commits = True
    host.commit()
    assert host.reply(token).status is HeartbeatStatus.OK
    host.fail_over()
    assert host.newest_table().workers == ("w2",)


# --- limits and descriptions


def test_there_are_only_so_many_cliques_on_a_partition() -> None:
    host = TestHost(CliqueLimits(max_cliques=1))
    Worker(host, "w1").join()
    with pytest.raises(KafkaError, match="max_cliques"):
        host.heartbeat(_heartbeat("w1"), clique="another")
    assert Worker(host, "w2").heartbeat().status is HeartbeatStatus.INTRODUCED


def test_a_heartbeat_that_no_worker_sends_is_refused_at_once() -> None:
    host = TestHost()
    with pytest.raises(KafkaError, match="lease_ms"):
        host.heartbeat(_heartbeat("w1", lease_ms=1))
    with pytest.raises(KafkaError, match="clique"):
        host.heartbeat(_heartbeat("w1"), clique="x" * 201)


def test_a_full_clique_says_so() -> None:
    host = TestHost(CliqueLimits(max_members=1))
    Worker(host, "w1").join()
    second = Worker(host, "w2")
    second.heartbeat()
    assert second.heartbeat().status is HeartbeatStatus.FULL


def test_people_see_who_owns_how_much_and_what_is_handed_over() -> None:
    host, (first,) = _with("w1")
    host.pass_time(1_000)
    Worker(host, "w2").join()
    described = host.core.describe(host.now_ms, CLIQUE)
    assert described.handovers == SLOTS // 2
    one, two = described.members
    assert (one.worker, one.slots, one.revoking, one.lease_left_ms) == (
        "w1",
        SLOTS,
        SLOTS // 2,
        LEASE_MS - 1_000,
    )
    assert (two.worker, two.slots, two.revoking, two.lease_left_ms) == ("w2", 0, 0, LEASE_MS)
    assert one.streams == ("orders",)
    assert first.core.member_id == one.member_id
    assert host.core.listed(host.now_ms) == [described]
    assert host.core.describe(host.now_ms, "another") is None


def test_people_see_a_member_whose_on_release_has_not_returned_in_time() -> None:
    host, (first, second) = _with("w1", "w2")

    def overdue() -> list[int]:
        described = host.core.describe(host.now_ms, CLIQUE)
        assert described is not None
        return [member.overdue for member in described.members]

    first.core.overdue = 7
    first.heartbeat()
    assert overdue() == [7, 0]
    second.core.leave(host.now_ms)
    settle(first, second)
    assert overdue() == [7]
    first.core.overdue = 0
    first.heartbeat()
    assert overdue() == [0]
    with pytest.raises(KafkaError, match="overdue is 4097: expected 0 to 4096"):
        host.heartbeat(_heartbeat("w1", overdue=SLOTS + 1))


def test_every_request_is_answered_exactly_once() -> None:
    host, workers = _with("w1", "w2", "w3")
    host.commits = False
    tokens = []
    for turn in range(30):
        worker = workers[turn % 3]
        tokens.append(host.heartbeat(worker.core.heartbeat(host.now_ms), wait_ms=turn % 2 * 500))
        tokens.append(host.table(known_epoch=turn % 3, wait_ms=100))
        if turn % 7 == 0:
            tokens.append(host.heartbeat(_heartbeat(f"n{turn}", epoch=worker.core.epoch)))
        if turn % 4 == 0:
            host.commit(ok=turn % 8 == 0)
        host.pass_time(50)
    host.commit()
    host.pass_time(LEASE_MS)
    host.commit()
    assert host.replies.keys() == set(tokens)
    assert not [write for write in host.writes if isinstance(write, Persist)]
