"""Damaged entries: a follower that receives them refuses them, and the leader does not resend them at once."""

import itertools

import pytest

from penstock.errors import CorruptLog
from penstock.raft import AppendReply
from penstock.raft.progress import DAMAGE_PAUSE_FIRST_S, DAMAGE_PAUSE_LONGEST_S
from tests.raft.machine import replica
from tests.raft.scripted_group import ScriptedGroup


def test_a_leader_whose_entries_are_refused_suspects_its_log_and_resends_after_a_pause() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        > refuse 2
        > propose 1 1
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        > deliver 1 2
        2 refuses 61 bytes
        2 -> 1 cannot store what follows 1 in 0
        > deliver 2 1
        1 suspects what it sent 2 from 1 on
        >> settle
        > wait 0.4
        > accept 2
        > wait 0.1
        1 -> 2 append 1@0 in 0, commit 2
        > deliver
        2 -> 1 has flushed 1 of 1 in 0
        1 -> 2 append 1@0..2 in 0, commit 2
        2 writes 61 bytes
        > settle
        2 commits 2
        2 -> 1 has flushed 2 of 2 in 0
    """)


def test_a_peer_that_keeps_refusing_is_tried_with_growing_delays() -> None:
    scripted = ScriptedGroup(3)
    scripted.play(">> elect 1\n>> refuse 2\n>> propose 1 1")
    tries = []
    while len(tries) < 12:
        scripted.play(">> settle\n>> heartbeat 1")
        peer = scripted.machines[1].raft.part.replication.peers[replica(2)]  # type: ignore[union-attr]
        if not tries or peer.damage_pause_until != tries[-1]:
            tries.append(peer.damage_pause_until)
        scripted.play(">> wait 0.1")
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(tries)]
    assert pauses == sorted(pauses)
    assert DAMAGE_PAUSE_FIRST_S <= pauses[0] <= 4 * DAMAGE_PAUSE_FIRST_S
    assert pauses[-1] == DAMAGE_PAUSE_LONGEST_S


def test_other_followers_progress_while_one_is_paused() -> None:
    scripted = ScriptedGroup(3)
    scripted.play(">> elect 1\n>> refuse 2\n>> propose 1 1\n>> settle")
    scripted.play("""
        > propose 1 1
        1 -> 3 append 2@0..3 in 0, commit 2
        >> settle
        > heartbeat 1
        3 commits 3
    """)


def test_a_log_that_cannot_be_read_is_suspected_and_its_leader_stays() -> None:
    scripted = ScriptedGroup(3)
    scripted.play(">> elect 1\n>> cut 2\n>> propose 1 1 1\n>> settle\n>> heartbeat 1\n>> join 2")
    log = scripted.machines[1].log
    read = log.read_entries

    def fail(index: int, max_bytes: int) -> tuple[bytes, int]:
        if index < 3:
            raise CorruptLog("a segment", 7, "a batch of -1 bytes")
        return read(index, max_bytes)

    log.read_entries = fail  # type: ignore[method-assign]
    scripted.play(">> heartbeat 1")
    scripted.play("""
        > wait 0.4
        1 -> 2 append 1@0 in 0, commit 3
        > deliver
        2 -> 1 has flushed 1 of 1 in 0
        1 suspects what it sent 2 from 1 on
        > propose 1 1
        1 -> 3 append 3@0..4 in 0, commit 3
    """)


@pytest.mark.parametrize("index", [0, 5, 10**9])
def test_a_refusal_of_entries_that_were_never_sent_changes_nothing(index: int) -> None:
    scripted = ScriptedGroup(3)
    scripted.play(">> elect 1\n>> propose 1 1 1\n>> settle")
    leader = scripted.machines[1]
    effects = leader.raft.step(
        scripted.now, replica(2), AppendReply(leader.raft.term, 3, 3, refused_index=index)
    )
    assert effects == []
    scripted.play("""
        > propose 1 1
        1 -> 2 append 3@0..4 in 0, commit 3
        1 -> 3 append 3@0..4 in 0, commit 3
    """)
