"""Schedules that broke other systems, as far as they concern the core. Numbers are the invariants of raft/core.py."""

from penstock.raft import Append, AppendReply
from tests.raft.machine import replica
from tests.raft.scripted_group import ScriptedGroup


def test_kafka_10533_unflushed_entries_do_not_move_the_watermark() -> None:
    """[9, 11]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 4
        >> deliver
        >> flush 1
        > deliver
        > crash 2
        > crash 3
        > state
        1 leader in 0, log 0..5@0 flushed 5, commit 1
        2 is down, log 0..1@0 flushed 1
        3 is down, log 0..1@0 flushed 1
    """)


def test_kafka_14704_a_follower_commits_nothing_that_its_leader_has_not_confirmed() -> None:
    """[10, 12] 1 has five entries that no other replica has; the new leader's commit reaches beyond them."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> cut 1
        >> propose 1 1 1 1 1 1
        >> flush 1
        >> wait 1.0
        >> tick 2
        >> settle
        >> propose 2 3 3
        >> settle
        >> join 1
        > heartbeat 2
        1 saves term 1
        1 is follower of 2 in term 1
        3 commits 8
        > save 1
        1 -> 2 has flushed 0 of 0 in 1
        > wait 0.5
        2 -> 1 append 1@0..8 in 1, commit 8
        > deliver
        1 cuts its log at 1
        1 writes 196 bytes
        > flush 1
        1 commits 8
        1 -> 2 has flushed 8 of 8 in 1
        > state
        1 follower in 1, log 0..8@1 flushed 8, commit 8
        2 leader in 1, log 0..8@1 flushed 8, commit 8
        3 follower in 1, log 0..8@1 flushed 8, commit 8
    """)


def test_ra_508_a_heartbeats_commit_does_not_cover_a_suffix_that_was_never_compared() -> None:
    """[12]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> cut 1
        >> propose 1 1 1
        >> flush 1
        >> wait 1.0
        >> tick 2
        >> settle
        >> propose 2 5
        >> settle
        >> join 1
        > heartbeat 2
        1 saves term 1
        1 is follower of 2 in term 1
        3 commits 7
        > heartbeat 2
        > state
        1 follower in 1, log 0..3@0 flushed 3, commit 1
        2 leader in 1, log 0..7@1 flushed 7, commit 7
        3 follower in 1, log 0..7@1 flushed 7, commit 7
    """)


def test_kafka_15221_an_answer_from_before_a_wipe_does_not_count() -> None:
    """[15]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 1
        >> deliver
        >> flush 2
    """)
    scripted.wipe(2, life=2)
    leader = scripted.machines[1]
    leader.flush(scripted.now)
    assert leader.raft.commit_index == 1
    assert leader.raft.step(scripted.now, replica(2, 2), AppendReply(0, 2, 2)) == []
    assert leader.raft.commit_index == 1


def test_kafka_9491_a_replica_that_installs_a_prefix_has_its_watermark_there() -> None:
    """[16]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> cut 3
        >> propose 1 5
        >> settle
        >> heartbeat 1
        >> delete 1 6
        >> join 3
        >> heartbeat 1
        >> wait 0.4
        >> settle
        > state
        1 leader in 0, log 6..6@0 flushed 6, commit 6
        2 follower in 0, log 0..6@0 flushed 6, commit 6
        3 follower in 0, log 6..6@0 flushed 6, commit 6
    """)


def test_kip_279_two_failovers_in_a_row_do_not_make_logs_differ() -> None:
    """[7, 8] 1 and 2 each wrote an entry at the same index that no other replica has."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 1
        >> drop 1 2
        >> drop 1 3
        >> flush 1
        >> crash 1
        >> wait 1.0
        >> tick 2
        >> settle
        >> propose 2 1
        >> drop 2 3
        >> flush 2
        >> crash 2
        >> start 1
        >> wait 1.0
        >> tick 3
        >> settle
        >> propose 3 1
        >> settle
        >> start 2
        >> heartbeat 3
        >> wait 0.5
        >> settle
        >> heartbeat 3
        > state
        1 follower in 2, log 0..4@2 flushed 4, commit 4
        2 follower in 2, log 0..4@2 flushed 4, commit 4
        3 leader in 2, log 0..4@2 flushed 4, commit 4
    """)
    logs = [machine.log.entries for machine in scripted.machines.values()]
    assert logs[0] == logs[1] == logs[2]


def test_raft_figure_8_a_majority_alone_does_not_commit_an_entry_of_an_earlier_term() -> None:
    """[11] 1 and 3 have flushed the entry of term 0; that counts only once an entry of term 1 stands above it."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> propose 1 1
        >> drop 1 2
        >> drop 1 3
        >> flush 1
        >> crash 1
        >> start 1
        >> wait 1.0
    """)
    one, three = scripted.machines[1], scripted.machines[3]
    scripted.play(">> tick 1\n>> deliver\n>> save 1\n>> deliver\n>> save 3\n>> save 2")
    scripted.wires[replica(2), replica(1)].clear()
    scripted.play("""
        > deliver 3 1
        1 is leader in term 1
        1 begins its term
        1 -> 2 append 2@0..3 in 1, commit 0
        1 -> 3 append 2@0..3 in 1, commit 0
    """)
    scripted.wires[replica(1), replica(2)].clear()
    leader = one.raft
    assert (one.log.flushed_index, leader.commit_index) == (2, 0)
    leader.step(scripted.now, three.me, AppendReply(leader.term, 2, 3))
    assert leader.commit_index == 0
    one.flush(scripted.now)
    assert leader.commit_index == 0
    leader.step(scripted.now, three.me, AppendReply(leader.term, 3, 3))
    assert leader.commit_index == 3


def test_redpanda_3114_a_flush_from_before_a_truncation_does_not_cover_later_entries() -> None:
    """[9, 10] 1 had flushed its own entries up to where the new ones end."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> cut 1
        >> propose 1 2 2
        >> flush 1
        >> wait 1.0
        >> tick 2
        >> settle
        >> propose 2 3
        >> settle
        >> join 1
        >> heartbeat 2
        >> save 1
        >> wait 0.5
        > deliver
        1 cuts its log at 1
        1 writes 135 bytes
        > state
        1 follower in 1, log 0..5@1 flushed 1, commit 1
        2 leader in 1, log 0..5@1 flushed 5, commit 5
        3 follower in 1, log 0..5@1 flushed 5, commit 5
        > flush 1
        1 commits 5
        1 -> 2 has flushed 5 of 5 in 1
    """)


def test_redpanda_11360_a_deposed_leader_does_not_commit_by_late_answers() -> None:
    """[9, 11]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> propose 1 1
        >> deliver
        >> flush 1
        >> flush 2
        > state
        1 leader in 0, log 0..2@0 flushed 2, commit 1
        2 follower in 0, log 0..2@0 flushed 2, commit 1
        3 follower in 0, log 0..2@0 flushed 1, commit 1
    """)
    one, two = scripted.machines[1], scripted.machines[2]
    late = scripted.wires[two.me, one.me].pop()
    one.do(scripted.now, one.raft.step(scripted.now, replica(3), Append(5, 1, 0, 1, 1, 0)))
    assert one.raft.step(scripted.now, two.me, late) == []
    assert one.raft.commit_index == 1


def test_rabbitmq_14589_a_gap_never_stays() -> None:
    """[8] Three of four appends are lost, and no more is written."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 1 1 1 1
        >> drop 1 2
        >> drop 1 2
        >> drop 1 2
        >> settle
        >> wait 0.4
        >> settle
        > state
        1 leader in 0, log 0..5@0 flushed 5, commit 5
        2 follower in 0, log 0..5@0 flushed 5, commit 1
        3 follower in 0, log 0..5@0 flushed 5, commit 1
    """)


def test_etcd_14370_a_sole_voter_does_not_commit_before_its_flush() -> None:
    """[11]"""
    scripted = ScriptedGroup(1)
    scripted.play("""
        >> elect 1
        > propose 1 1
        > flush 1
        1 commits 2
    """)


def test_etcd_15247_a_slow_flush_does_not_hide_the_loss_of_the_majority() -> None:
    """[6]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> propose 1 1
        >> cut 1
        > wait 1.1
        1 -> 2 append 1@0 in 0, commit 1
        1 -> 3 append 1@0 in 0, commit 1
        1 -> 2 append 1@0 in 0, commit 1
        1 -> 3 append 1@0 in 0, commit 1
        1 -> 2 append 1@0 in 0, commit 1
        1 -> 3 append 1@0 in 0, commit 1
        1 is follower in term 0
        > flush 1
        > state
        1 follower in 0, log 0..2@0 flushed 2, commit 1
        2 follower in 0, log 0..1@0 flushed 1, commit 1
        3 follower in 0, log 0..1@0 flushed 1, commit 1
    """)


def test_kip_966_a_replica_that_lost_its_unflushed_tail_is_refilled_and_truncates_no_other() -> None:
    """[3, 9]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        >> deliver
        >> flush 2
        >> flush 3
        >> deliver
        > crash 1
        > start 1
        > state
        1 follower in 0, log 0..1@0 flushed 1, commit 0
        2 follower in 0, log 0..3@0 flushed 3, commit 1
        3 follower in 0, log 0..3@0 flushed 3, commit 1
        > tick 1
        1 is pre-candidate in term 0
        1 -> 2 asks for a pre-vote in 1, log 1@0
        1 -> 3 asks for a pre-vote in 1, log 1@0
        > deliver
        2 -> 1 denies the pre-vote in 0
        3 -> 1 denies the pre-vote in 0
        > tick 2
        2 is pre-candidate in term 0
        2 -> 1 asks for a pre-vote in 1, log 3@0
        2 -> 3 asks for a pre-vote in 1, log 3@0
        >> settle
        >> wait 0.5
        >> settle
        > state
        1 follower in 1, log 0..4@1 flushed 4, commit 1
        2 leader in 1, log 0..4@1 flushed 4, commit 4
        3 follower in 1, log 0..4@1 flushed 4, commit 1
    """)


def test_kip_1186_a_voter_that_was_never_fed_does_not_block_the_commit() -> None:
    """[13] It becomes a learner first."""
    scripted = ScriptedGroup(1, others=1)
    scripted.play("""
        >> elect 1
        >> propose 1 1
        >> settle
        >> cut 2
        > change 1 1 2
        1 writes a configuration
        1 has voters 1, learners 2
        1 -> 2 append 2@0..3 in 0, commit 2
        > flush 1
        1 commits 3
        > propose 1 1
        > flush 1
        1 commits 4
    """)


def test_nats_7545_a_vote_that_was_not_durable_was_not_given() -> None:
    """[1]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 1
        >> wait 1.0
        >> tick 2
        >> deliver
        >> save 2
        > deliver
        3 saves term 1, votes for 2
        3 is follower in term 1
        > crash 3
        > start 3
        > wait 1.1
    """)
    three = scripted.machines[3]
    assert three.hard.term == 0
    assert not scripted.wires[replica(3), replica(2)]
