"""Share groups that are created without members, for consumers that send no heartbeats."""

from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.groups import GroupState, ShareHeartbeatResult
from tests.groups.share_group_harness import QUEUE, ShareGroupHarness


def begins(harness: ShareGroupHarness, group_id: str = QUEUE) -> ShareHeartbeatResult | None:
    """None while the disk has not answered."""
    token = harness.new_token()
    harness.happens(harness.coordinator.begin_share_group(harness.now_ms, token, group_id))
    result = harness.replies.get(token)
    assert result is None or isinstance(result, ShareHeartbeatResult)
    return result


def begun(harness: ShareGroupHarness, group_id: str = QUEUE) -> ErrorCode:
    result = begins(harness, group_id)
    assert result is not None
    return result.error


def test_a_group_created_without_members_is_empty_and_survives_a_restart() -> None:
    harness = ShareGroupHarness()
    assert begun(harness) is ErrorCode.NONE
    for seen in (harness, harness.restarted()):
        assert seen.names(types=("share",), states=("empty",)) == [QUEUE]
        assert (seen.share_group().state, seen.share_group().members) == (GroupState.EMPTY, ())


def test_creating_an_existing_group_writes_nothing_and_keeps_its_members() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    written, epoch = len(harness.durable), harness.share_group().epoch
    assert begun(harness) is ErrorCode.NONE
    assert (len(harness.durable), harness.share_group().epoch) == (written, epoch)
    assert ann.reports().error is ErrorCode.NONE


def test_a_creation_is_answered_when_it_is_durable_and_undone_if_the_write_fails() -> None:
    harness = ShareGroupHarness()
    harness.disk = "slow"
    assert begins(harness) is None
    harness.disk = "full"
    harness.flush()
    assert begun(harness) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.names() == []


def test_a_consumer_can_join_a_group_that_was_created_without_members() -> None:
    harness = ShareGroupHarness()
    begun(harness)
    ann = harness.member("ann")
    assert ann.reports().error is ErrorCode.NONE
    assert harness.share_group().state is GroupState.STABLE
    assert harness.deletes() is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_was_created_without_members_can_be_deleted() -> None:
    harness = ShareGroupHarness()
    begun(harness)
    assert harness.deletes() is ErrorCode.NONE
    assert harness.restarted().names() == []


def test_a_name_belongs_to_a_consumer_group_or_to_a_share_group() -> None:
    harness = ShareGroupHarness()
    harness.client("reader", group_id="taken").joins()
    assert begun(harness, "taken") is ErrorCode.GROUP_ID_NOT_FOUND
    assert begun(harness) is ErrorCode.NONE
    late = harness.client("late", group_id=QUEUE).asks_to_join()
    assert late.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.names(types=("share",)) == [QUEUE]


def test_the_number_of_groups_and_their_names_have_limits() -> None:
    harness = ShareGroupHarness(Limits(max_groups=1, max_group_id_bytes=16))
    assert begun(harness, "g" * 17) is ErrorCode.INVALID_REQUEST
    assert begun(harness, "") is ErrorCode.INVALID_REQUEST
    assert begun(harness) is ErrorCode.NONE
    assert begun(harness, "more") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert begun(harness) is ErrorCode.NONE
