"""Share groups: membership and assignments."""

import pytest

from penstock.config import Limits, ShareGroupConfig
from penstock.errors import ErrorCode
from penstock.groups import GroupState, ShareHeartbeatResult
from tests.groups.share_group_harness import QUEUE, ShareGroupHarness

SESSION_MS = ShareGroupConfig().session_timeout_ms


def test_every_member_gets_all_partitions_of_its_topics() -> None:
    harness = ShareGroupHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    for member in (ann, bob):
        result = member.reports()
        assert (result.error, result.member_id) == (ErrorCode.NONE, member.name)
        assert result.heartbeat_interval_ms == 5_000
        assert member.assignment == {"orders": 3}


def test_an_unchanged_assignment_is_not_sent_again() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    assert ann.reports().assignment is None
    assert ann.assignment == {"orders": 3}


def test_a_full_request_is_answered_completely() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    result = ann.sends(ann.epoch, ("orders",))
    assert result is not None
    assert result.assignment == (harness.cluster.topics["orders"],)
    assert result.member_epoch == ann.epoch


def test_joining_again_is_answered_completely_and_does_not_affect_others() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    result = ann.sends(0, ("orders",))
    assert result is not None
    assert (result.member_epoch, result.assignment) == (ann.epoch, (harness.cluster.topics["orders"],))


def test_the_epoch_grows_when_members_join_and_leave() -> None:
    harness = ShareGroupHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    assert ann.reports().member_epoch == 1
    assert bob.reports().member_epoch == 2
    result = ann.reports()
    assert (result.member_epoch, result.assignment) == (2, None)
    bob.leaves()
    assert ann.reports().member_epoch == 3


def test_another_subscription_is_another_epoch_and_another_assignment() -> None:
    harness = ShareGroupHarness()
    harness.puts("refunds", 2)
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.reports(), bob.reports()
    ann.topics = ("refunds", "orders", "orders")
    assert ann.reports().member_epoch == 3
    assert ann.assignment == {"orders": 3, "refunds": 2}
    assert bob.reports().assignment is None
    assert bob.assignment == {"orders": 3}


def test_the_same_subscription_in_another_order_is_no_change() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann", "orders", "refunds")
    ann.reports()
    ann.topics = ("refunds", "orders")
    assert ann.reports().member_epoch == 1


def test_a_member_may_subscribe_to_nothing_and_stay() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    ann.topics = ()
    assert ann.reports().assignment == ()


# Topics


def test_members_are_told_of_created_grown_and_deleted_topics() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann", "orders", "refunds")
    ann.reports()
    assert ann.assignment == {"orders": 3}
    harness.puts("refunds", 1)
    ann.reports()
    assert ann.assignment == {"orders": 3, "refunds": 1}
    harness.puts("orders", 4)
    ann.reports()
    assert ann.assignment == {"orders": 4, "refunds": 1}
    harness.drops("refunds")
    ann.reports()
    assert (ann.assignment, ann.epoch) == ({"orders": 4}, 4)


def test_a_recreated_topic_is_another_topic() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    before = harness.cluster.topics["orders"]
    del harness.cluster.topics["orders"]
    harness.puts("orders", 3)
    result = ann.reports()
    assert result.assignment is not None
    assert result.assignment[0].topic_id != before.topic_id


def test_a_change_that_does_not_concern_members_keeps_the_epoch() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    harness.coordinator.topics_changed(harness.now_ms, ["orders"])
    harness.puts("unrelated", 1)
    assert ann.reports().member_epoch == 1


def test_thousands_of_members_with_one_subscription_cost_one_lookup_per_topic() -> None:
    harness = ShareGroupHarness()
    members = [harness.member(f"member-{number}") for number in range(2_000)]
    for member in members:
        member.reports()
    harness.cluster.looked_up = 0
    harness.puts("orders", 5)
    for member in members:
        member.reports()
    assert harness.cluster.looked_up == 1
    assert all(member.assignment == {"orders": 5} for member in members)


def test_topics_are_not_looked_up_for_an_empty_group() -> None:
    harness = ShareGroupHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.reports(), bob.reports()
    ann.leaves(), bob.leaves()
    harness.cluster.looked_up = 0
    harness.puts("orders", 5)
    assert harness.cluster.looked_up == 0
    ann.reports()
    assert ann.assignment == {"orders": 5}


# Epochs


def test_a_member_whose_response_was_lost_continues_with_its_old_epoch() -> None:
    harness = ShareGroupHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.reports(), bob.reports()
    harness.puts("orders", 4)
    lost = ann.sends(1)
    assert lost is not None
    assert lost.member_epoch == 3
    assert ann.reports().member_epoch == 3
    assert ann.assignment == {"orders": 4}


def test_a_response_may_be_lost_more_than_once() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    for partitions in (4, 5, 6):
        harness.puts("orders", partitions)
        assert ann.sends(1) is not None
    assert ann.reports().error is ErrorCode.NONE
    assert ann.assignment == {"orders": 6}


@pytest.mark.parametrize("wrong", [1, 4, 1_000])
def test_any_other_epoch_is_fenced(wrong: int) -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    for partitions in (4, 5):
        harness.puts("orders", partitions)
        ann.reports()
    result = ann.sends(wrong)
    assert result is not None
    assert result.error is ErrorCode.FENCED_MEMBER_EPOCH
    ann.hears(result)
    assert ann.reports().error is ErrorCode.NONE
    assert ann.assignment == {"orders": 5}


def test_an_unknown_member_is_refused() -> None:
    harness = ShareGroupHarness()
    ann, stranger = harness.member("ann"), harness.member("stranger")
    for asked in (stranger.sends(1), stranger.sends(-1)):
        assert asked is not None
        assert asked.error is ErrorCode.UNKNOWN_MEMBER_ID
    ann.reports()
    stranger.epoch = 1
    assert stranger.reports().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.reports().error is ErrorCode.NONE


# Time


def test_a_silent_member_is_removed_after_its_session() -> None:
    harness = ShareGroupHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.reports(), bob.reports()
    harness.passes(SESSION_MS - 1)
    ann.reports()
    harness.passes(1)
    assert [member.member_id for member in harness.share_group().members] == ["ann"]
    assert bob.reports().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_groups_own_session_and_interval_apply_from_the_next_heartbeat_on() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    harness.cluster.configs[QUEUE] = ShareGroupConfig(session_timeout_ms=2_000, heartbeat_interval_ms=500)
    assert ann.reports().heartbeat_interval_ms == 500
    harness.passes(2_000)
    assert harness.share_group().state is GroupState.EMPTY


def test_a_member_that_has_left_leaves_no_timer_behind() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    result = ann.leaves()
    assert (result.error, result.member_epoch) == (ErrorCode.NONE, -1)
    assert harness.coordinator.next_deadline_ms is None


# Refusals


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
    harness = ShareGroupHarness()
    assert refused(harness.member("ann").sends(0, ("orders",), **fields), ErrorCode.INVALID_REQUEST, word)
    assert harness.names() == []


def test_the_topics_of_a_subscription_are_limited() -> None:
    harness = ShareGroupHarness(Limits(max_subscribed_topics=2))
    ann = harness.member("ann", "a", "b", "c")
    assert refused(ann.reports(), ErrorCode.INVALID_REQUEST, "limits.max_subscribed_topics")
    ann.topics = ("a", "b")
    assert ann.reports().error is ErrorCode.NONE


def test_the_size_of_a_subscription_and_of_all_of_a_group_is_limited() -> None:
    harness = ShareGroupHarness(Limits(max_member_metadata_bytes=200, max_group_metadata_bytes=300))
    ann, bob, eve = (
        harness.member("ann", "a", "b", "c"),
        harness.member("bob", "b", "c"),
        harness.member("eve"),
    )
    assert refused(harness.member("mad", *"abcd").reports(), ErrorCode.INVALID_REQUEST, "max_member_metadata")
    assert ann.reports().error is ErrorCode.NONE
    eve.topics = ann.topics
    assert eve.reports().error is ErrorCode.NONE, "what others say already costs nothing"
    assert refused(bob.reports(), ErrorCode.INVALID_REQUEST, "max_group_metadata_bytes")
    ann.leaves(), eve.leaves()
    assert bob.reports().error is ErrorCode.NONE


def test_a_refused_subscription_leaves_the_member_with_its_old_one() -> None:
    harness = ShareGroupHarness(Limits(max_group_metadata_bytes=100))
    ann = harness.member("ann")
    ann.reports()
    result = ann.sends(1, ("orders", "refunds"))
    assert refused(result, ErrorCode.INVALID_REQUEST, "max_group_metadata_bytes")
    assert harness.share_group().members[0].topics == ("orders",)
    assert ann.reports().member_epoch == 1


def test_the_members_of_a_group_are_limited() -> None:
    harness = ShareGroupHarness(Limits(max_group_members=1))
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.reports()
    assert refused(bob.reports(), ErrorCode.GROUP_MAX_SIZE_REACHED, "limits.max_group_members")
    assert ann.sends(0, ("orders",)) is not None
    ann.leaves()
    assert bob.reports().error is ErrorCode.NONE


def test_the_number_of_groups_is_limited() -> None:
    harness = ShareGroupHarness(Limits(max_groups=1))
    harness.member("ann", group_id="one").reports()
    other = harness.member("ann", group_id="two")
    assert refused(other.reports(), ErrorCode.GROUP_MAX_SIZE_REACHED, "limits.max_groups")
    assert harness.names() == ["one"]
