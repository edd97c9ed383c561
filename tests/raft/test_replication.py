"""Replication of the leader's log, over connections that lose messages. Numbers are the invariants of raft/core.py."""

import msgspec
import pytest

from penstock.errors import ProtocolViolation
from penstock.raft import (
    Append,
    AppendReply,
    BrokenPromise,
    RaftRefusal,
)
from penstock.raft.progress import Peer
from tests.raft.machine import SETTINGS, replica
from tests.raft.scripted_group import ScriptedGroup


def test_an_answer_waits_for_the_flush_and_a_commit_for_a_majority_of_them() -> None:
    """[9, 11]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        > propose 1 3 2
        1 -> 2 append 1@0..4 in 0, commit 1
        1 -> 3 append 1@0..4 in 0, commit 1
        1 -> 2 append 4@0..6 in 0, commit 1
        1 -> 3 append 4@0..6 in 0, commit 1
        > deliver
        2 writes 61 bytes
        2 commits 1
        3 writes 61 bytes
        3 commits 1
        2 writes 61 bytes
        3 writes 61 bytes
        > flush 2
        2 -> 1 has flushed 6 of 6 in 0
        > deliver
        > flush 1
        1 commits 6
        > settle
        3 -> 1 has flushed 6 of 6 in 0
        > heartbeat 1
        2 commits 6
        3 commits 6
    """)


def test_a_lost_append_is_asked_for_again() -> None:
    """[8] An empty append asks what has arrived; the rest follows from there."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        > propose 1 1
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        > drop 1 2
        lost: 1 -> 2 append 1@0..2 in 0, commit 1
        >> settle
        > wait 0.3
        1 -> 2 append 1@0 in 0, commit 2
        > deliver
        2 commits 1
        2 -> 1 has flushed 1 of 1 in 0
        1 -> 2 append 1@0..2 in 0, commit 2
        2 writes 61 bytes
        > settle
        2 commits 2
        2 -> 1 has flushed 2 of 2 in 0
    """)


def test_a_lost_answer_is_asked_for_again_without_sending_anything_twice() -> None:
    """[8]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 1
        >> deliver
        >> flush 2
        > drop 2 1
        lost: 2 -> 1 has flushed 2 of 2 in 0
        > wait 0.3
        1 -> 2 append 1@0 in 0, commit 1
        1 -> 3 append 1@0 in 0, commit 1
        > deliver
        2 -> 1 has flushed 2 of 2 in 0
        3 -> 1 has flushed 1 of 2 in 0
    """)


def test_an_append_that_overtakes_another_sends_the_leader_back() -> None:
    """[7]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 1 1
        > swap 1 2
        > deliver 1 2
        2 -> 1 rejects 2, maybe 1@0 in 0
        > deliver 2 1
        1 -> 2 append 1@0..3 in 0, commit 1
        > deliver 1 2
        2 writes 61 bytes
        2 commits 1
        > flush 2
        2 -> 1 has flushed 2 of 2 in 0
        > deliver 2 1
        1 -> 2 append 2@0..3 in 0, commit 1
        > deliver 1 2
        2 writes 61 bytes
    """)


def test_an_append_that_comes_twice_is_written_once() -> None:
    """[8]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        > repeat 1 2
        > deliver 1 2
        2 writes 61 bytes
        2 commits 1
        > deliver 1 2
        2 -> 1 has flushed 1 of 3 in 0
        > flush 2
        2 -> 1 has flushed 3 of 3 in 0
    """)


def test_a_tail_of_another_term_is_cut_at_the_first_entry_that_differs() -> None:
    """[7, 8] Two leaders wrote behind the same entry; only one of them had a majority."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        >> settle
        >> heartbeat 1
        >> cut 1
        >> propose 1 3 1 1
        >> flush 1
        >> wait 1.0
        >> tick 2
        >> settle
        >> propose 2 2
        >> settle
        >> join 1
        > state
        1 follower in 0, log 0..8@0 flushed 8, commit 3
        2 leader in 1, log 0..6@1 flushed 6, commit 6
        3 follower in 1, log 0..6@1 flushed 6, commit 4
        > heartbeat 2
        1 saves term 1
        1 is follower of 2 in term 1
        3 commits 6
        > save 1
        1 -> 2 has flushed 0 of 0 in 1
        > wait 0.5
        2 -> 1 append 3@0..6 in 1, commit 6
        > deliver
        1 cuts its log at 3
        1 writes 135 bytes
        > flush 1
        1 commits 6
        1 -> 2 has flushed 6 of 6 in 1
        > deliver
        > state
        1 follower in 1, log 0..6@1 flushed 6, commit 6
        2 leader in 1, log 0..6@1 flushed 6, commit 6
        3 follower in 1, log 0..6@1 flushed 6, commit 6
    """)


def test_a_follower_skips_entries_that_the_leaders_term_rules_out() -> None:
    """[7] Both sides do: one rejection for a term, not one for each entry."""
    scripted = ScriptedGroup(3)
    follower = scripted.machines[2]
    for term in (0, 1, 3):
        follower.log.append(2, term)
    follower.log.flush()
    follower.start(scripted.now)
    follower.do(scripted.now, follower.raft.step(scripted.now, replica(1), Append(4, 9, 2, 9, 0, 0)))
    follower.save(scripted.now)
    assert scripted.wires[replica(2), replica(1)] == [
        AppendReply(4, 0, 0, rejected_index=9, hint_index=6, hint_term=1)
    ]


def test_a_leader_skips_entries_that_the_followers_term_rules_out() -> None:
    """[7]"""
    scripted = ScriptedGroup(3)
    leader = scripted.machines[1]
    for term in (0, 2):
        leader.log.append(2, term)
    leader.log.flush()
    leader.start(scripted.now)
    scripted.play("""
        >> elect 1
    """)
    rejection = AppendReply(leader.raft.term, 0, 0, rejected_index=6, hint_index=5, hint_term=1)
    scripted.machines[3].crash()
    leader.raft.part.replication.peers[replica(3)] = Peer(replica(3), 6, scripted.now)
    (send,) = leader.raft.step(scripted.now, replica(3), rejection)
    assert (send.message.prev_index, send.message.prev_term) == (3, 0)


def test_the_number_of_messages_in_flight_is_bounded() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_inflight_messages=2)
    scripted = ScriptedGroup(3, settings=settings)
    scripted.play("""
        >> elect 1
        > propose 1 1 1 1 1
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        1 -> 2 append 2@0..3 in 0, commit 1
        1 -> 3 append 2@0..3 in 0, commit 1
        > deliver 1 2
        2 writes 61 bytes
        2 commits 1
        > flush 2
        2 -> 1 has flushed 2 of 2 in 0
        > deliver 2 1
        1 -> 2 append 3@0..5 in 0, commit 1
    """)


def test_the_bytes_in_flight_are_bounded() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_inflight_bytes=100)
    scripted = ScriptedGroup(3, settings=settings)
    scripted.play("""
        >> elect 1
        > propose 1 1 1 1 1
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        1 -> 2 append 2@0..3 in 0, commit 1
        1 -> 3 append 2@0..3 in 0, commit 1
    """)


def test_a_leader_that_waits_for_its_majority_takes_no_more_than_the_limit() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_uncommitted_bytes=150)
    scripted = ScriptedGroup(3, settings=settings)
    scripted.play(">> elect 1")
    leader = scripted.machines[1]
    for _ in range(3):
        assert leader.raft.may_propose() is None
        leader.propose(scripted.now)
    assert leader.raft.may_propose() is RaftRefusal.TOO_MUCH_UNCOMMITTED
    scripted.play("""
        >> settle
    """)
    assert leader.raft.may_propose() is None
    assert scripted.machines[2].raft.may_propose() is RaftRefusal.NOT_LEADER


def test_an_unreachable_peer_is_sent_nothing_until_it_answers_a_heartbeat() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 3
        >> propose 1 1
        >> settle
        >> wait 0.5
        >> heartbeat 1
        >> wait 0.6
        >> heartbeat 1
        > propose 1 1
        1 -> 2 append 2@0..3 in 0, commit 2
        >> settle
        > wait 0.9
        >> heartbeat 1
        > start 3
        > heartbeat 1
        3 is follower of 1 in term 0
        3 -> 1 has flushed 0 of 0 in 0
        > wait 0
        1 -> 3 append 1@0 in 0, commit 3
        > deliver
        3 commits 1
        3 -> 1 has flushed 1 of 1 in 0
        1 -> 3 append 1@0 in 0, commit 3
        3 -> 1 has flushed 1 of 1 in 0
        1 -> 3 append 1@0..3 in 0, commit 3
        3 writes 122 bytes
    """)


def test_followers_learn_of_a_commit_at_once_if_configured() -> None:
    settings = msgspec.structs.replace(SETTINGS, eager_commit=True)
    scripted = ScriptedGroup(3, settings=settings)
    scripted.play("""
        >> elect 1
        > propose 1 1
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        > settle
        2 writes 61 bytes
        3 writes 61 bytes
        3 commits 1
        2 -> 1 has flushed 2 of 2 in 0
        3 -> 1 has flushed 2 of 2 in 0
        1 commits 2
        1 -> 2 append 2@0 in 0, commit 2
        1 -> 3 append 2@0 in 0, commit 2
        2 commits 2
        2 -> 1 has flushed 2 of 2 in 0
        3 commits 2
        3 -> 1 has flushed 2 of 2 in 0
    """)


def test_followers_learn_the_leaders_log_start() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2 2
        >> settle
        >> heartbeat 1
        >> delete 1 3
        > heartbeat 1
        2 starts at offset 2
        3 starts at offset 2
        > propose 1 1
        1 -> 2 append 5@0..6 in 0, commit 5
        1 -> 3 append 5@0..6 in 0, commit 5
        > deliver
        2 writes 61 bytes
        3 writes 61 bytes
    """)


def test_an_append_that_contradicts_a_committed_entry_halts_the_group() -> None:
    """[8]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 1
        >> settle
        >> heartbeat 1
    """)
    two, stranger = scripted.machines[2], scripted.machines[3]
    liar = ScriptedGroup(1)
    liar.machines[1].log.begin_term(4)
    liar.machines[1].log.append(5, 4)
    entries, end = liar.machines[1].log.read_entries(0, 1000)
    with pytest.raises(BrokenPromise, match="committed up to 2"):
        two.raft.step(scripted.now, stranger.me, Append(4, 0, -1, end, 0, 0, entries))


def test_two_leaders_in_a_term_halt_the_group() -> None:
    """[2]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
    """)
    with pytest.raises(BrokenPromise, match="both lead"):
        scripted.machines[1].raft.step(scripted.now, replica(2), Append(0, 0, -1, 0, 0, 0))
    with pytest.raises(BrokenPromise, match="both lead"):
        scripted.machines[2].raft.step(scripted.now, replica(3), Append(0, 0, -1, 0, 0, 0))


def test_an_impossible_answer_is_the_peers_fault_and_changes_nothing() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
    """)
    leader = scripted.machines[1].raft
    with pytest.raises(ProtocolViolation):
        leader.step(scripted.now, replica(2), AppendReply(0, 5, 5))
    with pytest.raises(ProtocolViolation):
        leader.step(scripted.now, replica(2), AppendReply(0, 1, 0))
    assert [one.match_index for one in leader.progress()] == [1, 1, 1]


def test_a_leader_of_an_earlier_term_is_told_so() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> cut 1
        >> wait 0.9
        >> tick 2
        >> settle
        >> join 1
        > propose 1 1
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        > deliver
        2 -> 1 has flushed 0 of 0 in 1
        3 -> 1 has flushed 0 of 0 in 1
        1 saves term 1
        1 is follower in term 1
    """)


def test_a_follower_that_restarts_in_an_idle_group_is_told_its_match_again() -> None:
    """[8, 12] The leader knows that nothing is missing there; only the follower has forgotten it."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        >> settle
        >> heartbeat 1
        >> crash 3
        >> start 3
        > heartbeat 1
        3 is follower of 1 in term 0
        3 -> 1 has flushed 0 of 0 in 0
        > deliver
        1 -> 3 append 3@0 in 0, commit 3
        3 commits 3
        3 -> 1 has flushed 3 of 3 in 0
        > heartbeat 1
    """)
