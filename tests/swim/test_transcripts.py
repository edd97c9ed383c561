"""One mechanism at a time: node 1 on a stage, everybody else played by hand."""

import msgspec
import pytest

from penstock.swim import Conflict, Endpoint, Refusal, Refused, State, SwimSettings
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
from tests.swim.stage import ME, Said, Stage, only
from tests.swim.village import meta, replica

BOB = replica(2)
BOBS_PLACE = Endpoint("10.0.0.2", 9192)
ONE_PEER = SwimSettings(reliable_ping=False)


def probed(said: list[Said]) -> list[tuple[int, int]]:
    """Who was pinged, and with which number."""
    return [(each.receiver.node, ping.number) for each in said for ping in only(Ping, [each])]


def until_probe(stage: Stage) -> tuple[int, int]:
    """Lets time pass until somebody is pinged, and not a moment longer."""
    while True:
        said = stage.passes(max(0.0, stage.core.next_deadline - stage.now))
        if probed(said):
            return probed(said)[0]


# Probing


def test_everybody_is_probed_once_a_round() -> None:
    stage = Stage().knows(2, 3, 4, 5)
    rounds = []
    for _ in range(8):
        node, number = until_probe(stage)
        stage.says(node, Ack(number))
        rounds.append(node)
    assert sorted(rounds[:4]) == sorted(rounds[4:]) == [2, 3, 4, 5]


def test_a_ping_is_answered_to_where_it_came_from() -> None:
    stage = Stage().knows(2)
    [answer] = stage.says(2, Ping(77))
    assert answer == Said(BOBS_PLACE, BOB, [Ack(77)])


def test_without_an_answer_others_are_asked_and_the_reliable_channel_is_tried() -> None:
    stage = Stage().knows(2, 3, 4, 5, 6)
    target, number = until_probe(stage)
    said = stage.passes(0.5)
    asked = [each for each in said if only(IndirectPing, [each])]
    assert len(asked) == 3
    assert all(only(IndirectPing, [each]) == [IndirectPing(number, replica(target))] for each in asked)
    assert target not in [each.receiver.node for each in asked]
    assert [each.messages for each in said if each.to == target] == [[Ping(number)]]


def test_an_ack_that_a_helper_brings_saves_the_target() -> None:
    stage = Stage().knows(2, 3)
    target, number = until_probe(stage)
    helper = 5 - target
    stage.passes(0.5)
    stage.says(helper, Ack(number))
    stage.passes(0.49)
    assert stage.state(target) is State.ALIVE


def test_an_ack_over_the_reliable_channel_saves_the_target() -> None:
    stage = Stage().knows(2)
    _, number = until_probe(stage)
    stage.passes(0.6)
    stage.says_reliably(2, Ack(number))
    stage.passes(0.5)
    assert stage.state(2) is State.ALIVE


def test_who_stays_silent_is_suspected_and_then_dead() -> None:
    stage = Stage(settings=ONE_PEER).knows(2)
    until_probe(stage)
    stage.passes(0.99)
    assert stage.state(2) is State.ALIVE
    stage.passes(0.02)
    assert stage.state(2) is State.SUSPECT
    stage.passes(3.9)
    assert stage.state(2) is State.SUSPECT
    stage.passes(0.2)
    assert stage.changes == [(2, State.SUSPECT), (2, State.DEAD)]


def test_an_ack_with_another_number_proves_nothing() -> None:
    stage = Stage(settings=ONE_PEER).knows(2)
    _, number = until_probe(stage)
    stage.says(2, Ack(number + 1))
    stage.passes(1.1)
    assert stage.state(2) is State.SUSPECT


def test_a_suspect_is_told_so_with_every_ping() -> None:
    """Guarantee 2. Also when everybody has been told already, and nothing is left to gossip."""
    stage = Stage(settings=ONE_PEER).knows(2, 3)
    stage.says(3, Suspect(0, BOB, NodeId(3)))
    stage.has_told_everything()
    while (pinged := until_probe(stage))[0] != 2:
        stage.says(pinged[0], Ack(pinged[1]))
    [ping] = [said for said in stage.opened(stage.effects) if said.receiver == BOB]
    assert only(Suspect, [ping]) == [Suspect(0, BOB, NodeId(1))]


# Helping others to probe


def test_a_helper_passes_the_ack_on() -> None:
    stage = Stage().knows(2, 3)
    [ping] = stage.says(2, IndirectPing(5, replica(3)))
    assert ping.to == Endpoint("10.0.0.3", 9192)
    [number] = [each.number for each in only(Ping, [ping])]
    [answer] = stage.says(3, Ack(number))
    assert answer == Said(BOBS_PLACE, BOB, [Ack(5)])


def test_a_helper_without_an_answer_says_so_in_time() -> None:
    stage = Stage().knows(2, 3)
    stage.says(2, IndirectPing(5, replica(3)))
    stage.passes(0.29)
    assert not only(Nack, stage.opened(stage.effects))
    stage.passes(0.02)
    assert only(Nack, stage.opened(stage.effects)) == [Nack(5)]


def test_a_helper_pings_nobody_that_it_does_not_know() -> None:
    stage = Stage().knows(2)
    assert stage.says(2, IndirectPing(5, replica(9))) == []


def test_a_helper_lets_no_one_keep_it_busy_without_end() -> None:
    stage = Stage().knows(2, 3)
    pings = sum(len(stage.says(2, IndirectPing(number, replica(3)))) for number in range(1000))
    assert pings == 256


# Local health


def test_silent_helpers_speak_against_this_node() -> None:
    stage = Stage().knows(2, 3, 4, 5)
    until_probe(stage)
    stage.passes(1.01)
    assert stage.core.health_score == 3


def test_helpers_that_say_they_had_no_answer_do_not() -> None:
    stage = Stage().knows(2, 3, 4, 5)
    target, number = until_probe(stage)
    stage.passes(0.5)
    for helper in {2, 3, 4, 5} - {target}:
        stage.says(helper, Nack(number))
    stage.passes(0.51)
    assert stage.state(target) is State.SUSPECT
    assert stage.core.health_score == 0


def test_a_node_in_doubt_of_itself_waits_longer_and_recovers_with_each_ack() -> None:
    stage = Stage(settings=ONE_PEER).knows(2)
    until_probe(stage)
    stage.passes(1.0)  # missed: the score is 1, so the next probe has two seconds
    begun = stage.now
    number = only(Ping, stage.opened(stage.effects))[-1].number
    stage.passes(1.5)
    assert stage.core.next_deadline <= begun + 2.0
    stage.says(2, Ack(number), Alive(1, meta(2)))
    assert stage.state(2) is State.ALIVE
    assert stage.core.health_score == 0


def test_a_node_that_slept_does_not_bury_others_for_it() -> None:
    """Guarantee 5."""
    stage = Stage(settings=ONE_PEER).knows(2)
    until_probe(stage)
    stage.passes(1.01)
    assert stage.state(2) is State.SUSPECT
    stage.now += 60.0
    stage.happened(stage.core.tick(stage.now))
    assert stage.state(2) is State.SUSPECT
    stage.says(2, Alive(1, meta(2)))
    assert stage.state(2) is State.ALIVE


# Claims, and contradicting them


def test_an_accusation_of_this_node_is_outdone_by_its_next_incarnation() -> None:
    stage = Stage().knows(2)
    before = stage.core.incarnation
    [answer] = stage.says(2, Ping(1), Suspect(before, ME, NodeId(2)))
    assert stage.core.incarnation == before + 1
    assert Alive(before + 1, meta(1)) in answer.messages, "the accuser hears it with the ack"


@pytest.mark.parametrize(
    "claim", [Dead(40, ME), Left(40, ME), Alive(40, meta(1)), Suspect(40, ME, NodeId(2))]
)
def test_whatever_others_remember_of_an_earlier_life_is_outdone(claim: Dead) -> None:
    stage = Stage().knows(2)
    stage.says(2, claim)
    assert stage.core.incarnation == 41


def test_an_accusation_of_an_older_incarnation_changes_nothing_but_is_answered() -> None:
    stage = Stage(last_incarnation=9).knows(2)
    [answer] = stage.says(2, Ping(1), Suspect(4, ME, NodeId(2)))
    assert stage.core.incarnation == 10
    assert Alive(10, meta(1)) in answer.messages


def test_a_number_that_cannot_be_outdone_does_no_harm() -> None:
    stage = Stage().knows(2)
    stage.says(2, Suspect(MAX_INCARNATION - 1, ME, NodeId(2)))
    assert stage.core.incarnation == 0
    assert stage.says(2, Ping(1))


def test_independent_accusers_shorten_the_time_to_object() -> None:
    stage = Stage(settings=ONE_PEER).knows(*range(2, 12))
    stage.says(3, Suspect(0, BOB, NodeId(3)))
    alone = stage.core._table.suspicions[BOB].deadline
    stage.says(3, Suspect(0, BOB, NodeId(3)))
    assert stage.core._table.suspicions[BOB].deadline == alone
    stage.says(4, Suspect(0, BOB, NodeId(4)))
    stage.says(5, Suspect(0, BOB, NodeId(5)))
    assert stage.core._table.suspicions[BOB].deadline < alone - 15


def test_a_confirmation_is_passed_on_and_a_repetition_is_not() -> None:
    stage = Stage(settings=ONE_PEER).knows(*range(2, 12))
    stage.says(3, Suspect(0, BOB, NodeId(3)))
    stage.has_told_everything()
    stage.says(4, Suspect(0, BOB, NodeId(4)))
    assert Suspect(0, BOB, NodeId(4)) in only(Suspect, stage.passes(0.2))
    stage.has_told_everything()
    stage.says(5, Suspect(0, BOB, NodeId(4)))
    assert not stage.core._sender.broadcasts


def test_a_suspect_that_objects_is_alive_again() -> None:
    stage = Stage().knows(2, 3)
    stage.says(3, Suspect(0, BOB, NodeId(3)))
    stage.says(2, Alive(1, meta(2)))
    stage.passes(0.1)
    assert stage.changes == [(2, State.SUSPECT), (2, State.ALIVE)]


def test_a_stale_alive_resurrects_nobody() -> None:
    stage = Stage().knows(2, 3)
    stage.says(3, Dead(0, BOB))
    stage.says(3, Alive(0, meta(2)))
    stage.says_reliably(3, Table(True, (Row(State.ALIVE, 0, meta(2)),)))
    assert stage.state(2) is State.DEAD
    stage.says(2, Alive(1, meta(2)))
    assert stage.state(2) is State.ALIVE


def test_news_is_passed_on() -> None:
    stage = Stage().knows(2, 3)
    stage.says(3, Alive(0, meta(4)))
    said = stage.passes(0.3)
    assert Alive(0, meta(4)) in only(Alive, said)


def test_nothing_is_sent_while_there_is_nothing_to_tell() -> None:
    stage = Stage().knows(2)
    node, number = until_probe(stage)
    stage.says(node, Ack(number))
    assert stage.passes(0.9) == []


def test_a_table_from_another_node_kills_nobody() -> None:
    """Guarantee 3."""
    stage = Stage().knows(2, 3)
    stage.says_reliably(3, Table(True, (Row(State.DEAD, 0, meta(2)),)))
    assert stage.state(2) is State.SUSPECT


def test_the_dead_of_others_are_not_introduced() -> None:
    stage = Stage().knows(2)
    stage.says_reliably(2, Table(True, (Row(State.DEAD, 0, meta(9)), Row(State.LEFT, 0, meta(8)))))
    assert stage.state(9) is stage.state(8) is None


def test_a_table_is_answered_with_a_table() -> None:
    stage = Stage().knows(2)
    [answer] = stage.says_reliably(3, Table(False, (Row(State.ALIVE, 4, meta(3)),)))
    assert answer.to == 3
    [table] = only(Table, [answer])
    assert table.is_reply
    assert {(row.meta.node, row.state, row.incarnation) for row in table.rows} == {
        (1, State.ALIVE, 0),
        (2, State.ALIVE, 0),
        (3, State.ALIVE, 4),
    }


def test_new_metadata_is_told_under_a_new_incarnation() -> None:
    stage = Stage().knows(2)
    changed = meta(1, rack="b", payload_version=3)
    stage.happened(stage.core.set_meta(stage.now, changed))
    assert Alive(1, changed) in only(Alive, stage.passes(0.3))


def test_a_member_that_changes_its_metadata_is_reported_with_it() -> None:
    stage = Stage().knows(2)
    stage.says(2, Alive(1, meta(2, rack="b")))
    assert stage.changes == [(2, State.ALIVE)]
    assert stage.core.members[BOB].meta.rack == "b"


# Incarnations survive restarts


def test_incarnations_are_reserved_before_they_are_used() -> None:
    """Guarantee 4."""
    stage = Stage()
    assert stage.saved == [RESERVED_INCARNATIONS]
    stage.knows(2)
    for incarnation in range(RESERVED_INCARNATIONS):
        stage.says(2, Suspect(incarnation, ME, NodeId(2)))
    assert stage.saved == []
    stage.says(2, Suspect(stage.core.incarnation, ME, NodeId(2)))
    assert stage.saved == [stage.core.incarnation + RESERVED_INCARNATIONS]


def test_a_restart_begins_above_everything_that_was_ever_used() -> None:
    first = Stage().knows(2)
    for incarnation in range(200):
        first.says(2, Suspect(incarnation, ME, NodeId(2)))
    second = Stage(last_incarnation=first.saved[-1])
    assert second.core.incarnation > first.core.incarnation
    assert second.saved[0] >= second.core.incarnation


# Joining and coming back


def test_a_seed_is_greeted_as_nobody_in_particular_and_asked_for_its_table() -> None:
    stage = Stage()
    said = stage.opened(stage.happened(stage.core.join(stage.now, [BOBS_PLACE])))
    [packet, frame] = said
    assert (packet.to, packet.receiver) == (BOBS_PLACE, ANY_RECEIVER)
    assert only(Ping, [packet])
    assert only(Alive, [packet]) == [Alive(0, meta(1))]
    assert frame.to == BOBS_PLACE
    assert only(Table, [frame]) == [Table(False, (Row(State.ALIVE, 0, meta(1)),))]


def test_who_is_greeted_introduces_itself() -> None:
    stage = Stage()
    [answer] = stage.says(2, Ping(5), Alive(0, meta(2)), to=ANY_RECEIVER)
    assert only(Ack, [answer]) == [Ack(5)]
    assert only(Alive, [answer])[0] == Alive(0, meta(1))


def test_a_seed_that_answers_is_asked_for_its_table_by_its_name() -> None:
    stage = Stage()
    [packet, _] = stage.opened(stage.core.join(stage.now, [BOBS_PLACE]))
    said = stage.says(2, Ack(only(Ping, [packet])[0].number), Alive(3, meta(2)))
    assert [each.to for each in said if only(Table, [each])] == [2]


def test_a_connection_with_an_unknown_node_is_used_to_compare_tables() -> None:
    stage = Stage()
    [frame] = stage.opened(stage.core.connected(stage.now, NodeId(2)))
    assert (frame.to, frame.receiver) == (2, ANY_RECEIVER)
    assert [table.is_reply for table in only(Table, [frame])] == [False]


def test_a_connection_with_a_known_member_changes_nothing() -> None:
    stage = Stage().knows(2)
    assert stage.core.connected(stage.now, NodeId(2)) == []


@pytest.mark.parametrize("claim", [Suspect(4, BOB, NodeId(1)), Dead(4, BOB), Left(4, BOB)])
def test_who_greets_with_an_incarnation_that_is_outdated_is_told_what_to_outdo(claim: Dead) -> None:
    stage = Stage().knows(2, 3)
    stage.says(3, claim)
    [answer] = stage.says(2, Ping(1), Alive(0, meta(2)), to=ANY_RECEIVER)
    assert claim in answer.messages


def test_seeds_that_are_not_there_are_tried_again_and_again() -> None:
    stage = Stage()
    stage.happened(stage.core.join(stage.now, [BOBS_PLACE]))
    said = stage.passes(60)
    assert len([each for each in said if each.to == BOBS_PLACE and only(Ping, [each])]) == 60


def test_a_node_among_its_own_seeds_waits_for_nobody() -> None:
    stage = Stage()
    stage.happened(stage.core.join(stage.now, [meta(1).cluster]))
    assert stage.passes(60) == []


def test_a_node_that_is_its_own_seed_under_another_name_finds_that_out() -> None:
    stage = Stage()
    [packet, _] = stage.core.join(stage.now, [Endpoint("node-1.example", 9192)])
    assert stage.arrives(packet.data, meta(1).cluster) == []  # type: ignore[union-attr]
    assert stage.passes(60) == []
    assert stage.troubles == []


def test_a_ping_that_is_sent_back_to_its_sender_does_not_hide_the_seed() -> None:
    stage = Stage()
    [packet, _] = stage.core.join(stage.now, [Endpoint("node-2.example", 9192)])
    [greeting] = stage.opened([packet])
    stage.arrives(packet.data)  # type: ignore[union-attr]
    stage.says(2, Ack(only(Ping, [greeting])[0].number), Alive(0, meta(2)))
    stage.says(2, Dead(0, BOB))
    assert Endpoint("node-2.example", 9192) in [each.to for each in stage.passes(60)]


def test_the_dead_hear_gossip_for_a_while() -> None:
    stage = Stage().knows(2)
    stage.says(2, Dead(0, BOB))
    assert gossip_to(BOBS_PLACE, stage.passes(1))
    stage.passes(60)
    stage.says(3, Alive(0, meta(3)))
    assert not gossip_to(BOBS_PLACE, stage.passes(0.5))


def gossip_to(place: Endpoint, said: list[Said]) -> list[Said]:
    return [each for each in said if each.to == place and not only(Ping, [each])]


def test_the_dead_are_tried_for_ever_and_told_what_is_said_of_them() -> None:
    stage = Stage().knows(2, 3)
    stage.says(2, Dead(0, replica(3)))
    day_later = stage.now + 86_400
    while stage.now < day_later:
        stage.now += 3600  # nobody else is played here, so the node sleeps through most of the day
        stage.happened(stage.core.tick(stage.now))
        stage.says(2, Alive(stage.core.members[BOB].incarnation + 1, meta(2)))
    stage.effects.clear()
    said = stage.passes(10.1)
    greetings = [each for each in said if each.receiver == replica(3) and only(Ping, [each])]
    assert greetings
    assert only(Dead, greetings)[0] == Dead(0, replica(3))


def test_somebody_who_left_is_not_looked_for() -> None:
    stage = Stage().knows(2, 3)
    stage.says(3, Left(0, replica(3)))
    said = stage.passes(60)
    assert [each for each in said if each.receiver == replica(3)] == []


def test_the_forgotten_are_not_looked_for() -> None:
    stage = Stage().knows(2, 3)
    stage.says(2, Dead(0, replica(3)))
    stage.happened(stage.core.forget(stage.now, replica(3)))
    assert stage.state(3) is None
    assert [each for each in stage.passes(60) if each.receiver == replica(3)] == []


def test_who_is_alive_cannot_be_forgotten() -> None:
    stage = Stage().knows(2)
    stage.happened(stage.core.forget(stage.now, BOB))
    assert stage.state(2) is State.ALIVE


# Leaving


def test_a_farewell_is_told_and_then_it_is_over() -> None:
    stage = Stage().knows(2, 3)
    stage.happened(stage.core.leave(stage.now))
    assert not stage.core.has_left
    said = stage.passes(2)
    assert Left(0, ME) in only(Left, said)
    assert stage.core.has_left
    assert stage.passes(60) == []


def test_who_leaves_does_not_contradict() -> None:
    stage = Stage().knows(2)
    stage.happened(stage.core.leave(stage.now))
    stage.says(2, Suspect(0, ME, NodeId(2)))
    assert stage.core.incarnation == 0


def test_who_has_left_says_no_more_of_itself() -> None:
    stage = Stage().knows(2)
    stage.happened(stage.core.leave(stage.now))
    stage.happened(stage.core.set_meta(stage.now, meta(1, rack="b")))
    assert only(Alive, stage.passes(5)) == []


def test_the_only_node_leaves_at_once() -> None:
    stage = Stage()
    stage.happened(stage.core.leave(stage.now))
    assert stage.core.has_left


def test_a_lonely_node_never_wakes() -> None:
    assert Stage().core.next_deadline == float("inf")


# Who is not welcome


def test_a_node_of_another_cluster_is_refused_with_one_notice_and_told_why() -> None:
    stage = Stage().knows(2)
    answers = [
        said
        for number in range(50)
        for said in stage.says(
            3, Ping(number), Alive(0, meta(3, cluster_id="town")), cluster_id="town", to=ANY_RECEIVER
        )
    ]
    assert stage.state(3) is None
    [trouble] = stage.troubles
    assert isinstance(trouble, Refused)
    assert trouble.reason is Refusal.FOREIGN_CLUSTER
    assert "'town'" in trouble.detail
    assert "'village'" in trouble.detail
    assert stage.core.refused[Refusal.FOREIGN_CLUSTER] == 50
    assert all(answer.messages == [] for answer in answers)


def test_two_clusters_do_not_turn_each_other_away_for_ever() -> None:
    stage = Stage().knows(2)
    assert stage.says(3, cluster_id="town") == []


def test_a_member_of_another_cluster_is_not_believed_from_anybody() -> None:
    stage = Stage().knows(2)
    stage.says(2, Alive(0, meta(3, cluster_id="town")))
    stage.says_reliably(2, Table(True, (Row(State.ALIVE, 0, meta(4, cluster_id="town")),)))
    assert stage.state(3) is stage.state(4) is None


def test_a_node_without_a_cluster_meets_anybody_until_it_has_one() -> None:
    stage = Stage(about=meta(1, cluster_id=""))
    stage.says(2, Alive(0, meta(2)))
    stage.says(3, Alive(0, meta(3, cluster_id="town")), cluster_id="town")
    assert stage.state(2) is stage.state(3) is State.ALIVE
    stage.happened(stage.core.set_meta(stage.now, meta(1)))
    assert stage.state(2) is State.ALIVE
    assert stage.state(3) is None
    assert (3, State.LEFT) in stage.changes


def test_two_places_with_one_node_id_are_both_named_once() -> None:
    stage = Stage().knows(2)
    other = meta(2, folder=77, cluster=Endpoint("10.0.0.200", 9192))
    for incarnation in range(5):
        stage.says(3, Alive(incarnation, other))
    assert stage.troubles == [Conflict(meta(2), other)]


def test_a_node_with_this_nodes_id_is_named_too() -> None:
    stage = Stage()
    other = meta(1, folder=77, cluster=Endpoint("10.0.0.200", 9192))
    stage.says(2, Alive(0, other))
    assert stage.troubles == [Conflict(meta(1), other)]


def test_a_copy_of_this_nodes_folder_is_found() -> None:
    stage = Stage(epoch=5)
    data = stage.letter(ME, Ping(1), to=ANY_RECEIVER, epoch=6)
    stage.arrives(data, Endpoint("10.0.0.200", 9192))
    [conflict] = stage.troubles
    assert isinstance(conflict, Conflict)
    assert conflict.second.cluster == Endpoint("10.0.0.200", 9192)


def test_a_member_too_many_is_refused_with_one_notice() -> None:
    stage = Stage(settings=SwimSettings(max_members=4)).knows(2, 3, 4)
    for node in range(5, 9):
        stage.says(2, Alive(0, meta(node)))
    assert len(stage.core.members) == 4
    assert stage.core.refused[Refusal.TOO_MANY_MEMBERS] == 4
    assert len(stage.troubles) == 1


def test_metadata_above_its_limit_is_refused() -> None:
    stage = Stage().knows(2)
    bloated = meta(3, kafka=Endpoint("k" * 253, 1), http=Endpoint("h" * 253, 1), rack="r" * 100)
    stage.says(2, Alive(0, bloated))
    assert stage.state(3) is None
    assert stage.core.refused[Refusal.MALFORMED] == 1


def test_equal_inputs_give_equal_effects() -> None:
    """Guarantee 6."""

    def played() -> list[object]:
        stage = Stage().knows(2, 3, 4)
        stage.says(3, Suspect(0, BOB, NodeId(3)))
        stage.passes(30)
        return [msgspec.to_builtins(effect) for effect in stage.effects]

    assert played() == played()
