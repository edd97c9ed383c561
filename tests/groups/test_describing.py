"""What operators see of groups."""

from penstock.groups import GroupListing, GroupState
from penstock.groups.states import TRANSITIONS
from tests.groups.scene import GROUP, Scene, stable, subscription


def test_a_stable_group_shows_its_members_with_their_work() -> None:
    scene = Scene()
    alice = scene.client("alice", instance_id="pod-0")
    stable(scene, alice)
    group = scene.group()
    (member,) = group.members
    assert (group.state, group.protocol_type, group.protocol_name) == (GroupState.STABLE, "consumer", "range")
    assert (member.member_id, member.instance_id) == (alice.member_id, "pod-0")
    assert (member.client_id, member.client_host) == ("alice", "127.0.0.1")
    assert (member.metadata, member.assignment) == (subscription("orders"), b"alice")


def test_while_it_rebalances_a_group_shows_who_is_there_but_not_what_they_do() -> None:
    scene = Scene()
    alice = scene.client("alice")
    stable(scene, alice)
    scene.client("bob").joins()
    group = scene.group()
    assert (group.state, group.protocol_name) == (GroupState.PREPARING_REBALANCE, "")
    assert [(member.metadata, member.assignment) for member in group.members] == [(b"", b"")] * 2


def test_an_unknown_group_is_nothing() -> None:
    assert Scene().coordinator.describe(GROUP) is None


def test_groups_are_listed_by_state_and_type() -> None:
    scene = Scene()
    stable(scene, scene.client("alice", group_id="busy"))
    scene.client("bob", group_id="idle").commits()
    busy = GroupListing(group_id="busy", state=GroupState.STABLE, protocol_type="consumer")
    idle = GroupListing(group_id="idle", state=GroupState.EMPTY, protocol_type="")
    listed = scene.coordinator.list_groups
    assert listed() == [busy, idle]
    assert listed(states=["stable"]) == [busy]
    assert listed(states=["Empty", "Dead"]) == [idle]
    assert listed(group_types=["CLASSIC"]) == [busy, idle]
    assert listed(group_types=["consumer"]) == []
    assert idle.group_type == "classic"


def test_every_state_has_its_row_in_the_table_and_dead_is_the_end() -> None:
    assert set(TRANSITIONS) == set(GroupState)
    assert TRANSITIONS[GroupState.DEAD] == frozenset()
    reachable = set().union(*TRANSITIONS.values())
    assert reachable == set(GroupState)
