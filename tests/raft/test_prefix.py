"""Replicas that need entries that the leader has deleted. Numbers are the invariants of raft/core.py."""

from penstock.raft import AppendReply, Send
from tests.raft.scripted_group import ScriptedGroup


def test_a_replica_that_needs_deleted_entries_installs_the_prefix() -> None:
    """[16]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> cut 3
        >> propose 1 2 3
        >> settle
        >> heartbeat 1
        > delete 1 3
        >> join 3
        >> heartbeat 1
        > wait 0.4
        1 -> 3 append 6@0 in 0, commit 6
        > deliver
        3 starts at offset 2
        3 -> 1 rejects 6, maybe 1@0 in 0
        1 sends its prefix to 3
        3 restarts its log at 3
        3 has voters 1 2 3
        3 commits 3
        3 -> 1 has flushed 3 of 3 in 0
        1 -> 3 append 3@0..6 in 0, commit 6
        3 writes 61 bytes
        > flush 3
        3 commits 6
        3 -> 1 has flushed 6 of 6 in 0
        > deliver
        > state
        1 leader in 0, log 3..6@0 flushed 6, commit 6
        2 follower in 0, log 0..6@0 flushed 6, commit 6
        3 follower in 0, log 3..6@0 flushed 6, commit 6
    """)


def test_a_newcomer_learns_the_group_from_the_prefix() -> None:
    """[15, 16] The entry that named its members is deleted."""
    scripted = ScriptedGroup(1, others=2)
    scripted.play("""
        >> elect 1
        >> change 1 1 2
        >> settle
        >> heartbeat 1
        >> settle
        >> propose 1 1 1
        >> settle
        >> heartbeat 1
        >> delete 1 9
        > change 1 1 2 3
        1 writes a configuration
        1 has voters 1 2, learners 3
        1 -> 2 append 6@0..7 in 0, commit 6
        1 -> 3 append 6@0..7 in 0, commit 6
        > settle
        2 starts at offset 2
        2 writes 88 bytes
        2 has voters 1 2, learners 3
        3 starts at offset 2
        3 -> 1 rejects 6, maybe 0@-1 in 0
        1 sends its prefix to 3
        3 restarts its log at 6
        3 has voters 1 2
        3 commits 6
        3 -> 1 has flushed 6 of 6 in 0
        1 -> 3 append 6@0..7 in 0, commit 6
        3 writes 88 bytes
        3 has voters 1 2, learners 3
        2 -> 1 has flushed 7 of 7 in 0
        3 -> 1 has flushed 7 of 7 in 0
        1 commits 7
        > heartbeat 1
        2 commits 7
        3 commits 7
        1 writes a configuration
        1 has voters 1 2 3, outgoing 1 2
        1 -> 2 append 7@0..8 in 0, commit 7
        1 -> 3 append 7@0..8 in 0, commit 7
        > settle
        2 writes 94 bytes
        2 has voters 1 2 3, outgoing 1 2
        3 writes 94 bytes
        3 has voters 1 2 3, outgoing 1 2
        2 -> 1 has flushed 8 of 8 in 0
        3 -> 1 has flushed 8 of 8 in 0
        1 commits 8
        1 writes a configuration
        1 has voters 1 2 3
        1 -> 2 append 8@0..9 in 0, commit 8
        1 -> 3 append 8@0..9 in 0, commit 8
        3 writes 88 bytes
        3 has voters 1 2 3
        3 commits 8
        2 writes 88 bytes
        2 has voters 1 2 3
        2 commits 8
        2 -> 1 has flushed 9 of 9 in 0
        3 -> 1 has flushed 9 of 9 in 0
        1 commits 9
        > state
        1 leader in 0, log 6..9@0 flushed 9, commit 9
        2 follower in 0, log 0..9@0 flushed 9, commit 8
        3 follower in 0, log 6..9@0 flushed 9, commit 8
    """)


def test_a_prefix_that_the_replica_already_has_changes_nothing() -> None:
    """[16] It came late, or twice."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2 3
        >> settle
        >> delete 1 3
    """)
    leader, follower = scripted.machines[1], scripted.machines[2]
    message = leader.raft.install_prefix(leader.log.prefix())
    effects = follower.raft.step(scripted.now, leader.me, message)
    assert effects == [Send(leader.me, AppendReply(0, 6, 6))]


def test_a_lost_prefix_is_sent_again() -> None:
    """[8]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> cut 3
        >> propose 1 2 3
        >> settle
        >> heartbeat 1
        > delete 1 3
        >> join 3
        >> heartbeat 1
        >> wait 0.4
        >> deliver 1 3
        >> deliver 3 1
        > drop 1 3
        lost: 1 -> 3 prefix up to 3@0 in 0
    """)
    for _ in range(20):
        scripted.play(">> wait 0.5\n>> heartbeat 1")
    scripted.play("""
        > deliver
        3 restarts its log at 3
        3 has voters 1 2 3
        3 commits 3
        3 -> 1 has flushed 3 of 3 in 0
        1 -> 3 append 3@0..6 in 0, commit 6
        3 writes 61 bytes
        > settle
        3 commits 6
        3 -> 1 has flushed 6 of 6 in 0
        > state
        1 leader in 0, log 3..6@0 flushed 6, commit 6
        2 follower in 0, log 0..6@0 flushed 6, commit 6
        3 follower in 0, log 3..6@0 flushed 6, commit 6
    """)
