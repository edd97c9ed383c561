"""How a group elects a leader, and keeps it. Numbers in brackets are the invariants of raft/core.py."""

from penstock.raft import HardState, Heartbeat, RequestVote, Role, Send, VoteReply
from tests.raft.machine import replica
from tests.raft.scripted_group import ScriptedGroup


def test_the_first_voter_of_a_new_group_leads_after_two_round_trips() -> None:
    """Votes, requests and grants wait for the disk (1)."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        > tick 1
        1 is pre-candidate in term -1
        1 -> 2 asks for a pre-vote in 0, log 0@-1
        1 -> 3 asks for a pre-vote in 0, log 0@-1
        > deliver
        2 -> 1 grants the pre-vote in 0
        3 -> 1 grants the pre-vote in 0
        1 is candidate in term 0
        1 saves term 0, votes for 1
        > save 1
        1 -> 2 asks for a vote in 0, log 0@-1
        1 -> 3 asks for a vote in 0, log 0@-1
        > deliver
        2 saves term 0, votes for 1
        2 is follower in term 0
        3 saves term 0, votes for 1
        3 is follower in term 0
        > save 2
        2 -> 1 grants the vote in 0
        > deliver
        1 is leader in term 0
        1 begins its term
        1 -> 2 append 0@-1..1 in 0, commit 0
        1 -> 3 append 0@-1..1 in 0, commit 0
        2 is follower of 1 in term 0
        2 writes 74 bytes
        3 is follower of 1 in term 0
        3 writes 74 bytes
        > settle
        3 -> 1 grants the vote in 0
        3 -> 1 has flushed 0 of 1 in 0
        2 -> 1 has flushed 1 of 1 in 0
        3 -> 1 has flushed 1 of 1 in 0
        1 commits 1
        > state
        1 leader in 0, log 0..1@0 flushed 1, commit 1
        2 follower in 0, log 0..1@0 flushed 1, commit 0
        3 follower in 0, log 0..1@0 flushed 1, commit 0
    """)


def test_a_candidate_is_not_elected_before_its_own_vote_is_durable() -> None:
    """[1] Not even by the votes of all others."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> tick 1
        >> deliver
    """)
    one = scripted.machines[1]
    assert one.raft.role is Role.CANDIDATE
    for voter in (2, 3):
        one.do(
            scripted.now, one.raft.step(scripted.now, replica(voter), VoteReply(0, granted=True, pre=False))
        )
    assert one.raft.role is Role.CANDIDATE
    one.save(scripted.now)
    assert one.raft.role is Role.LEADER


def test_a_vote_is_given_once_in_a_term_and_repeated_only_to_the_same_candidate() -> None:
    """[2]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 1
        > tick 2
        2 is pre-candidate in term 0
        2 -> 1 asks for a pre-vote in 1, log 1@0
        2 -> 3 asks for a pre-vote in 1, log 1@0
        > tick 3
        3 is pre-candidate in term 0
        3 -> 1 asks for a pre-vote in 1, log 1@0
        3 -> 2 asks for a pre-vote in 1, log 1@0
        > deliver
        3 -> 2 grants the pre-vote in 1
        2 -> 3 grants the pre-vote in 1
        3 is candidate in term 1
        3 saves term 1, votes for 3
        2 is candidate in term 1
        2 saves term 1, votes for 2
        > save 2
        2 -> 1 asks for a vote in 1, log 1@0
        2 -> 3 asks for a vote in 1, log 1@0
        > save 3
        3 -> 1 asks for a vote in 1, log 1@0
        3 -> 2 asks for a vote in 1, log 1@0
        > deliver
        3 -> 2 denies the vote in 1
        2 -> 3 denies the vote in 1
    """)


def test_a_shorter_log_gets_no_vote() -> None:
    """[3] Nor a pre-vote: so its term stays as it is."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> cut 3
        >> propose 1 2
        >> settle
        >> crash 1
        >> join 3
        > tick 3
        3 is pre-candidate in term 0
        3 -> 1 asks for a pre-vote in 1, log 1@0
        3 -> 2 asks for a pre-vote in 1, log 1@0
        > deliver
        2 -> 3 denies the pre-vote in 0
        > state
        1 is down, log 0..3@0 flushed 3
        2 follower in 0, log 0..3@0 flushed 3, commit 1
        3 pre-candidate in 0, log 0..1@0 flushed 1, commit 0
    """)


def test_a_replica_that_was_cut_off_returns_without_an_election() -> None:
    """[4, 5] Its pre-votes are denied, its term does not grow, and the next heartbeat ends its candidacy."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> cut 3
        > wait 0.7
        >> heartbeat 1
        > wait 0.5
        >> heartbeat 1
        >> join 3
        > wait 0.2
        3 is pre-candidate in term 0
        3 -> 1 asks for a pre-vote in 1, log 1@0
        3 -> 2 asks for a pre-vote in 1, log 1@0
        > deliver
        > heartbeat 1
        3 is follower of 1 in term 0
        3 -> 1 has flushed 0 of 0 in 0
        > state
        1 leader in 0, log 0..1@0 flushed 1, commit 1
        2 follower in 0, log 0..1@0 flushed 1, commit 1
        3 follower in 0, log 0..1@0 flushed 1, commit 0
    """)


def test_a_follower_with_a_live_leader_denies_votes() -> None:
    """[5] The request alone, without a pre-vote before it, is passed over as well."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
    """)
    one, two, three = (scripted.machines[node] for node in (1, 2, 3))
    request = RequestVote(one.raft.term + 1, 9, one.raft.term, pre=False)
    assert two.raft.step(scripted.now + 0.49, three.me, request) == []
    assert one.raft.step(scripted.now + 0.49, three.me, request) == []
    assert two.raft.step(scripted.now + 0.51, three.me, request) != []


def test_a_follower_honours_the_lease_that_its_leader_names() -> None:
    """[5] The leader's settings may differ from its own. It does not vote for itself earlier, either."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
    """)
    one, two, three = (scripted.machines[node] for node in (1, 2, 3))
    assert two.raft.heard(scripted.now, one.me, one.raft.term, 4.0)
    assert two.raft.next_deadline >= scripted.now + 4.0
    request = RequestVote(one.raft.term + 1, 9, one.raft.term, pre=False)
    assert two.raft.step(scripted.now + 3.9, three.me, request) == []
    assert two.raft.step(scripted.now + 4.1, three.me, request) != []


def test_a_follower_without_a_heartbeat_honours_its_own_election_timeout() -> None:
    """[5] A new leader's lease begins with its term, and its first entry does not name the time."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> crash 1
        >> wait 0.6
        >> tick 2
        >> settle
    """)
    two, three = scripted.machines[2], scripted.machines[3]
    assert (two.raft.role, three.raft.leader) == (Role.LEADER, two.me)
    request = RequestVote(two.raft.term + 1, 9, two.raft.term, pre=False)
    assert three.raft.step(scripted.now + 0.9, replica(1), request) == []
    assert three.raft.step(scripted.now + 1.1, replica(1), request) != []


def test_a_replica_that_has_just_started_denies_votes() -> None:
    """[5] It may have answered a leader's heartbeat a moment before it died."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> crash 2
        >> start 2
        > cut 1
    """)
    two, three = scripted.machines[2], scripted.machines[3]
    request = RequestVote(two.raft.term + 1, 9, two.raft.term, pre=True)
    assert two.raft.step(scripted.now + 0.9, three.me, request) == []
    assert two.raft.step(scripted.now + 1.1, three.me, request) != []


def test_a_follower_that_lost_its_leader_connection_campaigns_when_the_lease_ends_and_not_before() -> None:
    """[5]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> crash 1
    """)
    two = scripted.machines[2].raft
    patient = two.next_deadline
    two.leader_lost(scripted.now)
    lease_ends = scripted.now + two.settings.lease_s
    assert lease_ends <= two.next_deadline < scripted.now + two.settings.election_timeout_s <= patient
    stood = two.next_deadline
    two.leader_lost(scripted.now + 5)
    assert two.next_deadline == stood


def test_a_lease_longer_than_the_followers_own_timeout_binds_its_own_vote() -> None:
    """[5] Whatever timeout it draws meanwhile."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
    """)
    two, leader = scripted.machines[2].raft, scripted.machines[1].raft.me
    for _ in range(2):
        two.arm(scripted.now)
        assert two.heard(scripted.now, leader, two.term, 10.0)
        assert two.next_deadline >= scripted.now + 10.0
    assert two.heard(scripted.now, leader, two.term, 0.5)
    assert two.next_deadline < scripted.now + 10.0


def test_a_heartbeat_stops_the_campaign_of_a_follower_that_lost_the_connection() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
    """)
    two = scripted.machines[2].raft
    two.leader_lost(scripted.now)
    stood = two.next_deadline
    scripted.play(">> heartbeat 1")
    assert two.next_deadline > stood


def test_losing_a_connection_gives_a_leader_no_election_deadline() -> None:
    scripted = ScriptedGroup(1)
    scripted.play(">> elect 1")
    one = scripted.machines[1].raft
    one.leader_lost(scripted.now)
    assert one.next_deadline == float("inf")


def test_a_leader_without_a_majority_steps_down() -> None:
    """[6] (KAFKA-15489)"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> heartbeat 1
        >> cut 1
        > wait 0.9
        > wait 0.2
        1 is follower in term 0
        > state
        1 follower in 0, log 0..1@0 flushed 1, commit 1
        2 follower in 0, log 0..1@0 flushed 1, commit 1
        3 follower in 0, log 0..1@0 flushed 1, commit 1
    """)


def test_a_leader_serves_from_a_heartbeat_on_for_less_than_the_lease_time() -> None:
    """[5, 17]"""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> wait 0.95
    """)
    leader = scripted.machines[1].raft
    assert not leader.may_serve(scripted.now)
    scripted.play("""
        >> heartbeat 1
    """)
    assert leader.may_serve(scripted.now + 0.44)
    assert not leader.may_serve(scripted.now + 0.46)


def test_a_confirmed_term_counts_as_heard_from_its_beginning() -> None:
    """[17] A majority has taken the term's first entry, which was sent after it began."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
    """)
    leader = scripted.machines[1].raft
    assert leader.term_confirmed
    assert leader.may_serve(scripted.now + 0.44)
    assert not leader.may_serve(scripted.now + 0.46)


def test_a_leader_that_is_not_confirmed_does_not_serve() -> None:
    """[17] It does not know what was committed before its term, however well it is in touch with its followers."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> tick 1
        >> deliver
        >> save 1
        >> deliver
        >> save 2
        >> deliver
    """)
    leader = scripted.machines[1].raft
    assert (leader.role, leader.term_confirmed) == (Role.LEADER, False)
    for number in (2, 3):
        leader.answered(scripted.now, scripted.machines[number].me, leader.term)
    assert not leader.may_serve(scripted.now)
    scripted.play("""
        >> settle
    """)
    assert leader.may_serve(scripted.now)


def test_an_answer_to_an_old_heartbeat_is_an_old_lease() -> None:
    """[5] The lease runs from when the heartbeat was sent: the follower's election timeout began no earlier."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> wait 0.95
    """)
    leader, follower = scripted.machines[1].raft, scripted.machines[2].me
    leader.answered(scripted.now - 2, follower, leader.term)
    assert not leader.may_serve(scripted.now)
    leader.answered(scripted.now - 0.4, follower, leader.term - 1)
    assert not leader.may_serve(scripted.now)
    leader.answered(scripted.now - 0.4, follower, leader.term)
    assert leader.may_serve(scripted.now)


def test_a_heartbeat_is_not_answered_before_its_term_is_durable() -> None:
    """[1, 5] A replica that lost the term in a crash would not keep silent after it."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
    """)
    two, three = scripted.machines[2], scripted.machines[3]
    three.do(scripted.now, three.raft.step_heartbeat(scripted.now, two.me, Heartbeat(7, 0, 0)))
    assert not three.raft.heard(scripted.now, two.me, 7, 0.5)
    three.save(scripted.now)
    assert three.raft.heard(scripted.now, two.me, 7, 0.5)


def test_a_candidate_waits_for_its_disk_instead_of_taking_a_new_term_each_time() -> None:
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 1
        >> wait 0.9
        >> tick 2
        >> deliver
        > tick 2
        > tick 2
        > save 2
        2 -> 1 asks for a vote in 1, log 1@0
        2 -> 3 asks for a vote in 1, log 1@0
        > deliver
        3 saves term 1, votes for 2
        3 is follower in term 1
        > save 3
        3 -> 2 grants the vote in 1
        > deliver
        2 is leader in term 1
        2 begins its term
        2 -> 1 append 1@0..2 in 1, commit 0
        2 -> 3 append 1@0..2 in 1, commit 0
        3 is follower of 2 in term 1
        3 writes 74 bytes
    """)


def test_a_sole_voter_leads_after_one_write_and_needs_nothing_more() -> None:
    """[11] No message, no entry of its own, no deadline."""
    scripted = ScriptedGroup(1)
    scripted.play("""
        > tick 1
        1 is pre-candidate in term -1
        1 is candidate in term 0
        1 saves term 0, votes for 1
        > save 1
        1 is leader in term 0
    """)
    raft = scripted.machines[1].raft
    assert raft.next_deadline == float("inf")
    assert raft.term_confirmed
    assert raft.may_serve(scripted.now + 1e6)
    scripted.play("""
        > propose 1 3
        > flush 1
        1 commits 4
        > crash 1
        > start 1
        > tick 1
        1 is pre-candidate in term 0
        1 is candidate in term 1
        1 saves term 1, votes for 1
        > save 1
        1 is leader in term 1
        1 commits 4
        > state
        1 leader in 1, log 0..4@0 flushed 4, commit 4
    """)


def test_a_replica_that_does_not_know_its_group_neither_campaigns_nor_votes() -> None:
    """[15]"""
    scripted = ScriptedGroup(1, others=1)
    blank = scripted.machines[2]
    assert blank.raft.next_deadline == float("inf")
    assert blank.raft.step(scripted.now, replica(1), RequestVote(5, 9, 4, pre=False)) == []
    assert blank.raft.campaign(scripted.now) == []


def test_a_replica_that_forgot_its_group_but_has_its_entries_votes_but_does_not_campaign() -> None:
    """[15] A founder was away while its group changed: without its vote two of three might never elect a leader."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> propose 1 2
        >> settle
        >> crash 2
        """)
    forgetful = scripted.machines[2]
    forgetful.founding = None
    forgetful.start(scripted.now)
    assert forgetful.raft.config is None
    assert forgetful.raft.next_deadline == float("inf")
    later = scripted.now + 2 * scripted.settings.election_timeout_s
    request = RequestVote(5, forgetful.log.end_index, forgetful.log.last_term, pre=False)
    forgetful.do(later, forgetful.raft.step(later, replica(3), request))
    assert forgetful.unsaved[0].then == [Send(replica(3), VoteReply(5, granted=True, pre=False))]
    assert forgetful.raft.campaign(later) == []


def test_a_term_that_only_the_log_contains_is_kept() -> None:
    """[2] Entries are flushed apart from votes. Here the crash lost the one and kept the other."""
    scripted = ScriptedGroup(3)
    scripted.play("""
        >> elect 1
        >> crash 1
        >> wait 0.9
        >> tick 2
        >> deliver
        >> save 2
        >> deliver
        >> save 3
        >> deliver
        >> flush 3
    """)
    three = scripted.machines[3]
    three.hard = HardState(0, three.hard.voted_for)
    scripted.play("""
        > crash 3
        > start 3
        > state
        1 is down, log 0..1@0 flushed 1
        2 leader in 1, log 0..2@1 flushed 1, commit 0
        3 follower in 1, log 0..2@1 flushed 2, commit 0
        > wait 0.5
        2 -> 1 append 1@0..2 in 1, commit 0
        2 -> 3 append 1@0..2 in 1, commit 0
        > heartbeat 2
        3 is follower of 2 in term 1
        3 saves term 1
        > save 3
    """)
