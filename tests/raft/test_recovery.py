"""[20] A replica continues alone after the others are lost. Numbers are the invariants of raft/core.py."""

from penstock.raft import GroupConfig
from tests.raft.machine import replica
from tests.raft.scripted_group import ScriptedGroup


def test_the_last_of_three_continues_with_all_that_it_has() -> None:
    """Its last batch was never committed, because the others never received it. It is committed now."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        >> settle
        >> heartbeat 1
        >> crash 2
        >> crash 3
        >> propose 1 1
        >> flush 1
        >> wait 3
        > alone 1
        1 is candidate in term 1000
        1 saves term 1000, votes for 1
        > save 1
        1 has voters 1
        1 is leader in term 1000
        1 commits 4
        1 begins its term
        1 writes a configuration
        > flush 1
        1 commits 6
        > propose 1 1
        > flush 1
        1 commits 7
        > state
        1 leader in 1000, log 0..7@1000 flushed 7, commit 7
        2 is down, log 0..3@0 flushed 3
        3 is down, log 0..3@0 flushed 3
    """)
    assert scripted.machines[1].raft.config == GroupConfig((replica(1),))


def test_new_replicas_join_it_by_an_ordinary_change() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        >> settle
        >> crash 2
        >> crash 3
        >> wait 3
        >> alone 1
        >> save 1
        >> flush 1
    """)
    scripted.wipe(2, life=2)
    scripted.wipe(3, life=2)
    scripted.play("""
        >> change 1 1 2 3
        >> settle
        >> heartbeat 1
        >> settle
        >> heartbeat 1
        > state
        1 leader in 1000, log 0..8@1000 flushed 8, commit 8
        2 follower in 1000, log 0..8@1000 flushed 8, commit 8
        3 follower in 1000, log 0..8@1000 flushed 8, commit 8
    """)
    assert scripted.machines[1].raft.config == GroupConfig((replica(1), replica(2, 2), replica(3, 2)))


def test_a_group_in_a_joint_configuration_whose_new_half_is_gone_is_recovered() -> None:
    """1 and 2 have the joint entry, and neither can be elected without 3."""
    scripted = ScriptedGroup(2, others=1)
    scripted.play("""
        >> elect 1
        >> change 1 3
        >> settle
        >> heartbeat 1
        >> deliver
        >> flush 1
        >> flush 2
        >> crash 3
        >> wait 5
        > alone 2
        2 is candidate in term 1000
        2 saves term 1000, votes for 2
        >> save 2
        >> flush 2
        >> change 2 2 1
        >> settle
        >> heartbeat 2
        >> settle
        >> heartbeat 2
        > state
        1 follower in 1000, log 0..8@1000 flushed 8, commit 8
        2 leader in 1000, log 0..8@1000 flushed 8, commit 8
        3 is down, log 0..2@0 flushed 2
    """)


def test_a_crash_before_the_entry_is_flushed_changes_only_the_term() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 2
        >> crash 3
        >> wait 3
        >> alone 1
        >> save 1
        >> crash 1
        >> start 1
        > state
        1 follower in 1000, log 0..1@0 flushed 1, commit 0
        2 is down, log 0..1@0 flushed 1
        3 is down, log 0..1@0 flushed 1
        >> wait 3
        > alone 1
        1 is candidate in term 2000
        1 saves term 2000, votes for 1
    """)
    assert scripted.machines[1].raft.config == GroupConfig((replica(1), replica(2), replica(3)))


def test_a_replica_that_has_a_leader_or_knows_nothing_is_refused() -> None:
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        > alone 4
        refused: this replica knows nothing of the group
        >> heartbeat 1
        > alone 1
        refused: the group has a leader
        > alone 2
        refused: the group has a leader
        >> cut 1
        >> wait 0.5
        > alone 2
        refused: the group has a leader
    """)


def test_a_slow_disk_only_delays_it() -> None:
    """Its deadline comes before its vote is durable: it does not go back to asking the others."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 2
        >> crash 3
        >> wait 3
        >> alone 1
        > tick 1
        > tick 1
        > save 1
        1 has voters 1
        1 is leader in term 1000
        1 begins its term
        1 writes a configuration
    """)
