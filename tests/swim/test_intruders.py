"""Strangers on the wire: what they keep, bend or invent does nothing."""

from random import Random

from penstock.swim import Endpoint, Refusal, Refused, Session, State, SwimSettings
from penstock.swim.packets import ANY_RECEIVER, Alive, Dead, Ping, Seal, Suspect
from penstock.types import NodeId
from tests.swim.stage import ME, Stage
from tests.swim.village import Village, meta, replica

MALLORY = Endpoint("192.0.2.66", 666)


def test_a_packet_that_is_sent_again_is_not_answered_again() -> None:
    stage = Stage().knows(2)
    packet = stage.letter(replica(2), Ping(5))
    assert stage.arrives(packet)
    assert stage.arrives(packet, MALLORY) == []
    assert stage.core.refused[Refusal.REPLAYED] == 1


def test_a_packet_for_somebody_else_is_not_taken() -> None:
    stage = Stage().knows(2, 3)
    stage.says(2, Dead(0, replica(3)), to=replica(4))
    assert stage.state(3) is State.ALIVE
    assert stage.core.refused[Refusal.MISDIRECTED] == 1
    assert stage.troubles == []


def test_a_frame_that_claims_to_be_another_nodes_is_not_taken() -> None:
    stage = Stage().knows(2, 3)
    frame = stage.letter(replica(3), Dead(0, replica(2)))
    stage.core.step_reliable(stage.now, NodeId(4), frame)
    assert stage.state(2) is State.ALIVE
    assert stage.core.refused[Refusal.MALFORMED] == 1


def test_a_packet_from_before_the_senders_restart_is_not_taken() -> None:
    stage = Stage().knows(2)
    stage.says(2, Ping(1), epoch=2, sequence=0)
    assert stage.says(2, Ping(2), epoch=1, sequence=10_000) == []


def test_without_the_key_nothing_can_be_said() -> None:
    stage = Stage().knows(2)
    stage.seal = Seal(b"guessed")
    stage.says(2, Dead(0, replica(2)), Suspect(0, ME, NodeId(2)))
    stage.seal = Seal(None)
    stage.says(2, Dead(0, replica(2)), Alive(0, meta(9)))
    assert stage.state(2) is State.ALIVE
    assert stage.state(9) is None
    assert stage.core.incarnation == 0
    assert stage.core.refused[Refusal.KEY] == 2


def test_a_flood_of_rubbish_is_one_notice_a_minute() -> None:
    stage = Stage().knows(2)
    random = Random(1)
    for second in range(120):
        for _ in range(20):
            stage.arrives(b"\x01\x01" + random.randbytes(random.randint(0, 1300)), MALLORY)
        stage.now += 1.0
        assert second < 60 or len(stage.troubles) == 2
    _, second_notice = stage.troubles
    assert isinstance(second_notice, Refused)
    assert second_notice.source == str(MALLORY)
    assert second_notice.suppressed == 60 * 20 - 1
    assert stage.core.refused[Refusal.KEY] == 120 * 20


def test_random_bytes_never_disturb_a_node_with_or_without_a_key() -> None:
    random = Random(2)
    for key in (b"key", None):
        stage = Stage(key=key)
        for _ in range(3000):
            packet = bytes((1, 1 if key else 0)) + random.randbytes(random.randint(0, 100))
            assert stage.arrives(packet, MALLORY) == []
        assert list(stage.core.members) == [ME]


def test_a_whole_recorded_life_played_back_changes_nothing() -> None:
    """Everything that was ever said is sent again to everybody, while the village is healthy and one member is gone."""
    village = Village(5, seed=11, records=True)
    village.starts()
    village.passes(20)
    village.stops(5)
    village.passes_until(lambda: village.everybody_sees(5, State.DEAD), limit=40)
    before = {villager.meta.node: dict(villager.core.members) for villager in village.up}
    village.passes(5)  # what is under way arrives
    known = len(village.beliefs)
    for _, _, packet in list(village.recorded):
        for villager in village.up:
            villager.core.step(village.now, MALLORY, packet)
    assert {villager.meta.node: dict(villager.core.members) for villager in village.up} == before
    assert len(village.beliefs) == known


def test_the_key_is_not_needed_where_none_is_set() -> None:
    stage = Stage(key=None, settings=SwimSettings())
    stage.says(2, Ping(1), Alive(0, meta(2)), to=ANY_RECEIVER)
    assert stage.state(2) is State.ALIVE


def test_a_copy_of_a_connected_node_is_not_heard_and_the_original_is() -> None:
    stage = Stage().knows(3)
    stage.core.connected(stage.now, NodeId(3), Session(replica(3), 1))
    copied = meta(3, cluster=MALLORY)
    assert stage.says(3, Ping(1), Alive(70, copied), to=ANY_RECEIVER, epoch=2, sequence=0) == []
    assert stage.core.refused[Refusal.RIVAL] == 1
    assert stage.core.members[replica(3)].meta.cluster != MALLORY
    assert stage.says(3, Ping(2), sequence=50)


def test_a_node_that_was_outdone_by_its_copy_is_heard_again_with_its_next_connection() -> None:
    stage = Stage().knows(3)
    old = stage.letter(replica(3), Ping(1))
    assert stage.arrives(old)
    assert stage.says(3, Ping(2), Alive(70, meta(3, cluster=MALLORY)), epoch=2, sequence=0)
    assert stage.says(3, Ping(3), sequence=50) == []
    stage.core.connected(stage.now, NodeId(3), Session(replica(3), 1))
    assert stage.says(3, Ping(4), Alive(71, meta(3)), sequence=51)
    assert stage.core.members[replica(3)].meta == meta(3)
    assert stage.arrives(old) == []


def test_some_seconds_of_a_copied_folder_cost_the_original_nothing() -> None:
    village = Village(3, seed=21)
    village.starts()
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=20)
    village.is_connected()
    copy = village.adds_a_copy(3, house=33)
    village.starts([33], seeds=(1, 2, 3))
    village.passes(6)
    village.stops(33)
    village.passes(120)
    assert copy.boots > village.members[3].boots
    assert village.deaths() == []
    assert village.agrees_that_all_are_alive
    places = {one.core.members[replica(3)].meta.cluster for one in village.up}
    assert places == {village.members[3].meta.cluster}
