"""One mechanism at a time: node 1 in a harness, with all other nodes played by the test."""

import msgspec
import pytest

from penstock.swim import Conflict, GossipEndpoint, PacketRefusal, PacketRefused, State, SwimSettings
from penstock.swim.core import RESERVED_INCARNATIONS
from penstock.swim.packets import (
    ANY_RECEIVER,
    Ack,
    Alive,
    Dead,
    IndirectPing,
    Left,
    Nack,
    Ping,
    Row,
    Suspect,
    Table,
)
from penstock.swim.values import MAX_INCARNATION
from penstock.types import NodeId
from tests.swim.core_harness import ME, CoreHarness, Said, only
from tests.swim.simulated_cluster import meta, replica

BOB = replica(2)
BOBS_ENDPOINT = GossipEndpoint("10.0.0.2", 9192)
ONE_PEER = SwimSettings(reliable_ping=False)


def probed(said: list[Said]) -> list[tuple[int, int]]:
    """Which nodes were pinged, and with which number."""
    return [(each.receiver.node, ping.number) for each in said for ping in only(Ping, [each])]


def until_probe(harness: CoreHarness) -> tuple[int, int]:
    """Lets time pass until node 1 sends a ping, and not a moment longer."""
    while True:
        said = harness.passes(max(0.0, harness.core.next_deadline - harness.now))
        if probed(said):
            return probed(said)[0]


# Probing


def test_every_member_is_probed_once_a_round() -> None:
    harness = CoreHarness().knows(2, 3, 4, 5)
    rounds = []
    for _ in range(8):
        node, number = until_probe(harness)
        harness.says(node, Ack(number))
        rounds.append(node)
    assert sorted(rounds[:4]) == sorted(rounds[4:]) == [2, 3, 4, 5]


def test_a_ping_is_answered_to_where_it_came_from() -> None:
    harness = CoreHarness().knows(2)
    [answer] = harness.says(2, Ping(77))
    assert answer == Said(BOBS_ENDPOINT, BOB, [Ack(77)])


def test_without_an_answer_others_are_asked_and_the_reliable_channel_is_tried() -> None:
    harness = CoreHarness().knows(2, 3, 4, 5, 6)
    target, number = until_probe(harness)
    said = harness.passes(0.5)
    asked = [each for each in said if only(IndirectPing, [each])]
    assert len(asked) == 3
    assert all(only(IndirectPing, [each]) == [IndirectPing(number, replica(target))] for each in asked)
    assert target not in [each.receiver.node for each in asked]
    assert [each.messages for each in said if each.to == target] == [[Ping(number)]]


def test_an_ack_that_a_helper_brings_saves_the_target() -> None:
    harness = CoreHarness().knows(2, 3)
    target, number = until_probe(harness)
    helper = 5 - target
    harness.passes(0.5)
    harness.says(helper, Ack(number))
    harness.passes(0.49)
    assert harness.state(target) is State.ALIVE


def test_an_ack_over_the_reliable_channel_saves_the_target() -> None:
    harness = CoreHarness().knows(2)
    _, number = until_probe(harness)
    harness.passes(0.6)
    harness.says_reliably(2, Ack(number))
    harness.passes(0.5)
    assert harness.state(2) is State.ALIVE


def test_a_silent_member_is_suspected_and_then_dead() -> None:
    harness = CoreHarness(settings=ONE_PEER).knows(2)
    until_probe(harness)
    harness.passes(0.99)
    assert harness.state(2) is State.ALIVE
    harness.passes(0.02)
    assert harness.state(2) is State.SUSPECT
    harness.passes(3.9)
    assert harness.state(2) is State.SUSPECT
    harness.passes(0.2)
    assert harness.changes == [(2, State.SUSPECT), (2, State.DEAD)]


def test_an_ack_with_another_number_proves_nothing() -> None:
    harness = CoreHarness(settings=ONE_PEER).knows(2)
    _, number = until_probe(harness)
    harness.says(2, Ack(number + 1))
    harness.passes(1.1)
    assert harness.state(2) is State.SUSPECT


def test_a_suspect_is_told_so_with_every_ping() -> None:
    """Guarantee 2. Also when every node has been told already, and no gossip is left."""
    harness = CoreHarness(settings=ONE_PEER).knows(2, 3)
    harness.says(3, Suspect(0, BOB, NodeId(3)))
    harness.has_told_everything()
    while (pinged := until_probe(harness))[0] != 2:
        harness.says(pinged[0], Ack(pinged[1]))
    [ping] = [said for said in harness.opened(harness.effects) if said.receiver == BOB]
    assert only(Suspect, [ping]) == [Suspect(0, BOB, NodeId(1))]


# Helping others to probe


def test_a_helper_passes_the_ack_on() -> None:
    harness = CoreHarness().knows(2, 3)
    [ping] = harness.says(2, IndirectPing(5, replica(3)))
    assert ping.to == GossipEndpoint("10.0.0.3", 9192)
    [number] = [each.number for each in only(Ping, [ping])]
    [answer] = harness.says(3, Ack(number))
    assert answer == Said(BOBS_ENDPOINT, BOB, [Ack(5)])


def test_a_helper_without_an_answer_says_so_in_time() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(2, IndirectPing(5, replica(3)))
    harness.passes(0.29)
    assert not only(Nack, harness.opened(harness.effects))
    harness.passes(0.02)
    assert only(Nack, harness.opened(harness.effects)) == [Nack(5)]


def test_a_helper_does_not_ping_a_node_that_it_does_not_know() -> None:
    harness = CoreHarness().knows(2)
    assert harness.says(2, IndirectPing(5, replica(9))) == []


def test_a_helper_bounds_its_indirect_probes() -> None:
    harness = CoreHarness().knows(2, 3)
    pings = sum(len(harness.says(2, IndirectPing(number, replica(3)))) for number in range(1000))
    assert pings == 256


# Local health


def test_silent_helpers_lower_this_nodes_own_health() -> None:
    harness = CoreHarness().knows(2, 3, 4, 5)
    until_probe(harness)
    harness.passes(1.01)
    assert harness.core.health_score == 3


def test_helpers_that_report_a_missing_ack_do_not_lower_it() -> None:
    harness = CoreHarness().knows(2, 3, 4, 5)
    target, number = until_probe(harness)
    harness.passes(0.5)
    for helper in {2, 3, 4, 5} - {target}:
        harness.says(helper, Nack(number))
    harness.passes(0.51)
    assert harness.state(target) is State.SUSPECT
    assert harness.core.health_score == 0


def test_an_unhealthy_node_waits_longer_and_recovers_with_each_ack() -> None:
    harness = CoreHarness(settings=ONE_PEER).knows(2)
    until_probe(harness)
    harness.passes(1.0)  # missed: the score is 1, so the next probe has two seconds
    begun = harness.now
    number = only(Ping, harness.opened(harness.effects))[-1].number
    harness.passes(1.5)
    assert harness.core.next_deadline <= begun + 2.0
    harness.says(2, Ack(number), Alive(1, meta(2)))
    assert harness.state(2) is State.ALIVE
    assert harness.core.health_score == 0


def test_a_node_that_was_paused_does_not_declare_others_dead() -> None:
    """Guarantee 5."""
    harness = CoreHarness(settings=ONE_PEER).knows(2)
    until_probe(harness)
    harness.passes(1.01)
    assert harness.state(2) is State.SUSPECT
    harness.now += 60.0
    harness.happened(harness.core.tick(harness.now))
    assert harness.state(2) is State.SUSPECT
    harness.says(2, Alive(1, meta(2)))
    assert harness.state(2) is State.ALIVE


# Claims, and contradicting them


def test_a_node_refutes_an_accusation_with_its_next_incarnation() -> None:
    harness = CoreHarness().knows(2)
    before = harness.core.incarnation
    [answer] = harness.says(2, Ping(1), Suspect(before, ME, NodeId(2)))
    assert harness.core.incarnation == before + 1
    assert Alive(before + 1, meta(1)) in answer.messages, "the accuser hears it with the ack"


@pytest.mark.parametrize(
    "claim", [Dead(40, ME), Left(40, ME), Alive(40, meta(1)), Suspect(40, ME, NodeId(2))]
)
def test_claims_about_an_earlier_run_of_this_node_are_refuted(claim: Dead) -> None:
    harness = CoreHarness().knows(2)
    harness.says(2, claim)
    assert harness.core.incarnation == 41


def test_an_accusation_of_an_older_incarnation_changes_nothing_but_is_answered() -> None:
    harness = CoreHarness(last_incarnation=9).knows(2)
    [answer] = harness.says(2, Ping(1), Suspect(4, ME, NodeId(2)))
    assert harness.core.incarnation == 10
    assert Alive(10, meta(1)) in answer.messages


def test_the_highest_incarnation_does_no_harm() -> None:
    harness = CoreHarness().knows(2)
    harness.says(2, Suspect(MAX_INCARNATION - 1, ME, NodeId(2)))
    assert harness.core.incarnation == 0
    assert harness.says(2, Ping(1))


def test_independent_accusers_shorten_the_time_to_object() -> None:
    harness = CoreHarness(settings=ONE_PEER).knows(*range(2, 12))
    harness.says(3, Suspect(0, BOB, NodeId(3)))
    alone = harness.core._table.suspicions[BOB].deadline
    harness.says(3, Suspect(0, BOB, NodeId(3)))
    assert harness.core._table.suspicions[BOB].deadline == alone
    harness.says(4, Suspect(0, BOB, NodeId(4)))
    harness.says(5, Suspect(0, BOB, NodeId(5)))
    assert harness.core._table.suspicions[BOB].deadline < alone - 15


def test_a_confirmation_is_passed_on_and_a_repetition_is_not() -> None:
    harness = CoreHarness(settings=ONE_PEER).knows(*range(2, 12))
    harness.says(3, Suspect(0, BOB, NodeId(3)))
    harness.has_told_everything()
    harness.says(4, Suspect(0, BOB, NodeId(4)))
    assert Suspect(0, BOB, NodeId(4)) in only(Suspect, harness.passes(0.2))
    harness.has_told_everything()
    harness.says(5, Suspect(0, BOB, NodeId(4)))
    assert not harness.core._sender.broadcasts


def test_a_suspect_that_objects_is_alive_again() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(3, Suspect(0, BOB, NodeId(3)))
    harness.says(2, Alive(1, meta(2)))
    harness.passes(0.1)
    assert harness.changes == [(2, State.SUSPECT), (2, State.ALIVE)]


def test_a_stale_alive_does_not_revive_a_member() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(3, Dead(0, BOB))
    harness.says(3, Alive(0, meta(2)))
    harness.says_reliably(3, Table(True, (Row(State.ALIVE, 0, meta(2)),)))
    assert harness.state(2) is State.DEAD
    harness.says(2, Alive(1, meta(2)))
    assert harness.state(2) is State.ALIVE


def test_news_is_passed_on() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(3, Alive(0, meta(4)))
    said = harness.passes(0.3)
    assert Alive(0, meta(4)) in only(Alive, said)


def test_nothing_is_sent_while_there_is_nothing_to_tell() -> None:
    harness = CoreHarness().knows(2)
    node, number = until_probe(harness)
    harness.says(node, Ack(number))
    assert harness.passes(0.9) == []


def test_a_table_from_another_node_does_not_make_a_member_dead() -> None:
    """Guarantee 3."""
    harness = CoreHarness().knows(2, 3)
    harness.says_reliably(3, Table(True, (Row(State.DEAD, 0, meta(2)),)))
    assert harness.state(2) is State.SUSPECT


def test_dead_members_in_a_table_are_not_introduced() -> None:
    harness = CoreHarness().knows(2)
    harness.says_reliably(2, Table(True, (Row(State.DEAD, 0, meta(9)), Row(State.LEFT, 0, meta(8)))))
    assert harness.state(9) is harness.state(8) is None


def test_a_table_is_answered_with_a_table() -> None:
    harness = CoreHarness().knows(2)
    [answer] = harness.says_reliably(3, Table(False, (Row(State.ALIVE, 4, meta(3)),)))
    assert answer.to == 3
    [table] = only(Table, [answer])
    assert table.is_reply
    assert {(row.meta.node, row.state, row.incarnation) for row in table.rows} == {
        (1, State.ALIVE, 0),
        (2, State.ALIVE, 0),
        (3, State.ALIVE, 4),
    }


def test_new_metadata_is_told_under_a_new_incarnation() -> None:
    harness = CoreHarness().knows(2)
    changed = meta(1, rack="b", payload_version=3)
    harness.happened(harness.core.set_meta(harness.now, changed))
    assert Alive(1, changed) in only(Alive, harness.passes(0.3))


def test_a_member_that_changes_its_metadata_is_reported_with_it() -> None:
    harness = CoreHarness().knows(2)
    harness.says(2, Alive(1, meta(2, rack="b")))
    assert harness.changes == [(2, State.ALIVE)]
    assert harness.core.members[BOB].meta.rack == "b"


# Incarnations survive restarts


def test_incarnations_are_reserved_before_they_are_used() -> None:
    """Guarantee 4."""
    harness = CoreHarness()
    assert harness.saved == [RESERVED_INCARNATIONS]
    harness.knows(2)
    for incarnation in range(RESERVED_INCARNATIONS):
        harness.says(2, Suspect(incarnation, ME, NodeId(2)))
    assert harness.saved == []
    harness.says(2, Suspect(harness.core.incarnation, ME, NodeId(2)))
    assert harness.saved == [harness.core.incarnation + RESERVED_INCARNATIONS]


def test_a_restart_begins_above_everything_that_was_ever_used() -> None:
    first = CoreHarness().knows(2)
    for incarnation in range(200):
        first.says(2, Suspect(incarnation, ME, NodeId(2)))
    second = CoreHarness(last_incarnation=first.saved[-1])
    assert second.core.incarnation > first.core.incarnation
    assert second.saved[0] >= second.core.incarnation


# Joining and coming back


def test_a_seed_is_greeted_without_a_receiver_and_asked_for_its_table() -> None:
    harness = CoreHarness()
    said = harness.opened(harness.happened(harness.core.join(harness.now, [BOBS_ENDPOINT])))
    [packet, frame] = said
    assert (packet.to, packet.receiver) == (BOBS_ENDPOINT, ANY_RECEIVER)
    assert only(Ping, [packet])
    assert only(Alive, [packet]) == [Alive(0, meta(1))]
    assert frame.to == BOBS_ENDPOINT
    assert only(Table, [frame]) == [Table(False, (Row(State.ALIVE, 0, meta(1)),))]


def test_a_greeted_node_introduces_itself() -> None:
    harness = CoreHarness()
    [answer] = harness.says(2, Ping(5), Alive(0, meta(2)), to=ANY_RECEIVER)
    assert only(Ack, [answer]) == [Ack(5)]
    assert only(Alive, [answer])[0] == Alive(0, meta(1))


def test_a_seed_that_answers_is_asked_for_its_table_by_its_name() -> None:
    harness = CoreHarness()
    [packet, _] = harness.opened(harness.core.join(harness.now, [BOBS_ENDPOINT]))
    said = harness.says(2, Ack(only(Ping, [packet])[0].number), Alive(3, meta(2)))
    assert [each.to for each in said if only(Table, [each])] == [2]


def test_a_connection_with_an_unknown_node_is_used_to_compare_tables() -> None:
    harness = CoreHarness()
    [frame] = harness.opened(harness.core.connected(harness.now, NodeId(2)))
    assert (frame.to, frame.receiver) == (2, ANY_RECEIVER)
    assert [table.is_reply for table in only(Table, [frame])] == [False]


def test_a_connection_with_a_known_member_changes_nothing() -> None:
    harness = CoreHarness().knows(2)
    assert harness.core.connected(harness.now, NodeId(2)) == []


@pytest.mark.parametrize("claim", [Suspect(4, BOB, NodeId(1)), Dead(4, BOB), Left(4, BOB)])
def test_a_greeting_with_an_outdated_incarnation_is_answered_with_the_claim_to_refute(claim: Dead) -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(3, claim)
    [answer] = harness.says(2, Ping(1), Alive(0, meta(2)), to=ANY_RECEIVER)
    assert claim in answer.messages


def test_seeds_that_are_not_there_are_tried_again_and_again() -> None:
    harness = CoreHarness()
    harness.happened(harness.core.join(harness.now, [BOBS_ENDPOINT]))
    said = harness.passes(60)
    assert len([each for each in said if each.to == BOBS_ENDPOINT and only(Ping, [each])]) == 60


def test_a_node_among_its_own_seeds_does_not_wait_for_itself() -> None:
    harness = CoreHarness()
    harness.happened(harness.core.join(harness.now, [meta(1).cluster]))
    assert harness.passes(60) == []


def test_a_node_that_is_its_own_seed_under_another_name_finds_that_out() -> None:
    harness = CoreHarness()
    [packet, _] = harness.core.join(harness.now, [GossipEndpoint("node-1.example", 9192)])
    assert harness.arrives(packet.data, meta(1).cluster) == []  # type: ignore[union-attr]
    assert harness.passes(60) == []
    assert harness.troubles == []


def test_a_ping_that_is_sent_back_to_its_sender_does_not_hide_the_seed() -> None:
    harness = CoreHarness()
    [packet, _] = harness.core.join(harness.now, [GossipEndpoint("node-2.example", 9192)])
    [greeting] = harness.opened([packet])
    harness.arrives(packet.data)  # type: ignore[union-attr]
    harness.says(2, Ack(only(Ping, [greeting])[0].number), Alive(0, meta(2)))
    harness.says(2, Dead(0, BOB))
    assert GossipEndpoint("node-2.example", 9192) in [each.to for each in harness.passes(60)]


def test_dead_members_are_sent_gossip_for_a_while() -> None:
    harness = CoreHarness().knows(2)
    harness.says(2, Dead(0, BOB))
    assert gossip_to(BOBS_ENDPOINT, harness.passes(1))
    harness.passes(60)
    harness.says(3, Alive(0, meta(3)))
    assert not gossip_to(BOBS_ENDPOINT, harness.passes(0.5))


def gossip_to(place: GossipEndpoint, said: list[Said]) -> list[Said]:
    return [each for each in said if each.to == place and not only(Ping, [each])]


def test_dead_members_are_pinged_for_ever_and_told_that_they_are_dead() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(2, Dead(0, replica(3)))
    day_later = harness.now + 86_400
    while harness.now < day_later:
        harness.now += 3600  # no other node answers, so the node sleeps through most of the day
        harness.happened(harness.core.tick(harness.now))
        harness.says(2, Alive(harness.core.members[BOB].incarnation + 1, meta(2)))
    harness.effects.clear()
    said = harness.passes(10.1)
    greetings = [each for each in said if each.receiver == replica(3) and only(Ping, [each])]
    assert greetings
    assert only(Dead, greetings)[0] == Dead(0, replica(3))


def test_a_member_that_left_is_not_pinged() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(3, Left(0, replica(3)))
    said = harness.passes(60)
    assert [each for each in said if each.receiver == replica(3)] == []


def test_a_forgotten_member_is_not_pinged() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(2, Dead(0, replica(3)))
    harness.happened(harness.core.forget(harness.now, replica(3)))
    assert harness.state(3) is None
    assert [each for each in harness.passes(60) if each.receiver == replica(3)] == []


def test_an_alive_member_cannot_be_forgotten() -> None:
    harness = CoreHarness().knows(2)
    harness.happened(harness.core.forget(harness.now, BOB))
    assert harness.state(2) is State.ALIVE


# Leaving


def test_a_leaving_node_says_so_and_then_sends_nothing() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.happened(harness.core.leave(harness.now))
    assert not harness.core.has_left
    said = harness.passes(2)
    assert Left(0, ME) in only(Left, said)
    assert harness.core.has_left
    assert harness.passes(60) == []


def test_a_leaving_node_does_not_refute_accusations() -> None:
    harness = CoreHarness().knows(2)
    harness.happened(harness.core.leave(harness.now))
    harness.says(2, Suspect(0, ME, NodeId(2)))
    assert harness.core.incarnation == 0


def test_a_node_that_has_left_announces_nothing_more() -> None:
    harness = CoreHarness().knows(2)
    harness.happened(harness.core.leave(harness.now))
    harness.happened(harness.core.set_meta(harness.now, meta(1, rack="b")))
    assert only(Alive, harness.passes(5)) == []


def test_the_only_node_leaves_at_once() -> None:
    harness = CoreHarness()
    harness.happened(harness.core.leave(harness.now))
    assert harness.core.has_left


def test_a_lone_node_has_no_deadline() -> None:
    assert CoreHarness().core.next_deadline == float("inf")


# Refused nodes


def test_a_node_of_another_cluster_is_refused_with_one_notice_and_told_why() -> None:
    harness = CoreHarness().knows(2)
    answers = [
        said
        for number in range(50)
        for said in harness.says(
            3, Ping(number), Alive(0, meta(3, cluster_id="other")), cluster_id="other", to=ANY_RECEIVER
        )
    ]
    assert harness.state(3) is None
    [trouble] = harness.troubles
    assert isinstance(trouble, PacketRefused)
    assert trouble.reason is PacketRefusal.FOREIGN_CLUSTER
    assert "'other'" in trouble.detail
    assert "'cluster'" in trouble.detail
    assert harness.core.refused[PacketRefusal.FOREIGN_CLUSTER] == 50
    assert all(answer.messages == [] for answer in answers)


def test_two_clusters_do_not_answer_refusals_with_refusals() -> None:
    harness = CoreHarness().knows(2)
    assert harness.says(3, cluster_id="other") == []


def test_a_member_of_another_cluster_is_not_taken_from_any_sender() -> None:
    harness = CoreHarness().knows(2)
    harness.says(2, Alive(0, meta(3, cluster_id="other")))
    harness.says_reliably(2, Table(True, (Row(State.ALIVE, 0, meta(4, cluster_id="other")),)))
    assert harness.state(3) is harness.state(4) is None


def test_a_node_without_a_cluster_talks_to_any_node_until_it_has_one() -> None:
    harness = CoreHarness(about=meta(1, cluster_id=""))
    harness.says(2, Alive(0, meta(2)))
    harness.says(3, Alive(0, meta(3, cluster_id="other")), cluster_id="other")
    assert harness.state(2) is harness.state(3) is State.ALIVE
    harness.happened(harness.core.set_meta(harness.now, meta(1)))
    assert harness.state(2) is State.ALIVE
    assert harness.state(3) is None
    assert (3, State.LEFT) in harness.changes


def test_two_addresses_with_one_node_id_are_both_reported_once() -> None:
    harness = CoreHarness().knows(2)
    other = meta(2, folder=77, cluster=GossipEndpoint("10.0.0.200", 9192))
    for incarnation in range(5):
        harness.says(3, Alive(incarnation, other))
    assert harness.troubles == [Conflict(meta(2), other)]


def test_another_node_with_this_nodes_id_is_reported() -> None:
    harness = CoreHarness()
    other = meta(1, folder=77, cluster=GossipEndpoint("10.0.0.200", 9192))
    harness.says(2, Alive(0, other))
    assert harness.troubles == [Conflict(meta(1), other)]


def test_a_copy_of_this_nodes_folder_is_detected() -> None:
    harness = CoreHarness(epoch=5)
    data = harness.seal_packet(ME, Ping(1), to=ANY_RECEIVER, epoch=6)
    harness.arrives(data, GossipEndpoint("10.0.0.200", 9192))
    [conflict] = harness.troubles
    assert isinstance(conflict, Conflict)
    assert conflict.second.cluster == GossipEndpoint("10.0.0.200", 9192)


def test_a_member_above_the_limit_is_refused_with_one_notice() -> None:
    harness = CoreHarness(settings=SwimSettings(max_members=4)).knows(2, 3, 4)
    for node in range(5, 9):
        harness.says(2, Alive(0, meta(node)))
    assert len(harness.core.members) == 4
    assert harness.core.refused[PacketRefusal.TOO_MANY_MEMBERS] == 4
    assert len(harness.troubles) == 1


def test_metadata_above_its_limit_is_refused() -> None:
    harness = CoreHarness().knows(2)
    bloated = meta(3, kafka=GossipEndpoint("k" * 253, 1), http=GossipEndpoint("h" * 253, 1), rack="r" * 100)
    harness.says(2, Alive(0, bloated))
    assert harness.state(3) is None
    assert harness.core.refused[PacketRefusal.MALFORMED] == 1


def test_equal_inputs_give_equal_effects() -> None:
    """Guarantee 6."""

    def played() -> list[object]:
        harness = CoreHarness().knows(2, 3, 4)
        harness.says(3, Suspect(0, BOB, NodeId(3)))
        harness.passes(30)
        return [msgspec.to_builtins(effect) for effect in harness.effects]

    assert played() == played()
