"""Whole clusters in simulated time: failures are detected, healthy members are not suspected, partitions heal."""

import pytest

from penstock.swim import Conflict, GossipEndpoint, PacketRefusal, State, SwimSettings
from tests.swim.simulated_cluster import SimulatedCluster, meta

JOIN_LIMIT_S = 15.0


def healthy(count: int, *, seed: int, **about: object) -> SimulatedCluster:
    """A cluster in which every member knows every other."""
    cluster = SimulatedCluster(count, seed=seed, **about)  # type: ignore[arg-type]
    cluster.starts(seeds=(1, 2))
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)
    return cluster


@pytest.mark.parametrize("count", [2, 3, 5, 20, 50])
def test_all_find_each_other_through_two_seeds(count: int) -> None:
    cluster = healthy(count, seed=count)
    assert all(len(host.core.members) == count for host in cluster.up)


def test_all_find_each_other_although_a_third_of_the_packets_is_lost() -> None:
    healthy(20, seed=1, loss=0.33)


def test_all_find_each_other_over_datagrams_alone() -> None:
    """No reliable channel at all: the seeds still introduce every node that greets them."""
    cluster = SimulatedCluster(5, seed=4, reliable=False)
    cluster.starts(seeds=(1, 2, 3, 4, 5))
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=60)


@pytest.mark.parametrize(("count", "limit_s"), [(3, 9.0), (5, 10.0), (20, 12.0), (50, 15.0)])
def test_a_dead_member_is_detected_within_a_bound(count: int, limit_s: float) -> None:
    """The bound: a member probes it within a round or two, suspects it a second later, and gives it its time."""
    cluster = healthy(count, seed=count)
    cluster.stops(count)
    cluster.passes_until(lambda: cluster.all_see(count, State.DEAD), limit=limit_s)
    assert {belief.subject for belief in cluster.deaths()} == {count}


def test_members_that_die_at_the_same_time_are_all_detected() -> None:
    cluster = healthy(20, seed=8, loss=0.05)
    cluster.stops(*range(12, 21))
    cluster.passes_until(lambda: all(cluster.all_see(node, State.DEAD) for node in range(12, 21)), limit=120)
    assert {belief.subject for belief in cluster.deaths()} == set(range(12, 21))


def deaths_beside_a_slow_member(settings: SwimSettings, loss: float) -> int:
    """Five minutes with member 7 starved: everything to and from it is up to a second late, and again and again it
    stops for longer than a suspect has to object. Returns how often a member declared a member other than 7 dead."""
    cluster = healthy(10, seed=3, loss=loss, settings=settings)
    cluster.members[7].delay = (0.1, 1.0)
    end = cluster.now + 300
    while cluster.now < end:
        pause = cluster.random.uniform(4, 12)
        cluster.pauses(7, pause)
        cluster.passes(pause + cluster.random.uniform(1, 3))
    return sum(belief.subject != 7 for belief in cluster.deaths())


@pytest.mark.parametrize("loss", [0.10, 0.20])
def test_no_healthy_member_is_ever_called_dead_beside_a_slow_one(loss: float) -> None:
    """Lifeguard's claim."""
    assert deaths_beside_a_slow_member(SwimSettings(), loss) == 0


def test_swim_without_lifeguard_declares_healthy_members_dead() -> None:
    plain = SwimSettings(max_health_score=0, suspicion_max_multiplier=1, pause_tolerance_ms=10**9)
    assert deaths_beside_a_slow_member(plain, loss=0.20) > 0


def test_packet_loss_alone_never_makes_a_member_dead() -> None:
    cluster = healthy(15, seed=5, loss=0.15)
    cluster.passes(300)
    assert cluster.deaths() == []


def test_a_member_that_was_declared_dead_during_a_pause_comes_back() -> None:
    cluster = healthy(5, seed=3)
    cluster.pauses(4, 90)
    cluster.passes_until(lambda: cluster.all_see(4, State.DEAD), limit=40)
    cluster.passes(90)
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=30)
    assert {belief.subject for belief in cluster.deaths()} == {4}


@pytest.mark.parametrize(("count", "minutes"), [(3, 0.5), (5, 0.5), (20, 0.5), (3, 10), (5, 10), (20, 3)])
def test_two_halves_rejoin_after_a_network_cut(count: int, minutes: float) -> None:
    """Also long after the last gossip to the other half's dead."""
    cluster = healthy(count, seed=count)
    left, right = range(1, count // 2 + 1), range(count // 2 + 1, count + 1)
    cluster.is_cut(left, right)
    cluster.passes(60 * minutes)
    assert cluster.members[1].believes(count) is State.DEAD
    assert cluster.members[count].believes(1) is State.DEAD
    cluster.is_healed()
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=60)


def test_five_partitions_become_one_cluster_again() -> None:
    cluster = healthy(10, seed=6, loss=0.1)
    cluster.is_cut(*[(node, node + 5) for node in range(1, 6)])
    cluster.passes(200)
    cluster.is_healed()
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=90)


@pytest.mark.parametrize("seed", range(8))
def test_all_members_agree_again_after_random_faults(seed: int) -> None:
    """Members stop, come back, sleep and are cut off, all at random, while packets get lost. Then the troubles end."""
    cluster = healthy(8, seed=seed, loss=0.05)
    dice = cluster.random
    for _ in range(25):
        node = dice.randint(1, 8)
        match dice.choice(["stop", "start", "pause", "cut", "mend", "leave"]):
            case "stop":
                cluster.stops(node)
            case "start" if not cluster.members[node].is_up:
                cluster.starts([node])
            case "pause":
                cluster.pauses(node, dice.uniform(0.5, 20))
            case "cut":
                border = dice.randint(1, 7)
                cluster.is_cut(range(1, border + 1), range(border + 1, 9))
            case "mend":
                cluster.is_healed()
            case "leave" if cluster.members[node].is_up:
                cluster.leaves(node)
        cluster.passes(dice.uniform(0.5, 30))
        for host in cluster.up:
            assert host.core.incarnation <= host.saved_incarnation
    cluster.is_healed()
    cluster.passes(20)  # paused members wake up
    for node, host in cluster.members.items():
        if not host.is_up or host.core.members[host.meta.replica].state is State.LEFT:
            cluster.stops(node)
            cluster.starts([node])
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=90)
    since = cluster.now
    cluster.passes(60)
    assert cluster.deaths(since) == []


def test_blocked_datagrams_between_two_members_do_not_kill_either() -> None:
    """Others reach them, and so does the reliable channel."""
    cluster = healthy(3, seed=9)
    blocked = {cluster.members[2].meta.cluster, cluster.members[3].meta.cluster}
    send = cluster._send

    def one_path_less(sender: object, to: GossipEndpoint, data: bytes) -> None:
        if {sender.meta.cluster, to} != blocked:  # type: ignore[attr-defined]
            send(sender, to, data)  # type: ignore[arg-type]

    cluster._send = one_path_less  # type: ignore[method-assign]
    cluster.passes(300)
    assert cluster.deaths() == []


def test_a_member_that_leaves_is_not_declared_dead() -> None:
    cluster = healthy(5, seed=2)
    cluster.leaves(5)
    cluster.passes_until(lambda: cluster.members[5].core.has_left, limit=5)
    cluster.stops(5)
    cluster.passes_until(lambda: cluster.all_see(5, State.LEFT), limit=5)
    cluster.passes(60)
    assert cluster.deaths() == []


def test_a_member_that_left_may_come_back() -> None:
    cluster = healthy(5, seed=2)
    cluster.leaves(5)
    cluster.passes(5)
    cluster.stops(5)
    cluster.passes(100)
    cluster.starts([5])
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)


def test_a_quick_restart_is_not_taken_for_a_death() -> None:
    cluster = healthy(5, seed=7)
    cluster.stops(3)
    cluster.passes(1)
    cluster.starts([3])
    cluster.passes(60)
    assert cluster.deaths() == []
    assert cluster.agrees_that_all_are_alive


def test_a_restart_after_death_is_alive_everywhere() -> None:
    cluster = healthy(5, seed=7)
    cluster.stops(3)
    cluster.passes_until(lambda: cluster.all_see(3, State.DEAD), limit=40)
    cluster.starts([3])
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)


def test_a_restart_that_lost_its_incarnation_still_comes_back() -> None:
    cluster = healthy(5, seed=7)
    cluster.stops(3)
    cluster.passes_until(lambda: cluster.all_see(3, State.DEAD), limit=40)
    cluster.members[3].saved_incarnation = -1
    cluster.starts([3])
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=30)


def test_a_wiped_node_comes_back_as_another_member() -> None:
    cluster = healthy(5, seed=7)
    cluster.stops(3)
    cluster.passes(1)
    wiped = cluster.add(meta(3, folder=77))
    cluster.starts([3])
    cluster.passes_until(lambda: cluster.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)
    cluster.passes(60)
    seen = cluster.members[1].core.members
    assert sorted(member.state for each, member in seen.items() if each.node == 3) == [
        State.ALIVE,
        State.DEAD,
    ]
    assert seen[wiped.meta.replica].state is State.ALIVE
    assert not any(isinstance(each, Conflict) for host in cluster.up for each in host.troubles)


def test_a_node_of_another_cluster_changes_nothing_and_both_sides_know_why() -> None:
    cluster = healthy(3, seed=1)
    stranger = cluster.add(meta(9, cluster_id="other"))
    cluster.starts([9])
    cluster.passes(120)
    assert all(host.believes(9) is None for host in cluster.up if host is not stranger)
    assert len(stranger.core.members) == 1
    for host in (stranger, cluster.members[1]):
        reasons = [trouble.reason for trouble in host.troubles if not isinstance(trouble, Conflict)]
        assert set(reasons) == {PacketRefusal.FOREIGN_CLUSTER}
        assert len(reasons) <= 3, "told about once a minute"


def test_a_member_with_the_wrong_key_stays_outside() -> None:
    cluster = healthy(3, seed=1)
    stranger = cluster.add(meta(9), key=b"another cluster's key")
    cluster.starts([9])
    cluster.passes(60)
    assert all(host.believes(9) is None for host in cluster.up if host is not stranger)
    assert cluster.members[1].core.refused[PacketRefusal.KEY] > 0


def test_a_healthy_cluster_sends_only_probes() -> None:
    """Per member and second: a ping and an ack. There is no gossip without news."""
    cluster = healthy(20, seed=5)
    cluster.passes(60)
    before = cluster.packets_sent
    cluster.passes(100)
    assert cluster.packets_sent - before <= 20 * 100 * 2.2


def test_the_same_seed_gives_the_same_run() -> None:
    def run() -> tuple[list[object], int]:
        cluster = healthy(8, seed=99, loss=0.2)
        cluster.pauses(3, 20)
        cluster.passes(60)
        return list(cluster.beliefs), cluster.packets_sent

    assert run() == run()
