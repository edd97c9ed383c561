"""Share groups: who is a member, and what members are told."""

import pytest

from penstock.config import Limits, ShareGroupConfig
from penstock.errors import ErrorCode
from penstock.groups import GroupState, ShareHeartbeatResult
from tests.groups.share_scene import QUEUE, ShareScene

SESSION_MS = ShareGroupConfig().session_timeout_ms


def test_every_member_gets_all_partitions_of_its_topics() -> None:
    scene = ShareScene()
    ann, bob = scene.member("ann"), scene.member("bob")
    for member in (ann, bob):
        result = member.reports()
        assert (result.error, result.member_id) == (ErrorCode.NONE, member.name)
        assert result.heartbeat_interval_ms == 5_000
        assert member.assignment == {"orders": 3}


def test_an_unchanged_assignment_is_not_told_again() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    assert ann.reports().assignment is None
    assert ann.assignment == {"orders": 3}


def test_a_full_request_is_answered_completely() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    result = ann.sends(ann.epoch, ("orders",))
    assert result is not None
    assert result.assignment == (scene.cluster.topics["orders"],)
    assert result.member_epoch == ann.epoch


def test_joining_again_is_answered_completely_and_disturbs_nobody() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    result = ann.sends(0, ("orders",))
    assert result is not None
    assert (result.member_epoch, result.assignment) == (ann.epoch, (scene.cluster.topics["orders"],))


def test_the_epoch_rises_when_members_come_and_go() -> None:
    scene = ShareScene()
    ann, bob = scene.member("ann"), scene.member("bob")
    assert ann.reports().member_epoch == 1
    assert bob.reports().member_epoch == 2
    result = ann.reports()
    assert (result.member_epoch, result.assignment) == (2, None)
    bob.leaves()
    assert ann.reports().member_epoch == 3


def test_another_subscription_is_another_epoch_and_another_assignment() -> None:
    scene = ShareScene()
    scene.puts("refunds", 2)
    ann, bob = scene.member("ann"), scene.member("bob")
    ann.reports(), bob.reports()
    ann.topics = ("refunds", "orders", "orders")
    assert ann.reports().member_epoch == 3
    assert ann.assignment == {"orders": 3, "refunds": 2}
    assert bob.reports().assignment is None
    assert bob.assignment == {"orders": 3}


def test_the_same_subscription_in_another_order_is_no_change() -> None:
    scene = ShareScene()
    ann = scene.member("ann", "orders", "refunds")
    ann.reports()
    ann.topics = ("refunds", "orders")
    assert ann.reports().member_epoch == 1


def test_a_member_may_subscribe_to_nothing_and_stay() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    ann.topics = ()
    assert ann.reports().assignment == ()


# Topics


def test_members_hear_of_topics_that_come_grow_and_go() -> None:
    scene = ShareScene()
    ann = scene.member("ann", "orders", "refunds")
    ann.reports()
    assert ann.assignment == {"orders": 3}
    scene.puts("refunds", 1)
    ann.reports()
    assert ann.assignment == {"orders": 3, "refunds": 1}
    scene.puts("orders", 4)
    ann.reports()
    assert ann.assignment == {"orders": 4, "refunds": 1}
    scene.drops("refunds")
    ann.reports()
    assert (ann.assignment, ann.epoch) == ({"orders": 4}, 4)


def test_a_topic_made_anew_is_another_topic() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    before = scene.cluster.topics["orders"]
    del scene.cluster.topics["orders"]
    scene.puts("orders", 3)
    result = ann.reports()
    assert result.assignment is not None
    assert result.assignment[0].topic_id != before.topic_id


def test_what_changes_nothing_for_members_leaves_the_epoch_alone() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    scene.coordinator.topics_changed(["orders"])
    scene.puts("unrelated", 1)
    assert ann.reports().member_epoch == 1


def test_thousands_of_members_of_one_mind_cost_one_look_at_each_topic() -> None:
    scene = ShareScene()
    members = [scene.member(f"member-{number}") for number in range(2_000)]
    for member in members:
        member.reports()
    scene.cluster.looked_up = 0
    scene.puts("orders", 5)
    for member in members:
        member.reports()
    assert scene.cluster.looked_up == 1
    assert all(member.assignment == {"orders": 5} for member in members)


def test_nobody_is_looked_after_once_all_have_left() -> None:
    scene = ShareScene()
    ann, bob = scene.member("ann"), scene.member("bob")
    ann.reports(), bob.reports()
    ann.leaves(), bob.leaves()
    scene.cluster.looked_up = 0
    scene.puts("orders", 5)
    assert scene.cluster.looked_up == 0
    ann.reports()
    assert ann.assignment == {"orders": 5}


# Epochs


def test_a_member_whose_answer_was_lost_goes_on_with_the_epoch_it_has() -> None:
    scene = ShareScene()
    ann, bob = scene.member("ann"), scene.member("bob")
    ann.reports(), bob.reports()
    scene.puts("orders", 4)
    lost = ann.sends(1)
    assert lost is not None
    assert lost.member_epoch == 3
    assert ann.reports().member_epoch == 3
    assert ann.assignment == {"orders": 4}


def test_an_answer_may_be_lost_more_than_once() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    for partitions in (4, 5, 6):
        scene.puts("orders", partitions)
        assert ann.sends(1) is not None
    assert ann.reports().error is ErrorCode.NONE
    assert ann.assignment == {"orders": 6}


@pytest.mark.parametrize("wrong", [1, 4, 1_000])
def test_any_other_epoch_is_fenced(wrong: int) -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    for partitions in (4, 5):
        scene.puts("orders", partitions)
        ann.reports()
    result = ann.sends(wrong)
    assert result is not None
    assert result.error is ErrorCode.FENCED_MEMBER_EPOCH
    ann.hears(result)
    assert ann.reports().error is ErrorCode.NONE
    assert ann.assignment == {"orders": 5}


def test_who_is_not_a_member_is_told_so() -> None:
    scene = ShareScene()
    ann, stranger = scene.member("ann"), scene.member("stranger")
    for asked in (stranger.sends(1), stranger.sends(-1)):
        assert asked is not None
        assert asked.error is ErrorCode.UNKNOWN_MEMBER_ID
    ann.reports()
    stranger.epoch = 1
    assert stranger.reports().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.reports().error is ErrorCode.NONE


# Time


def test_a_silent_member_is_gone_after_its_session() -> None:
    scene = ShareScene()
    ann, bob = scene.member("ann"), scene.member("bob")
    ann.reports(), bob.reports()
    scene.passes(SESSION_MS - 1)
    ann.reports()
    scene.passes(1)
    assert [member.member_id for member in scene.share_group().members] == ["ann"]
    assert bob.reports().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_groups_own_session_and_interval_hold_from_the_next_heartbeat_on() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    scene.cluster.configs[QUEUE] = ShareGroupConfig(session_timeout_ms=2_000, heartbeat_interval_ms=500)
    assert ann.reports().heartbeat_interval_ms == 500
    scene.passes(2_000)
    assert scene.share_group().state is GroupState.EMPTY


def test_a_member_that_has_left_leaves_no_timer_behind() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    result = ann.leaves()
    assert (result.error, result.member_epoch) == (ErrorCode.NONE, -1)
    assert scene.coordinator.next_deadline_ms is None


# What is refused


def refused(result: ShareHeartbeatResult | None, code: ErrorCode, word: str) -> bool:
    assert result is not None
    assert result.message is not None
    return result.error is code and word in result.message


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"group_id": ""}, "GroupId"),
        ({"group_id": "g" * 4_097}, "GroupId"),
        ({"member_id": ""}, "MemberId"),
        ({"member_id": "ü" * 2_049}, "MemberId"),
        ({"rack_id": ""}, "RackId"),
        ({"rack_id": "r" * 4_097}, "RackId"),
        ({"member_epoch": -2}, "MemberEpoch"),
        ({"topics": None}, "SubscribedTopicNames"),
        ({"topics": ()}, "SubscribedTopicNames"),
        ({"topics": ("",)}, "SubscribedTopicNames"),
        ({"topics": ("t" * 4_097,)}, "SubscribedTopicNames"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, object], word: str) -> None:
    scene = ShareScene()
    assert refused(scene.member("ann").sends(0, ("orders",), **fields), ErrorCode.INVALID_REQUEST, word)
    assert scene.names() == []


def test_a_subscription_has_a_largest_number_of_topics() -> None:
    scene = ShareScene(Limits(max_subscribed_topics=2))
    ann = scene.member("ann", "a", "b", "c")
    assert refused(ann.reports(), ErrorCode.INVALID_REQUEST, "limits.max_subscribed_topics")
    ann.topics = ("a", "b")
    assert ann.reports().error is ErrorCode.NONE


def test_a_subscription_and_all_of_a_group_have_a_largest_size() -> None:
    scene = ShareScene(Limits(max_member_metadata_bytes=200, max_group_metadata_bytes=300))
    ann, bob, eve = scene.member("ann", "a", "b", "c"), scene.member("bob", "b", "c"), scene.member("eve")
    assert refused(scene.member("mad", *"abcd").reports(), ErrorCode.INVALID_REQUEST, "max_member_metadata")
    assert ann.reports().error is ErrorCode.NONE
    eve.topics = ann.topics
    assert eve.reports().error is ErrorCode.NONE, "what others say already costs nothing"
    assert refused(bob.reports(), ErrorCode.INVALID_REQUEST, "max_group_metadata_bytes")
    ann.leaves(), eve.leaves()
    assert bob.reports().error is ErrorCode.NONE


def test_a_refused_subscription_leaves_the_member_with_its_old_one() -> None:
    scene = ShareScene(Limits(max_group_metadata_bytes=100))
    ann = scene.member("ann")
    ann.reports()
    result = ann.sends(1, ("orders", "refunds"))
    assert refused(result, ErrorCode.INVALID_REQUEST, "max_group_metadata_bytes")
    assert scene.share_group().members[0].topics == ("orders",)
    assert ann.reports().member_epoch == 1


def test_a_group_has_a_largest_number_of_members() -> None:
    scene = ShareScene(Limits(max_group_members=1))
    ann, bob = scene.member("ann"), scene.member("bob")
    ann.reports()
    assert refused(bob.reports(), ErrorCode.GROUP_MAX_SIZE_REACHED, "limits.max_group_members")
    assert ann.sends(0, ("orders",)) is not None
    ann.leaves()
    assert bob.reports().error is ErrorCode.NONE


def test_there_is_a_largest_number_of_groups() -> None:
    scene = ShareScene(Limits(max_groups=1))
    scene.member("ann", group_id="one").reports()
    other = scene.member("ann", group_id="two")
    assert refused(other.reports(), ErrorCode.GROUP_MAX_SIZE_REACHED, "limits.max_groups")
    assert scene.names() == ["one"]
