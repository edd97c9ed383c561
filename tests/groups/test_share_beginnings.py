"""Share groups that begin without members, for consumers that never report."""

from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.groups import GroupState, ShareHeartbeatResult
from tests.groups.share_scene import QUEUE, ShareScene


def begins(scene: ShareScene, group_id: str = QUEUE) -> ShareHeartbeatResult | None:
    """None while the disk has not answered."""
    token = scene.new_token()
    scene.happens(scene.coordinator.begin_share_group(scene.now_ms, token, group_id))
    result = scene.replies.get(token)
    assert result is None or isinstance(result, ShareHeartbeatResult)
    return result


def begun(scene: ShareScene, group_id: str = QUEUE) -> ErrorCode:
    result = begins(scene, group_id)
    assert result is not None
    return result.error


def test_a_group_that_was_begun_is_empty_and_still_there_after_a_restart() -> None:
    scene = ShareScene()
    assert begun(scene) is ErrorCode.NONE
    for seen in (scene, scene.restarted()):
        assert seen.names(types=("share",), states=("empty",)) == [QUEUE]
        assert (seen.share_group().state, seen.share_group().members) == (GroupState.EMPTY, ())


def test_beginning_again_writes_nothing_and_leaves_the_members_alone() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    written, epoch = len(scene.durable), scene.share_group().epoch
    assert begun(scene) is ErrorCode.NONE
    assert (len(scene.durable), scene.share_group().epoch) == (written, epoch)
    assert ann.reports().error is ErrorCode.NONE


def test_it_is_answered_when_it_is_durable_and_leaves_no_trace_if_that_fails() -> None:
    scene = ShareScene()
    scene.disk = "slow"
    assert begins(scene) is None
    scene.disk = "full"
    scene.flush()
    assert begun(scene) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.names() == []


def test_who_joins_a_group_that_was_begun_is_a_member_like_any_other() -> None:
    scene = ShareScene()
    begun(scene)
    ann = scene.member("ann")
    assert ann.reports().error is ErrorCode.NONE
    assert scene.share_group().state is GroupState.STABLE
    assert scene.deletes() is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_was_begun_can_be_deleted() -> None:
    scene = ShareScene()
    begun(scene)
    assert scene.deletes() is ErrorCode.NONE
    assert scene.restarted().names() == []


def test_a_name_is_a_consumer_groups_or_a_share_groups() -> None:
    scene = ShareScene()
    scene.client("reader", group_id="taken").joins()
    assert begun(scene, "taken") is ErrorCode.GROUP_ID_NOT_FOUND
    assert begun(scene) is ErrorCode.NONE
    late = scene.client("late", group_id=QUEUE).asks_to_join()
    assert late.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert scene.names(types=("share",)) == [QUEUE]


def test_the_number_of_groups_and_their_names_have_limits() -> None:
    scene = ShareScene(Limits(max_groups=1, max_group_id_bytes=16))
    assert begun(scene, "g" * 17) is ErrorCode.INVALID_REQUEST
    assert begun(scene, "") is ErrorCode.INVALID_REQUEST
    assert begun(scene) is ErrorCode.NONE
    assert begun(scene, "more") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert begun(scene) is ErrorCode.NONE
