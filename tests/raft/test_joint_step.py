"""[19] A change of members enters its joint step only with voters that are there. Numbers are the invariants of
raft/core.py."""

import msgspec

from penstock.raft import GroupConfig
from tests.raft.machine import SETTINGS, replica
from tests.raft.scripted_group import ScriptedGroup

PATIENT = msgspec.structs.replace(SETTINGS, catch_up_timeout_s=2)


def config_of(scripted: ScriptedGroup, node: int) -> GroupConfig | None:
    return scripted.machines[node].raft.config


def test_a_change_to_a_voter_whose_disk_has_just_died_does_not_cost_the_group() -> None:
    """1 answered a heartbeat a moment before its disk died. Without the rule, 2 writes "voters 1, outgoing 1 2 3". Then
    3 cannot win against 2's longer log, 2 cannot win without 1, and the group has no leader for ever."""
    scripted = ScriptedGroup(3, settings=PATIENT)
    scripted.play("""
        >> elect 2
        >> heartbeat 2
        >> crash 1
        > change 2 1
        > heartbeat 2
        > propose 2 1
        2 -> 1 append 1@0..2 in 0, commit 1
        2 -> 3 append 1@0..2 in 0, commit 1
        > settle
        3 writes 61 bytes
        3 -> 2 has flushed 2 of 2 in 0
        2 commits 2
        >> heartbeat 2
        >> crash 2
        >> start 2
        >> elect 3
        > state
        1 is down, log 0..1@0 flushed 1
        2 follower in 1, log 0..3@1 flushed 3, commit 2
        3 leader in 1, log 0..3@1 flushed 3, commit 3
        > change 3 3 2
        >> heartbeat 3
        >> settle
    """)
    assert config_of(scripted, 3) == GroupConfig((replica(3), replica(2)))


def test_a_change_that_no_answer_allows_is_given_up_and_may_be_abandoned() -> None:
    scripted = ScriptedGroup(3, settings=PATIENT)
    scripted.play("""
        >> elect 2
        >> crash 1
        > change 2 1 2
        >> heartbeat 2
        > change 2 2 3
        refused: the group's members are being changed
        > abandon 2
        > change 2 1
        >> wait 0.9
        >> heartbeat 2
        >> wait 0.9
        >> heartbeat 2
        >> wait 0.9
        >> heartbeat 2
    """)
    assert not scripted.machines[2].raft.changing
    assert config_of(scripted, 2) == GroupConfig((replica(1), replica(2), replica(3)))


def test_a_learner_that_had_caught_up_before_its_disk_died_gets_no_vote() -> None:
    """Every newcomer must answer: 1, 2 and 3 are a majority of the voters to come, but the group would be one loss
    away from its end without having gained a replica."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> change 1 1 2 3 / 4
        >> settle
        >> heartbeat 1
        >> crash 4
        > change 1 1 2 3 4
        > heartbeat 1
        > abandon 1
    """)
    config = GroupConfig((replica(1), replica(2), replica(3)), (), (replica(4),))
    assert config_of(scripted, 1) == config


def test_a_majority_of_the_voters_to_come_suffices_beside_the_newcomers() -> None:
    """A replacement of a voter that is down must not wait for other voters that are down."""
    scripted = ScriptedGroup(5, others=1)
    scripted.play("""
        >> elect 1
        >> crash 4
        >> crash 5
        >> change 1 1 2 3 4 6
        >> settle
        > heartbeat 1
        2 commits 2
        3 commits 2
        1 writes a configuration
        1 has voters 1 2 3 4 6, outgoing 1 2 3 4 5
        1 -> 2 append 2@0..3 in 0, commit 2
        1 -> 3 append 2@0..3 in 0, commit 2
        1 -> 4 append 2@0..3 in 0, commit 2
        1 -> 6 append 2@0..3 in 0, commit 2
        1 -> 5 append 2@0..3 in 0, commit 2
        >> settle
    """)
    assert config_of(scripted, 1) == GroupConfig(tuple(replica(node) for node in (1, 2, 3, 4, 6)))


def test_an_answer_of_long_ago_does_not_count() -> None:
    """2 answered and died; 3, which had caught up too, answers only after an election timeout."""
    scripted = ScriptedGroup(1, others=2)
    scripted.play("""
        >> elect 1
        >> change 1 1 / 2 3
        >> settle
        >> heartbeat 1
        >> cut 3
        > change 1 2 3
        > heartbeat 1
        >> crash 2
        >> wait 1.1
        >> join 3
        > heartbeat 1
        > settle
    """)
    assert config_of(scripted, 1) == GroupConfig((replica(1),), (), (replica(2), replica(3)))
    scripted.play("""
        >> start 2
        > heartbeat 1
        2 is follower of 1 in term 0
        2 -> 1 has flushed 0 of 0 in 0
        1 writes a configuration
        1 has voters 2 3, outgoing 1
        1 -> 2 append 2@0..3 in 0, commit 2
        1 -> 3 append 2@0..3 in 0, commit 2
    """)


def test_the_next_leader_asks_for_answers_to_its_own_heartbeats() -> None:
    """The learners' entry is committed and 4 has answered; then 1 loses the lead and 4 its disk."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> change 1 1 2 3 / 4
        >> settle
        >> heartbeat 1
        >> crash 1
        >> crash 4
        >> wait 1.0
        >> elect 2
        >> change 2 4 2 3
        > heartbeat 2
        3 commits 3
        > settle
    """)
    assert config_of(scripted, 2) == GroupConfig((replica(1), replica(2), replica(3)), (), (replica(4),))


def test_a_change_of_learners_alone_waits_for_no_answer() -> None:
    """The voters stay as they are, so no decision depends on the new replicas."""
    scripted = ScriptedGroup(3, others=1)
    scripted.play("""
        >> elect 1
        >> crash 4
        > change 1 1 2 3 / 4
        1 writes a configuration
        1 has voters 1 2 3, learners 4
        1 -> 2 append 1@0..2 in 0, commit 1
        1 -> 3 append 1@0..2 in 0, commit 1
        1 -> 4 append 1@0..2 in 0, commit 1
    """)


def test_a_write_that_one_voter_committed_is_not_acknowledged_because_there_are_three_now() -> None:
    """[18] Two copies are required. 1 commits alone before the change, and no other replica has this write yet."""
    scripted = ScriptedGroup(1, others=2)
    leader = scripted.machines[1]
    scripted.play("""
        >> elect 1
    """)
    leader.do(scripted.now, leader.raft.require_replicas(2))
    scripted.play("""
        >> change 1 1 2 3
        >> settle
        >> propose 1 1
        > flush 1
        1 commits 3, enough have 0
        > heartbeat 1
        1 writes a configuration
        1 has voters 1 2 3, outgoing 1
        1 -> 2 append 3@0..4 in 0, commit 3
        1 -> 3 append 3@0..4 in 0, commit 3
        > flush 1
        1 commits 3, enough have 2
    """)
