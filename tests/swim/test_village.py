"""Whole villages in made-up time: failures are found, the healthy are left alone, and what was cut grows together."""

import pytest

from penstock.swim import Conflict, Endpoint, Refusal, State, SwimSettings
from tests.swim.village import Village, meta

JOIN_LIMIT_S = 15.0


def healthy(count: int, *, seed: int, **about: object) -> Village:
    """A village in which everybody knows everybody."""
    village = Village(count, seed=seed, **about)  # type: ignore[arg-type]
    village.starts(seeds=(1, 2))
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)
    return village


@pytest.mark.parametrize("count", [2, 3, 5, 20, 50])
def test_all_find_each_other_through_two_seeds(count: int) -> None:
    village = healthy(count, seed=count)
    assert all(len(villager.core.members) == count for villager in village.up)


def test_all_find_each_other_although_a_third_of_the_packets_is_lost() -> None:
    healthy(20, seed=1, loss=0.33)


def test_all_find_each_other_over_datagrams_alone() -> None:
    """No reliable channel at all: the seeds still introduce everybody who greets them."""
    village = Village(5, seed=4, reliable=False)
    village.starts(seeds=(1, 2, 3, 4, 5))
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=60)


@pytest.mark.parametrize(("count", "limit_s"), [(3, 9.0), (5, 10.0), (20, 12.0), (50, 15.0)])
def test_a_dead_member_is_found_within_a_bound(count: int, limit_s: float) -> None:
    """The bound: it is probed within a round or two by somebody, suspected a second later, and given its time."""
    village = healthy(count, seed=count)
    village.stops(count)
    village.passes_until(lambda: village.everybody_sees(count, State.DEAD), limit=limit_s)
    assert {belief.subject for belief in village.deaths()} == {count}


def test_many_that_die_at_once_are_all_found() -> None:
    village = healthy(20, seed=8, loss=0.05)
    village.stops(*range(12, 21))
    village.passes_until(
        lambda: all(village.everybody_sees(node, State.DEAD) for node in range(12, 21)), limit=120
    )
    assert {belief.subject for belief in village.deaths()} == set(range(12, 21))


def deaths_beside_a_slow_member(settings: SwimSettings, loss: float) -> int:
    """Five minutes with member 7 starved: everything to and from it is up to a second late, and again and again it
    stops for longer than a suspect has to object. How many times somebody called another member dead."""
    village = healthy(10, seed=3, loss=loss, settings=settings)
    village.members[7].delay = (0.1, 1.0)
    end = village.now + 300
    while village.now < end:
        pause = village.random.uniform(4, 12)
        village.pauses(7, pause)
        village.passes(pause + village.random.uniform(1, 3))
    return sum(belief.subject != 7 for belief in village.deaths())


@pytest.mark.parametrize("loss", [0.10, 0.20])
def test_no_healthy_member_is_ever_called_dead_beside_a_slow_one(loss: float) -> None:
    """Lifeguard's claim."""
    assert deaths_beside_a_slow_member(SwimSettings(), loss) == 0


def test_plain_swim_buries_the_healthy_where_lifeguard_does_not() -> None:
    plain = SwimSettings(max_health_score=0, suspicion_max_multiplier=1, pause_tolerance_ms=10**9)
    assert deaths_beside_a_slow_member(plain, loss=0.20) > 0


def test_nobody_is_called_dead_in_a_healthy_village_that_loses_packets() -> None:
    village = healthy(15, seed=5, loss=0.15)
    village.passes(300)
    assert village.deaths() == []


def test_who_slept_long_enough_to_be_buried_comes_back() -> None:
    village = healthy(5, seed=3)
    village.pauses(4, 90)
    village.passes_until(lambda: village.everybody_sees(4, State.DEAD), limit=40)
    village.passes(90)
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=30)
    assert {belief.subject for belief in village.deaths()} == {4}


@pytest.mark.parametrize(("count", "minutes"), [(3, 0.5), (5, 0.5), (20, 0.5), (3, 10), (5, 10), (20, 3)])
def test_halves_that_were_cut_find_each_other_again(count: int, minutes: float) -> None:
    """Also long after anybody has gossiped to the other half's dead."""
    village = healthy(count, seed=count)
    left, right = range(1, count // 2 + 1), range(count // 2 + 1, count + 1)
    village.is_cut(left, right)
    village.passes(60 * minutes)
    assert village.members[1].believes(count) is State.DEAD
    assert village.members[count].believes(1) is State.DEAD
    village.is_mended()
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=60)


def test_five_islands_become_one_village() -> None:
    village = healthy(10, seed=6, loss=0.1)
    village.is_cut(*[(node, node + 5) for node in range(1, 6)])
    village.passes(200)
    village.is_mended()
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=90)


@pytest.mark.parametrize("seed", range(8))
def test_after_any_troubles_everybody_agrees_again(seed: int) -> None:
    """Members stop, come back, sleep and are cut off, all at random, while packets get lost. Then the troubles end."""
    village = healthy(8, seed=seed, loss=0.05)
    dice = village.random
    for _ in range(25):
        node = dice.randint(1, 8)
        match dice.choice(["stop", "start", "pause", "cut", "mend", "leave"]):
            case "stop":
                village.stops(node)
            case "start" if not village.members[node].is_up:
                village.starts([node])
            case "pause":
                village.pauses(node, dice.uniform(0.5, 20))
            case "cut":
                border = dice.randint(1, 7)
                village.is_cut(range(1, border + 1), range(border + 1, 9))
            case "mend":
                village.is_mended()
            case "leave" if village.members[node].is_up:
                village.leaves(node)
        village.passes(dice.uniform(0.5, 30))
        for villager in village.up:
            assert villager.core.incarnation <= villager.saved_incarnation
    village.is_mended()
    village.passes(20)  # who sleeps wakes up
    for node, villager in village.members.items():
        if not villager.is_up or villager.core.members[villager.meta.replica].state is State.LEFT:
            village.stops(node)
            village.starts([node])
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=90)
    since = village.now
    village.passes(60)
    assert village.deaths(since) == []


def test_blocked_datagrams_between_two_members_do_not_kill_either() -> None:
    """Others reach them, and so does the reliable channel."""
    village = healthy(3, seed=9)
    blocked = {village.members[2].meta.cluster, village.members[3].meta.cluster}
    send = village._send

    def one_path_less(sender: object, to: Endpoint, data: bytes) -> None:
        if {sender.meta.cluster, to} != blocked:  # type: ignore[attr-defined]
            send(sender, to, data)  # type: ignore[arg-type]

    village._send = one_path_less  # type: ignore[method-assign]
    village.passes(300)
    assert village.deaths() == []


def test_a_farewell_is_no_death() -> None:
    village = healthy(5, seed=2)
    village.leaves(5)
    village.passes_until(lambda: village.members[5].core.has_left, limit=5)
    village.stops(5)
    village.passes_until(lambda: village.everybody_sees(5, State.LEFT), limit=5)
    village.passes(60)
    assert village.deaths() == []


def test_who_left_may_come_back() -> None:
    village = healthy(5, seed=2)
    village.leaves(5)
    village.passes(5)
    village.stops(5)
    village.passes(100)
    village.starts([5])
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)


def test_a_quick_restart_is_not_noticed_as_a_death() -> None:
    village = healthy(5, seed=7)
    village.stops(3)
    village.passes(1)
    village.starts([3])
    village.passes(60)
    assert village.deaths() == []
    assert village.agrees_that_all_are_alive


def test_a_restart_after_death_is_alive_everywhere() -> None:
    village = healthy(5, seed=7)
    village.stops(3)
    village.passes_until(lambda: village.everybody_sees(3, State.DEAD), limit=40)
    village.starts([3])
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)


def test_a_restart_that_lost_its_incarnation_still_comes_back() -> None:
    village = healthy(5, seed=7)
    village.stops(3)
    village.passes_until(lambda: village.everybody_sees(3, State.DEAD), limit=40)
    village.members[3].saved_incarnation = -1
    village.starts([3])
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=30)


def test_a_wiped_node_comes_back_as_another_member() -> None:
    village = healthy(5, seed=7)
    village.stops(3)
    village.passes(1)
    wiped = village.add(meta(3, folder=77))
    village.starts([3])
    village.passes_until(lambda: village.agrees_that_all_are_alive, limit=JOIN_LIMIT_S)
    village.passes(60)
    seen = village.members[1].core.members
    assert sorted(member.state for each, member in seen.items() if each.node == 3) == [
        State.ALIVE,
        State.DEAD,
    ]
    assert seen[wiped.meta.replica].state is State.ALIVE
    assert not any(isinstance(each, Conflict) for villager in village.up for each in villager.troubles)


def test_a_stranger_from_another_cluster_changes_nothing_and_both_sides_know_why() -> None:
    village = healthy(3, seed=1)
    stranger = village.add(meta(9, cluster_id="town"))
    village.starts([9])
    village.passes(120)
    assert all(villager.believes(9) is None for villager in village.up if villager is not stranger)
    assert len(stranger.core.members) == 1
    for villager in (stranger, village.members[1]):
        reasons = [trouble.reason for trouble in villager.troubles if not isinstance(trouble, Conflict)]
        assert set(reasons) == {Refusal.FOREIGN_CLUSTER}
        assert len(reasons) <= 3, "told about once a minute"


def test_a_member_with_the_wrong_key_stays_outside() -> None:
    village = healthy(3, seed=1)
    stranger = village.add(meta(9), key=b"another village's key")
    village.starts([9])
    village.passes(60)
    assert all(villager.believes(9) is None for villager in village.up if villager is not stranger)
    assert village.members[1].core.refused[Refusal.KEY] > 0


def test_a_healthy_village_is_quiet() -> None:
    """Per member and second: a ping and an ack. Gossip rests when there is nothing to tell."""
    village = healthy(20, seed=5)
    village.passes(60)
    before = village.packets_sent
    village.passes(100)
    assert village.packets_sent - before <= 20 * 100 * 2.2


def test_a_seed_gives_the_same_life_twice() -> None:
    def life() -> tuple[list[object], int]:
        village = healthy(8, seed=99, loss=0.2)
        village.pauses(3, 20)
        village.passes(60)
        return list(village.beliefs), village.packets_sent

    assert life() == life()
