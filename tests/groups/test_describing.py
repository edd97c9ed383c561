"""Groups as operators see them."""

from penstock.groups import GroupListing, GroupState
from penstock.groups.states import TRANSITIONS
from tests.groups.group_harness import GROUP, GroupHarness, stable, subscription


def test_a_stable_group_shows_its_members_with_their_assignments() -> None:
    harness = GroupHarness()
    alice = harness.client("alice", instance_id="pod-0")
    stable(harness, alice)
    group = harness.group()
    (member,) = group.members
    assert (group.state, group.protocol_type, group.protocol_name) == (GroupState.STABLE, "consumer", "range")
    assert (member.member_id, member.instance_id) == (alice.member_id, "pod-0")
    assert (member.client_id, member.client_host) == ("alice", "127.0.0.1")
    assert (member.metadata, member.assignment) == (subscription("orders"), b"alice")


def test_a_rebalancing_group_shows_its_members_without_assignments() -> None:
    harness = GroupHarness()
    alice = harness.client("alice")
    stable(harness, alice)
    harness.client("bob").joins()
    group = harness.group()
    assert (group.state, group.protocol_name) == (GroupState.PREPARING_REBALANCE, "")
    assert [(member.metadata, member.assignment) for member in group.members] == [(b"", b"")] * 2


def test_an_unknown_group_is_not_described() -> None:
    assert GroupHarness().coordinator.describe(GROUP) is None


def test_groups_are_listed_by_state_and_type() -> None:
    harness = GroupHarness()
    stable(harness, harness.client("alice", group_id="busy"))
    harness.client("bob", group_id="idle").commits()
    busy = GroupListing(group_id="busy", state=GroupState.STABLE, protocol_type="consumer")
    idle = GroupListing(group_id="idle", state=GroupState.EMPTY, protocol_type="")
    listed = harness.coordinator.list_groups
    assert list(listed()) == [busy, idle]
    assert list(listed(states=["stable"])) == [busy]
    assert list(listed(states=["Empty", "Dead"])) == [idle]
    assert list(listed(group_types=["CLASSIC"])) == [busy, idle]
    assert list(listed(group_types=["consumer"])) == []
    assert idle.group_type == "classic"


def test_every_state_has_its_transitions_and_dead_is_final() -> None:
    classic = set(GroupState) - {GroupState.ASSIGNING, GroupState.RECONCILING}
    assert set(TRANSITIONS) == classic
    assert TRANSITIONS[GroupState.DEAD] == frozenset()
    reachable = set().union(*TRANSITIONS.values())
    assert reachable == classic
