"""Attackers on the network: replayed, changed and forged packets have no effect."""

from random import Random

from penstock.swim import (
    GossipEndpoint,
    PacketRefusal,
    PacketRefused,
    SendPacket,
    Session,
    State,
    SwimSettings,
)
from penstock.swim.packets import ANY_RECEIVER, Ack, Alive, Dead, Ping, Suspect
from penstock.swim.seal import Seal
from penstock.types import NodeId
from tests.swim.core_harness import ME, CoreHarness, only
from tests.swim.simulated_cluster import SALT, SimulatedCluster, meta, replica

ATTACKER = GossipEndpoint("192.0.2.66", 666)


def test_a_packet_that_is_sent_again_is_not_answered_again() -> None:
    harness = CoreHarness().knows(2)
    packet = harness.seal_packet(replica(2), Ping(5))
    assert harness.arrives(packet)
    assert harness.arrives(packet, ATTACKER) == []
    assert harness.core.refused[PacketRefusal.REPLAYED] == 1


def test_a_packet_for_another_receiver_is_not_taken() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.says(2, Dead(0, replica(3)), to=replica(4))
    assert harness.state(3) is State.ALIVE
    assert harness.core.refused[PacketRefusal.MISDIRECTED] == 1
    assert harness.troubles == []


def test_a_frame_that_claims_to_be_another_nodes_is_not_taken() -> None:
    harness = CoreHarness().knows(2, 3)
    frame = harness.seal_packet(replica(3), Dead(0, replica(2)))
    harness.core.step_reliable(harness.now, NodeId(4), frame)
    assert harness.state(2) is State.ALIVE
    assert harness.core.refused[PacketRefusal.MALFORMED] == 1


def test_a_packet_from_before_the_senders_restart_is_not_taken() -> None:
    harness = CoreHarness().knows(2)
    harness.says(2, Ping(1), epoch=2, sequence=0)
    assert harness.says(2, Ping(2), epoch=1, sequence=10_000) == []


def test_packets_without_the_key_are_refused() -> None:
    harness = CoreHarness().knows(2)
    harness.seal = Seal(b"guessed", SALT)
    harness.says(2, Dead(0, replica(2)), Suspect(0, ME, NodeId(2)))
    harness.seal = Seal(None, SALT)
    harness.says(2, Dead(0, replica(2)), Alive(0, meta(9)))
    assert harness.state(2) is State.ALIVE
    assert harness.state(9) is None
    assert harness.core.incarnation == 0
    assert harness.core.refused[PacketRefusal.KEY] == 2


def test_a_flood_of_garbage_is_reported_once_a_minute() -> None:
    harness = CoreHarness().knows(2)
    random = Random(1)
    for second in range(120):
        for _ in range(20):
            harness.arrives(b"\x01\x01" + random.randbytes(random.randint(0, 1300)), ATTACKER)
        harness.now += 1.0
        assert second < 60 or len(harness.troubles) == 2
    _, second_notice = harness.troubles
    assert isinstance(second_notice, PacketRefused)
    assert second_notice.source == str(ATTACKER)
    assert second_notice.suppressed == 60 * 20 - 1
    assert harness.core.refused[PacketRefusal.KEY] == 120 * 20


def test_random_bytes_never_disturb_a_node_with_or_without_a_key() -> None:
    random = Random(2)
    for key in (b"key", None):
        harness = CoreHarness(key=key)
        for _ in range(3000):
            packet = bytes((1, random.choice((1, 2)) if key else 0)) + random.randbytes(
                random.randint(0, 100)
            )
            assert harness.arrives(packet, ATTACKER) == []
        assert list(harness.core.members) == [ME]


def test_replaying_all_recorded_packets_changes_nothing() -> None:
    """All recorded packets are sent again to all members of a healthy cluster in which one member is gone."""
    cluster = SimulatedCluster(5, seed=11, records=True)
    cluster.starts()
    cluster.passes(20)
    cluster.stops(5)
    cluster.passes_until(lambda: cluster.all_see(5, State.DEAD), limit=40)
    before = {host.meta.node: dict(host.core.members) for host in cluster.up}
    cluster.passes(5)  # packets in flight arrive
    known = len(cluster.beliefs)
    for _, _, packet in list(cluster.recorded):
        for host in cluster.up:
            host.core.step(cluster.now, ATTACKER, packet)
    assert {host.meta.node: dict(host.core.members) for host in cluster.up} == before
    assert len(cluster.beliefs) == known


def test_packets_in_any_order_and_repeated_are_each_accepted_once() -> None:
    harness = CoreHarness().knows(3)
    packets = [harness.seal_packet(replica(3), Ping(number)) for number in range(100)]
    arriving = packets * 3
    Random(5).shuffle(arriving)
    answers = [said for packet in arriving for said in harness.arrives(packet)]
    assert sorted(ack.number for ack in only(Ack, answers)) == list(range(100))
    assert harness.core.refused[PacketRefusal.REPLAYED] == 200


def test_all_packets_are_encrypted_but_those_to_a_connected_node_of_the_version_before() -> None:
    harness = CoreHarness().knows(2, 3)
    harness.core.connected(harness.now, NodeId(3), Session(replica(3), 1), decrypts=False)
    harness.says(2, Ping(1))
    harness.says(3, Ping(1))
    assert kinds_sent(harness) == [b"\x01\x02", b"\x01\x01"]
    harness.core.connected(harness.now, NodeId(3), Session(replica(3), 2), decrypts=True)
    harness.says(3, Ping(2), epoch=2, sequence=0)
    assert kinds_sent(harness)[-1] == b"\x01\x02"


def kinds_sent(harness: CoreHarness) -> list[bytes]:
    """The first two bytes of each packet."""
    return [effect.data[:2] for effect in harness.effects if isinstance(effect, SendPacket)]


def test_the_key_is_not_needed_where_none_is_set() -> None:
    harness = CoreHarness(key=None, settings=SwimSettings())
    harness.says(2, Ping(1), Alive(0, meta(2)), to=ANY_RECEIVER)
    assert harness.state(2) is State.ALIVE


def test_a_copy_of_a_connected_node_is_ignored_and_the_original_is_heard() -> None:
    harness = CoreHarness().knows(3)
    harness.core.connected(harness.now, NodeId(3), Session(replica(3), 1))
    copied = meta(3, cluster=ATTACKER)
    assert harness.says(3, Ping(1), Alive(70, copied), to=ANY_RECEIVER, epoch=2, sequence=0) == []
    assert harness.core.refused[PacketRefusal.RIVAL] == 1
    assert harness.core.members[replica(3)].meta.cluster != ATTACKER
    assert harness.says(3, Ping(2), sequence=50)


def test_a_node_that_was_outdone_by_its_copy_is_heard_again_with_its_next_connection() -> None:
    harness = CoreHarness().knows(3)
    old = harness.seal_packet(replica(3), Ping(1))
    assert harness.arrives(old)
    assert harness.says(3, Ping(2), Alive(70, meta(3, cluster=ATTACKER)), epoch=2, sequence=0)
    assert harness.says(3, Ping(3), sequence=50) == []
    harness.core.connected(harness.now, NodeId(3), Session(replica(3), 1))
    assert harness.says(3, Ping(4), Alive(71, meta(3)), sequence=51)
    assert harness.core.members[replica(3)].meta == meta(3)
    assert harness.arrives(old) == []


def test_a_copied_folder_that_runs_for_seconds_does_not_harm_the_original() -> None:
    cluster = SimulatedCluster(3, seed=21)
    cluster.starts()
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=20)
    cluster.is_connected()
    copy = cluster.adds_a_copy(3, host_id=33)
    cluster.starts([33], seeds=(1, 2, 3))
    cluster.passes(6)
    cluster.stops(33)
    cluster.passes(120)
    assert copy.boots > cluster.members[3].boots
    assert cluster.deaths() == []
    assert cluster.agrees_that_all_are_alive
    places = {one.core.members[replica(3)].meta.cluster for one in cluster.up}
    assert places == {cluster.members[3].meta.cluster}
