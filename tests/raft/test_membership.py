"""How the members of a group change. Numbers are the invariants of raft/core.py."""

import msgspec
import pytest

from penstock.errors import ProtocolViolation
from penstock.raft import GroupConfig, RaftRefusal, RaftRefused, Role
from tests.raft.machine import SETTINGS, replica
from tests.raft.scripted_group import ScriptedGroup


def test_one_node_becomes_a_group_of_three() -> None:
    """[13, 14] Its term's first entry, learners, both configurations at once, the new one."""
    scripted = ScriptedGroup(1, others=2)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        >> settle
        >> crash 1
        >> start 1
        >> tick 1
        > save 1
        1 is leader in term 1
        1 commits 3
        > change 1 1 2 3
        1 begins its term
        > flush 1
        1 commits 4
        1 writes a configuration
        1 has voters 1, learners 2 3
        1 -> 2 append 4@1..5 in 1, commit 4
        1 -> 3 append 4@1..5 in 1, commit 4
        > deliver
        2 saves term 1
        2 is follower of 1 in term 1
        3 saves term 1
        3 is follower of 1 in term 1
        > flush 1
        1 commits 5
        > deliver
        > save 2
        2 -> 1 rejects 4, maybe 0@-1 in 1
        > save 3
        3 -> 1 rejects 4, maybe 0@-1 in 1
        > deliver
        1 -> 2 append 0@-1..5 in 1, commit 5
        1 -> 3 append 0@-1..5 in 1, commit 5
        2 writes 297 bytes
        2 has voters 1, learners 2 3
        3 writes 297 bytes
        3 has voters 1, learners 2 3
        > flush 2
        2 commits 5
        2 -> 1 has flushed 5 of 5 in 1
        > flush 3
        3 commits 5
        3 -> 1 has flushed 5 of 5 in 1
        > deliver
        > heartbeat 1
        1 writes a configuration
        1 has voters 1 2 3, outgoing 1
        1 -> 2 append 5@1..6 in 1, commit 5
        1 -> 3 append 5@1..6 in 1, commit 5
        > deliver
        2 writes 91 bytes
        2 has voters 1 2 3, outgoing 1
        3 writes 91 bytes
        3 has voters 1 2 3, outgoing 1
        > flush 1
        > deliver
        > settle
        2 -> 1 has flushed 6 of 6 in 1
        3 -> 1 has flushed 6 of 6 in 1
        1 commits 6
        1 writes a configuration
        1 has voters 1 2 3
        1 -> 2 append 6@1..7 in 1, commit 6
        1 -> 3 append 6@1..7 in 1, commit 6
        2 writes 88 bytes
        2 has voters 1 2 3
        2 commits 6
        3 writes 88 bytes
        3 has voters 1 2 3
        3 commits 6
        2 -> 1 has flushed 7 of 7 in 1
        3 -> 1 has flushed 7 of 7 in 1
        1 commits 7
        > heartbeat 1
        2 commits 7
        3 commits 7
        > state
        1 leader in 1, log 0..7@1 flushed 7, commit 7
        2 follower in 1, log 0..7@1 flushed 7, commit 7
        3 follower in 1, log 0..7@1 flushed 7, commit 7
    """)


def test_a_newcomer_that_never_answers_does_not_delay_commits() -> None:
    """[13] It stays a learner, and nothing waits for it; the change is given up."""
    settings = msgspec.structs.replace(SETTINGS, catch_up_timeout_s=2)
    scripted = ScriptedGroup(3, others=1, settings=settings)
    scripted.play("""
        >> elect 1
        >> crash 4
        > change 1 1 2 3 4
        1 writes a configuration
        1 has voters 1 2 3, learners 4
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        1 -> 4 append 1@0..2 in 0, commit 1
        > settle
        2 writes 91 bytes
        2 has voters 1 2 3, learners 4
        2 commits 1
        3 writes 91 bytes
        3 has voters 1 2 3, learners 4
        3 commits 1
        2 -> 1 has flushed 2 of 2 in 0
        3 -> 1 has flushed 2 of 2 in 0
        1 commits 2
        > propose 1 1
        1 -> 2 append 2@0..3 in 0, commit 2
        1 -> 3 append 2@0..3 in 0, commit 2
        > settle
        2 writes 61 bytes
        2 commits 2
        3 writes 61 bytes
        3 commits 2
        2 -> 1 has flushed 3 of 3 in 0
        3 -> 1 has flushed 3 of 3 in 0
        1 commits 3
        >> heartbeat 1
        >> wait 0.9
        >> heartbeat 1
        >> wait 0.9
        >> heartbeat 1
        > change 1 1 2 3
        refused: the group's members are being changed
        >> wait 0.9
        >> heartbeat 1
        > change 1 1 2 3
        1 writes a configuration
        1 has voters 1 2 3
        1 -> 2 append 3@0..4 in 0, commit 3
        1 -> 3 append 3@0..4 in 0, commit 3
        > settle
        2 writes 88 bytes
        2 has voters 1 2 3
        3 writes 88 bytes
        3 has voters 1 2 3
        2 -> 1 has flushed 4 of 4 in 0
        3 -> 1 has flushed 4 of 4 in 0
        1 commits 4
    """)


def test_a_newcomer_that_never_answers_is_given_up_while_the_voters_take_writes() -> None:
    """[13] The voters flush with every write: that says nothing about the newcomer."""
    settings = msgspec.structs.replace(SETTINGS, catch_up_timeout_s=2)
    scripted = ScriptedGroup(3, others=1, settings=settings)
    scripted.play("""
        >> elect 1
        >> crash 4
        >> change 1 1 2 4
        >> settle
    """)
    for _ in range(4):
        assert scripted.machines[1].raft.changing
        scripted.play("""
            >> propose 1 1
            >> settle
            >> wait 0.5
            >> heartbeat 1
        """)
    assert not scripted.machines[1].raft.changing
    scripted.play("""
        >> change 1 1 2
        > heartbeat 1
        1 writes a configuration
        1 has voters 1 2, outgoing 1 2 3
        1 -> 2 append 6@0..7 in 0, commit 6
        1 -> 3 append 6@0..7 in 0, commit 6
    """)


def test_a_change_waits_for_its_entry_in_the_log_without_a_busy_timer() -> None:
    """[13] The others are there but flush nothing, so the learners' entry is not committed."""
    settings = msgspec.structs.replace(SETTINGS, catch_up_timeout_s=2)
    scripted = ScriptedGroup(3, others=1, settings=settings)
    scripted.play("""
        >> elect 1
        >> change 1 1 2 4
        >> wait 0.9
        >> heartbeat 1
        >> wait 0.9
        >> heartbeat 1
    """)
    leader = scripted.machines[1]
    scripted.now += 0.3
    leader.do(scripted.now, leader.raft.tick(scripted.now))
    assert leader.raft.changing
    assert leader.raft.next_deadline > scripted.now


def test_a_newcomer_that_makes_progress_is_never_given_up() -> None:
    """[13] It takes one batch at a time, and as much is written meanwhile: it never has everything, but it gets on."""
    settings = msgspec.structs.replace(
        SETTINGS, catch_up_timeout_s=2, max_append_bytes=1, max_inflight_messages=1
    )
    scripted = ScriptedGroup(3, others=1, settings=settings)
    scripted.play("""
        >> elect 1
        >> propose 1 1 1 1 1 1 1 1 1 1 1 1 1
        >> settle
        >> change 1 1 2 4
        >> deliver
        >> save 4
    """)
    for _ in range(8):
        scripted.play("""
            >> propose 1 1
            >> deliver
            >> flush 1
            >> flush 2
            >> flush 3
            >> flush 4
            >> wait 0.5
            >> heartbeat 1
        """)
    leader = scripted.machines[1].raft
    assert leader.catching_up_for == GroupConfig((replica(1), replica(2), replica(4)))
    assert scripted.machines[4].log.end_index < scripted.machines[1].log.end_index


def test_abandoning_a_change_that_waits_for_newcomers_ends_it_at_once() -> None:
    """[13] No replica has a vote yet that had none before. The next change removes the learner."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> crash 4
        >> change 1 1 2 4
        >> settle
        > change 1 1 2
        refused: the group's members are being changed
        > abandon 1
    """)
    leader = scripted.machines[1].raft
    assert not leader.changing
    assert leader.config == GroupConfig((replica(1), replica(2), replica(3)), (), (replica(4),))
    scripted.play("""
        > change 1 1 2
        > heartbeat 1
        2 commits 2
        3 commits 2
        1 writes a configuration
        1 has voters 1 2, outgoing 1 2 3
        1 -> 2 append 2@0..3 in 0, commit 2
        1 -> 3 append 2@0..3 in 0, commit 2
        >> settle
    """)
    assert leader.config == GroupConfig((replica(1), replica(2)))


def test_a_change_that_was_abandoned_before_its_learners_were_committed_leaves_them_to_the_next_one() -> None:
    """[13, 14] Their entry is in the log, and no other change begins before it is committed."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> change 1 1 2 4
        > abandon 1
        > change 1 1 2
        refused: the group's members are being changed
        > abandon 1
        refused: the group's members are being changed
        >> settle
    """)
    leader = scripted.machines[1].raft
    assert leader.config == GroupConfig((replica(1), replica(2), replica(3)), (), (replica(4),))
    scripted.play("""
        >> change 1 1 2 3
        >> settle
    """)
    assert leader.config == GroupConfig((replica(1), replica(2), replica(3)))
    assert not leader.changing


def test_a_joint_configuration_is_not_abandoned() -> None:
    """[13] Neither by the leader that wrote it nor by the next one: only its end leads out of it."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> change 1 1 2 4
        >> deliver
        >> save 4
        >> deliver
        >> flush 1
        >> flush 2
        >> flush 4
        >> deliver
        >> heartbeat 1
        >> deliver
        > abandon 1
        refused: the group's members are being changed
    """)
    leader = scripted.machines[1].raft
    assert leader.config is not None
    assert leader.config.joint
    assert leader.catching_up_for is None
    scripted.play("""
        >> settle
        > abandon 1
    """)
    assert leader.config == GroupConfig((replica(1), replica(2), replica(4)))


def test_the_new_configuration_is_not_abandoned_before_it_is_committed() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> change 1 1 2
        >> heartbeat 1
        >> flush 1
        >> deliver
        >> flush 2
        > deliver
        1 commits 2
        1 writes a configuration
        1 has voters 1 2
        1 -> 2 append 2@0..3 in 0, commit 2
        2 writes 85 bytes
        2 has voters 1 2
        2 commits 2
        > abandon 1
        refused: the group's members are being changed
        > abandon 2
        refused: this replica does not lead
    """)


def test_a_change_is_refused_before_the_leader_has_committed_in_its_term() -> None:
    """[13]"""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> tick 1
        >> deliver
        >> save 1
        >> deliver
        >> save 2
        >> deliver
        > change 1 1 2
        refused: no entry of this term is committed yet
        > settle
        3 -> 1 grants the vote in 0
        3 -> 1 has flushed 0 of 1 in 0
        2 -> 1 has flushed 1 of 1 in 0
        3 -> 1 has flushed 1 of 1 in 0
        1 commits 1
        > change 1 1 2
        > heartbeat 1
        2 commits 1
        3 commits 1
        4 saves term 0
        4 is follower of 1 in term 0
        1 writes a configuration
        1 has voters 1 2, outgoing 1 2 3
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        > change 1 1 3
        refused: the group's members are being changed
    """)


def test_a_truncated_configuration_is_no_longer_in_force() -> None:
    """[14] The leader that wrote it lost its lead before any other replica had it."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        > change 1 1 2
        > heartbeat 1
        1 writes a configuration
        1 has voters 1 2, outgoing 1 2 3
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        >> cut 1
        >> flush 1
        >> wait 1.0
        >> tick 2
        >> settle
        >> join 1
        >> heartbeat 2
        >> save 1
        > wait 0.5
        2 -> 1 append 1@0..2 in 1, commit 2
        > deliver
        1 cuts its log at 1
        1 has voters 1 2 3
        1 writes 74 bytes
    """)


def test_a_joint_configuration_needs_both_halves() -> None:
    """[11] 1, 2 and 3 are all of the old voters, but no majority of the new ones."""
    scripted = ScriptedGroup(3, others=2)
    scripted.play("""
        >> elect 1
        > change 1 1 4 5
        1 writes a configuration
        1 has voters 1 2 3, learners 4 5
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        1 -> 4 append 1@0..2 in 0, commit 1
        1 -> 5 append 1@0..2 in 0, commit 1
        >> deliver
        >> save 4
        >> save 5
        >> deliver
        >> flush 1
        >> flush 2
        >> flush 4
        >> flush 5
        > deliver
        1 commits 2
        > heartbeat 1
        2 commits 2
        3 commits 2
        4 commits 2
        5 commits 2
        1 writes a configuration
        1 has voters 1 4 5, outgoing 1 2 3
        1 -> 4 append 2@0..3 in 0, commit 2
        1 -> 5 append 2@0..3 in 0, commit 2
        1 -> 2 append 2@0..3 in 0, commit 2
        1 -> 3 append 2@0..3 in 0, commit 2
        > deliver
        2 writes 97 bytes
        2 has voters 1 4 5, outgoing 1 2 3
        3 writes 97 bytes
        3 has voters 1 4 5, outgoing 1 2 3
        4 writes 97 bytes
        4 has voters 1 4 5, outgoing 1 2 3
        5 writes 97 bytes
        5 has voters 1 4 5, outgoing 1 2 3
        > flush 1
        > flush 2
        2 -> 1 has flushed 3 of 3 in 0
        > flush 3
        3 -> 1 has flushed 3 of 3 in 0
        > deliver
        > flush 4
        4 -> 1 has flushed 3 of 3 in 0
        > deliver
        1 commits 3
        1 writes a configuration
        1 has voters 1 4 5
        1 -> 4 append 3@0..4 in 0, commit 3
        1 -> 5 append 3@0..4 in 0, commit 3
        4 writes 88 bytes
        4 has voters 1 4 5
        4 commits 3
        5 writes 88 bytes
        5 has voters 1 4 5
        5 commits 3
    """)


def test_the_next_leader_finishes_a_joint_change() -> None:
    """[13] From the joint configuration on the log alone leads to the end."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> change 1 1 2 4
        >> deliver
        >> save 4
        >> deliver
        >> flush 1
        >> flush 2
        >> flush 4
        >> deliver
        >> heartbeat 1
        >> deliver
        >> flush 2
        >> flush 3
        >> flush 4
        > crash 1
        > state
        1 is down, log 0..2@0 flushed 2
        2 follower in 0, log 0..3@0 flushed 3, commit 2
        3 follower in 0, log 0..3@0 flushed 3, commit 2
        4 follower in 0, log 0..3@0 flushed 3, commit 2
        > wait 1.0
        > tick 2
        2 is pre-candidate in term 0
        2 -> 1 asks for a pre-vote in 1, log 3@0
        2 -> 4 asks for a pre-vote in 1, log 3@0
        2 -> 3 asks for a pre-vote in 1, log 3@0
        > settle
        4 -> 2 grants the pre-vote in 1
        3 -> 2 grants the pre-vote in 1
        2 is candidate in term 1
        2 saves term 1, votes for 2
        2 -> 1 asks for a vote in 1, log 3@0
        2 -> 4 asks for a vote in 1, log 3@0
        2 -> 3 asks for a vote in 1, log 3@0
        4 saves term 1, votes for 2
        4 is follower in term 1
        3 saves term 1, votes for 2
        3 is follower in term 1
        3 -> 2 grants the vote in 1
        4 -> 2 grants the vote in 1
        2 is leader in term 1
        2 begins its term
        2 -> 1 append 3@0..4 in 1, commit 2
        2 -> 4 append 3@0..4 in 1, commit 2
        2 -> 3 append 3@0..4 in 1, commit 2
        4 is follower of 2 in term 1
        4 writes 74 bytes
        3 is follower of 2 in term 1
        3 writes 74 bytes
        3 -> 2 has flushed 4 of 4 in 1
        4 -> 2 has flushed 4 of 4 in 1
        2 commits 4
        2 writes a configuration
        2 has voters 1 2 4
        2 -> 4 append 4@1..5 in 1, commit 4
        4 writes 88 bytes
        4 has voters 1 2 4
        4 commits 4
        4 -> 2 has flushed 5 of 5 in 1
        2 commits 5
        > state
        1 is down, log 0..2@0 flushed 2
        2 leader in 1, log 0..5@1 flushed 5, commit 5
        3 follower in 1, log 0..4@1 flushed 4, commit 2
        4 follower in 1, log 0..5@1 flushed 5, commit 4
    """)


def test_a_leader_that_was_removed_steps_down_and_hands_over() -> None:
    """[15]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        > change 1 2 3
        > heartbeat 1
        2 commits 1
        3 commits 1
        1 writes a configuration
        1 has voters 2 3, outgoing 1 2 3
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        > settle
        2 writes 94 bytes
        2 has voters 2 3, outgoing 1 2 3
        3 writes 94 bytes
        3 has voters 2 3, outgoing 1 2 3
        2 -> 1 has flushed 2 of 2 in 0
        3 -> 1 has flushed 2 of 2 in 0
        1 commits 2
        1 writes a configuration
        1 has voters 2 3
        1 -> 2 append 2@0..3 in 0, commit 2
        1 -> 3 append 2@0..3 in 0, commit 2
        2 writes 85 bytes
        2 has voters 2 3
        2 commits 2
        3 writes 85 bytes
        3 has voters 2 3
        3 commits 2
        2 -> 1 has flushed 3 of 3 in 0
        3 -> 1 has flushed 3 of 3 in 0
        1 commits 3
        1 -> 2 append 3@0 in 0, commit 3
        1 -> 3 append 3@0 in 0, commit 3
        1 -> 2 take over from 0
        1 is follower in term 0
        2 commits 3
        2 -> 1 has flushed 3 of 3 in 0
        3 commits 3
        3 -> 1 has flushed 3 of 3 in 0
        2 is candidate in term 1
        2 saves term 1, votes for 2
        2 -> 3 asks for a vote in 1, log 3@0 (sent ahead)
        3 saves term 1, votes for 2
        3 is follower in term 1
        3 -> 2 grants the vote in 1
        2 is leader in term 1
        2 begins its term
        2 -> 3 append 3@0..4 in 1, commit 3
        3 is follower of 2 in term 1
        3 writes 74 bytes
        3 -> 2 has flushed 4 of 4 in 1
        2 commits 4
        > state
        1 follower in 0, log 0..3@0 flushed 3, commit 3
        2 leader in 1, log 0..4@1 flushed 4, commit 4
        3 follower in 1, log 0..4@1 flushed 4, commit 3
    """)


def test_removed_replicas_do_not_cause_elections() -> None:
    """[4, 5, 15]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> cut 3
        > change 1 1 2
        > heartbeat 1
        2 commits 1
        1 writes a configuration
        1 has voters 1 2, outgoing 1 2 3
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        >> settle
        >> wait 0.6
        >> heartbeat 1
        >> wait 0.4
        >> heartbeat 1
        >> join 3
        > wait 0.4
        3 is pre-candidate in term 0
        3 -> 1 asks for a pre-vote in 1, log 1@0
        3 -> 2 asks for a pre-vote in 1, log 1@0
        > deliver
        > state
        1 leader in 0, log 0..3@0 flushed 3, commit 3
        2 follower in 0, log 0..3@0 flushed 3, commit 3
        3 pre-candidate in 0, log 0..1@0 flushed 1, commit 0
    """)


def test_a_removed_replica_may_still_be_needed_to_elect_a_leader() -> None:
    """[15] Only 1 has the entry by which it goes, and 2 cannot be elected without it."""
    scripted = ScriptedGroup(1, others=1)
    scripted.play("""
        >> elect 1
        >> change 1 2
        >> flush 1
        >> deliver
        >> flush 1
        >> save 2
        >> deliver
        >> flush 2
        >> deliver
        >> heartbeat 1
        >> deliver
        >> flush 2
        >> deliver
        >> cut 2
        > flush 1
        1 commits 3
        1 writes a configuration
        1 has voters 2
        1 -> 2 append 3@0..4 in 0, commit 3
        >> flush 1
        >> crash 1
        >> start 1
        >> join 2
        > state
        1 follower in 0, log 0..4@0 flushed 4, commit 0
        2 follower in 0, log 0..3@0 flushed 3, commit 2
        > tick 2
        2 is pre-candidate in term 0
        2 -> 1 asks for a pre-vote in 1, log 3@0
        > deliver
        1 -> 2 denies the pre-vote in 0
        > tick 1
        1 is pre-candidate in term 0
        1 -> 2 asks for a pre-vote in 1, log 4@0
        > deliver
        2 -> 1 grants the pre-vote in 1
        1 is candidate in term 1
        1 saves term 1, votes for 1
        > settle
        1 -> 2 asks for a vote in 1, log 4@0
        2 saves term 1, votes for 1
        2 is follower in term 1
        2 -> 1 grants the vote in 1
        1 is leader in term 1
        1 begins its term
        1 -> 2 append 4@0..5 in 1, commit 0
        2 is follower of 1 in term 1
        2 -> 1 rejects 4, maybe 3@0 in 1
        1 -> 2 append 3@0..5 in 1, commit 0
        2 writes 156 bytes
        2 has voters 2
        2 -> 1 has flushed 5 of 5 in 1
        1 commits 5
        1 -> 2 append 5@1 in 1, commit 5
        1 -> 2 take over from 1
        1 is follower in term 1
        2 commits 5
        2 -> 1 has flushed 5 of 5 in 1
        2 is candidate in term 2
        2 saves term 2, votes for 2
        2 is leader in term 2
        > state
        1 follower in 1, log 0..5@1 flushed 5, commit 5
        2 leader in 2, log 0..5@1 flushed 5, commit 5
    """)


def test_observers_get_everything_and_decide_nothing() -> None:
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        > change 1 1 2 3 / 4
        1 writes a configuration
        1 has voters 1 2 3, learners 4
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        1 -> 4 append 1@0..2 in 0, commit 1
        >> settle
        >> heartbeat 1
        > propose 1 1
        1 -> 2 append 2@0..3 in 0, commit 2
        1 -> 3 append 2@0..3 in 0, commit 2
        1 -> 4 append 2@0..3 in 0, commit 2
        >> deliver
        > flush 4
        4 -> 1 has flushed 3 of 3 in 0
        > deliver
        > flush 1
        > flush 2
        2 -> 1 has flushed 3 of 3 in 0
        > deliver
        1 commits 3
        > state
        1 leader in 0, log 0..3@0 flushed 3, commit 3
        2 follower in 0, log 0..3@0 flushed 3, commit 2
        3 follower in 0, log 0..3@0 flushed 2, commit 2
        4 follower in 0, log 0..3@0 flushed 3, commit 2
    """)
    progress = scripted.machines[1].raft.progress()
    assert [(one.replica.node, one.learner) for one in progress] == [
        (1, False),
        (2, False),
        (3, False),
        (4, True),
    ]
    assert scripted.machines[4].raft.next_deadline == float("inf")


def test_a_node_that_lost_its_folder_is_another_replica() -> None:
    """[15] The answers of its earlier incarnation do not count, and it does not vote."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 1
        >> settle
        >> propose 1 1
        >> deliver
        >> flush 3
    """)
    late = scripted.wires[replica(3), replica(1)].pop()
    scripted.wipe(3, life=2)
    leader = scripted.machines[1]
    scripted.play("""
        > change 1 1 2 3
        1 writes a configuration
        1 has voters 1 2 3, learners 3
        1 -> 2 append 3@0..4 in 0, commit 2
        1 -> 3 append 3@0..4 in 0, commit 2
        1 -> 3 append 3@0..4 in 0, commit 2
        >> settle
        >> heartbeat 1
        >> settle
        >> settle
        > state
        1 leader in 0, log 0..6@0 flushed 6, commit 6
        2 follower in 0, log 0..6@0 flushed 6, commit 5
        3 follower in 0, log 0..6@0 flushed 6, commit 5
    """)
    assert leader.raft.config == GroupConfig((replica(1), replica(2), replica(3, 2)))
    assert leader.raft.step(scripted.now, replica(3), late) == []


def test_limits_of_a_configuration() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
    """)
    leader = scripted.machines[1].raft
    too_many = tuple(replica(node) for node in range(1, 66))
    twice = (replica(1), replica(1, 2))
    for voters, learners in [((), ()), (too_many, ()), (twice, ()), (twice[:1], twice[:1])]:
        with pytest.raises(ProtocolViolation):
            leader.change_config(scripted.now, voters, learners)
    assert not leader.changing
    with pytest.raises(RaftRefused) as refused:
        scripted.machines[2].raft.change_config(scripted.now, (replica(1),))
    assert refused.value.reason is RaftRefusal.NOT_LEADER


def test_leadership_is_transferred_in_one_round_trip() -> None:
    """[5] The successor need not wait for leases, and the leader has none from then on."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        > transfer 1 3
        1 -> 3 take over from 0
    """)
    leader = scripted.machines[1].raft
    assert not leader.may_serve(scripted.now)
    assert leader.may_propose() is RaftRefusal.TRANSFERRING
    scripted.play("""
        > settle
        3 is candidate in term 1
        3 saves term 1, votes for 3
        3 -> 1 asks for a vote in 1, log 1@0 (sent ahead)
        3 -> 2 asks for a vote in 1, log 1@0 (sent ahead)
        1 saves term 1, votes for 3
        1 is follower in term 1
        2 saves term 1, votes for 3
        2 is follower in term 1
        1 -> 3 grants the vote in 1
        2 -> 3 grants the vote in 1
        3 is leader in term 1
        3 begins its term
        3 -> 1 append 1@0..2 in 1, commit 1
        3 -> 2 append 1@0..2 in 1, commit 1
        1 is follower of 3 in term 1
        1 writes 74 bytes
        2 is follower of 3 in term 1
        2 writes 74 bytes
        1 -> 3 has flushed 2 of 2 in 1
        2 -> 3 has flushed 2 of 2 in 1
        3 commits 2
        > state
        1 follower in 1, log 0..2@1 flushed 2, commit 1
        2 follower in 1, log 0..2@1 flushed 2, commit 1
        3 leader in 1, log 0..2@1 flushed 2, commit 2
    """)


def test_a_successor_is_caught_up_first() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        > propose 1 1
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        > transfer 1 2
        > deliver
        2 writes 61 bytes
        2 commits 1
        3 writes 61 bytes
        3 commits 1
        > flush 2
        2 -> 1 has flushed 2 of 2 in 0
        > deliver
        1 -> 2 take over from 0
        2 is candidate in term 1
        2 saves term 1, votes for 2
    """)


def test_a_transfer_that_makes_no_progress_is_given_up() -> None:
    """The successor never caught up, so it was never sent ahead: nothing has happened."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 3
        >> propose 1 1
        >> settle
        > transfer 1 3
        >> wait 0.6
        >> heartbeat 1
        > wait 0.4
        1 -> 3 append 1@0 in 0, commit 2
        > propose 1 1
        1 -> 2 append 2@0..3 in 0, commit 2
    """)


def test_a_failed_handover_after_the_timeout_message_costs_a_term() -> None:
    """[5] The message may still arrive, and no lease would hold."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> transfer 1 3
        >> crash 3
        >> wait 0.6
        >> heartbeat 1
        > wait 0.4
        1 is candidate in term 1
        1 saves term 1, votes for 1
        > settle
        1 -> 2 asks for a vote in 1, log 1@0 (sent ahead)
        1 -> 3 asks for a vote in 1, log 1@0 (sent ahead)
        2 saves term 1, votes for 1
        2 is follower in term 1
        2 -> 1 grants the vote in 1
        1 is leader in term 1
        1 begins its term
        1 -> 2 append 1@0..2 in 1, commit 1
        1 -> 3 append 1@0..2 in 1, commit 1
        2 is follower of 1 in term 1
        2 writes 74 bytes
        2 -> 1 has flushed 2 of 2 in 1
        1 commits 2
    """)


def test_leadership_is_not_transferred_to_a_replica_without_a_vote() -> None:
    scripted = ScriptedGroup(1, others=1)
    scripted.play("""
        >> elect 1
        > transfer 1 2
        refused: the replica has no vote in this group
    """)


def test_a_late_newcomer_to_an_idle_group_votes_as_soon_as_it_has_everything() -> None:
    """[13] Its first round was a long one, and nothing more is written that a second one could be of."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> cut 4
        >> change 1 1 2 3 4
        >> settle
        >> heartbeat 1
        >> wait 0.9
        >> heartbeat 1
        >> wait 0.9
        >> heartbeat 1
        >> join 4
        >> heartbeat 1
        >> settle
        >> wait 0.4
        >> settle
        >> heartbeat 1
        >> settle
    """)
    config = scripted.machines[1].raft.config
    assert config is not None
    assert config.voters == tuple(replica(node) for node in (1, 2, 3, 4))
    assert not config.joint


# --- entries that cannot be written


@pytest.mark.parametrize("fault", ["full", "refuse"])
def test_a_configuration_that_a_follower_could_not_write_does_not_hold(fault: str) -> None:
    """[14] It would decide, and as a leader change the members, by an entry that is not in its log."""
    scripted = ScriptedGroup(3)
    scripted.play(f">> elect 1\n>> heartbeat 1\n>> {fault} 2\n>> change 1 1 3\n>> heartbeat 1\n>> settle")
    assert scripted.machines[3].raft.config == GroupConfig((replica(1), replica(3)))
    assert scripted.machines[2].raft.config == GroupConfig((replica(1), replica(2), replica(3)))
    assert scripted.machines[2].raft.configs.newest_index <= scripted.machines[2].log.end_index


def test_a_configuration_that_a_leader_could_not_write_does_not_hold_and_it_steps_down() -> None:
    scripted = ScriptedGroup(3)
    scripted.play(">> elect 1\n>> heartbeat 1\n>> full 1\n>> change 1 1 3\n>> heartbeat 1\n>> settle")
    assert scripted.machines[1].raft.role is Role.FOLLOWER
    assert scripted.machines[1].raft.config == GroupConfig((replica(1), replica(2), replica(3)))
    scripted.play(
        ">> free 1\n>> elect 2\n>> change 2 1 2\n>> heartbeat 2\n>> settle\n>> heartbeat 2\n>> settle"
    )
    assert scripted.machines[1].raft.config == GroupConfig((replica(1), replica(2)))
