"""How long a suspected member has to refute, and a node's own health score."""

import pytest

from penstock.errors import ConfigError
from penstock.swim import SwimSettings
from penstock.swim.health import LocalHealth
from penstock.swim.suspicion import Suspicion
from penstock.types import NodeId

SETTINGS = SwimSettings()


def suspicion(members: int, *confirmers: int) -> Suspicion:
    begun = Suspicion(100.0, NodeId(1), members, SETTINGS)
    for confirmer in confirmers:
        begun.confirm(NodeId(confirmer))
    return begun


def test_an_unconfirmed_suspicion_lasts_six_times_as_long_as_one_with_two_confirmations() -> None:
    assert suspicion(10).deadline == pytest.approx(100 + 24)
    assert suspicion(10, 2, 3).deadline == pytest.approx(100 + 4)


def test_the_first_confirmation_shortens_a_suspicion_more_than_the_second() -> None:
    none, one, two = (suspicion(10, *others).deadline for others in ((), (2,), (2, 3)))
    assert none - one > one - two > 0


def test_a_node_that_confirms_twice_counts_once() -> None:
    begun = suspicion(10)
    assert not begun.confirm(NodeId(1)), "the first accuser does not confirm itself"
    assert begun.confirm(NodeId(2))
    assert not begun.confirm(NodeId(2))


def test_more_confirmations_than_expected_change_nothing() -> None:
    begun = suspicion(10, 2, 3)
    assert not begun.confirm(NodeId(4))
    assert begun.deadline == begun.started + begun.shortest


def test_three_nodes_do_not_wait_for_confirmations_that_cannot_come() -> None:
    assert suspicion(3).deadline == pytest.approx(100 + 4)


def test_larger_clusters_give_more_time_for_the_news_to_travel() -> None:
    assert suspicion(100, 2, 3).deadline == pytest.approx(100 + 8)


def test_health_stays_between_its_bounds_and_stretches_every_wait() -> None:
    health = LocalHealth(7)
    health.improve()
    assert health.stretch(0.5) == 0.5
    health.worsen(3)
    assert health.stretch(0.5) == 2.0
    health.worsen(30)
    assert health.score == 7
    health.improve()
    assert health.score == 6


def test_settings_that_cannot_work_are_named() -> None:
    with pytest.raises(ConfigError, match="probe_timeout_ms"):
        SwimSettings(probe_interval_ms=500, probe_timeout_ms=500).validate()
    with pytest.raises(ConfigError, match="max_packet_bytes"):
        SwimSettings(max_packet_bytes=600).validate()
    assert SwimSettings().validate().suspicion_multiplier == 4
