"""Share groups and the disk: what is kept, what is told, and in which order."""

import pytest

from penstock.errors import ErrorCode, UnknownFormat
from penstock.groups import (
    CommitRequest,
    CommitResult,
    GroupState,
    JoinRequest,
    JoinResult,
    OffsetToCommit,
    Protocol,
)
from penstock.groups.share_storage import (
    decode_share_group,
    decode_share_group_key,
    encode_share_group,
    encode_share_group_key,
)
from penstock.groups.storage import encode_group_key, encode_offset_key
from penstock.types import TopicPartition
from tests.groups.share_scene import QUEUE, ShareScene

# The bytes


def test_the_layout_is_kafkas() -> None:
    assert encode_share_group_key("ab") == b"\x00\x0b\x00\x02ab"
    assert encode_share_group(7) == b"\x00\x00" + b"\x00\x00\x00\x07" + bytes(8) + b"\x00"


@pytest.mark.parametrize("name", ["a", "grün", "g" * 4_096])
def test_a_name_comes_back_from_its_key(name: str) -> None:
    assert decode_share_group_key(encode_share_group_key(name)) == name


def test_other_keys_are_left_to_others() -> None:
    assert decode_share_group_key(encode_group_key("a")) is None
    assert decode_share_group_key(encode_offset_key("a", TopicPartition("t", 1))) is None
    assert decode_share_group_key(b"") is None


@pytest.mark.parametrize(
    "key", [b"\x00\x0b", b"\x00\x0b\x00\x02a", b"\x00\x0b\x00\x01ab", b"\x00\x0b\x00\x01\xff"]
)
def test_a_key_that_is_not_understood_is_never_skipped(key: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_share_group_key(key)


@pytest.mark.parametrize(
    "value", [b"", encode_share_group(1)[:-1], b"\x00\x01" + bytes(13), bytes(14) + b"\x01"]
)
def test_a_value_that_is_not_understood_is_never_skipped(value: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_share_group(value)


# What survives


def test_a_group_outlives_its_members_and_restarts() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    ann.leaves()
    scene = scene.restarted()
    assert scene.names(types=("Share",)) == [QUEUE]
    assert scene.share_group().state is GroupState.EMPTY


def test_after_a_failover_members_join_again_and_their_epochs_go_on() -> None:
    scene = ShareScene()
    ann, bob = scene.member("ann"), scene.member("bob")
    ann.reports(), bob.reports(), ann.reports()
    told = ann.epoch
    scene = scene.restarted()
    ann.scene = bob.scene = scene
    assert ann.reports().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert ann.reports().member_epoch > told
    assert ann.assignment == {"orders": 3}


def test_no_epoch_is_told_before_it_is_durable() -> None:
    scene = ShareScene()
    scene.disk = "slow"
    ann = scene.member("ann")
    assert ann.sends(0, ("orders",)) is None
    scene.flush()
    assert len(scene.replies) == 1
    assert scene.restarted().share_group().epoch == 1


def test_heartbeats_that_bring_nothing_new_write_nothing() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    written = len(scene.durable)
    for _ in range(10):
        ann.reports()
    assert len(scene.durable) == written


def test_members_that_join_while_the_disk_is_busy_share_a_write() -> None:
    scene = ShareScene()
    scene.disk = "slow"
    for number in range(100):
        assert scene.member(f"member-{number}").sends(0, ("orders",)) is None
    scene.flush()
    assert len(scene.replies) == 100
    assert len(scene.durable) == 2
    assert scene.restarted().share_group().epoch == 100


def test_while_the_disk_is_full_nobody_joins_and_afterwards_all_do() -> None:
    scene = ShareScene()
    scene.disk = "full"
    ann = scene.member("ann")
    result = ann.reports()
    assert (result.error, result.member_epoch) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
    scene.disk = "prompt"
    assert ann.reports().error is ErrorCode.NONE
    assert ann.assignment == {"orders": 3}


def test_a_member_that_missed_a_change_on_a_full_disk_hears_of_it_later() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    scene.puts("orders", 4)
    scene.disk = "full"
    assert ann.reports().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    scene.disk = "prompt"
    ann.reports()
    assert ann.assignment == {"orders": 4}


def test_a_group_that_was_never_stored_is_forgotten_with_its_last_member() -> None:
    scene = ShareScene()
    scene.disk = "full"
    ann = scene.member("ann")
    ann.reports()
    ann.leaves()
    assert scene.names() == []


def test_a_group_whose_only_member_leaves_during_the_write_is_there_or_not_as_the_disk_says() -> None:
    for disk, names in (("prompt", [QUEUE]), ("full", [])):
        scene = ShareScene()
        scene.disk = "slow"
        ann = scene.member("ann")
        assert ann.sends(0, ("orders",)) is None
        ann.leaves()
        scene.disk = disk
        scene.flush()
        assert scene.names() == names
        assert not scene.open_tokens


# Deletion


def test_only_an_empty_group_is_deleted() -> None:
    scene = ShareScene()
    assert scene.deletes() is ErrorCode.GROUP_ID_NOT_FOUND
    ann = scene.member("ann")
    ann.reports()
    assert scene.deletes() is ErrorCode.NON_EMPTY_GROUP
    ann.leaves()
    assert scene.deletes() is ErrorCode.NONE
    assert scene.names() == []
    assert scene.restarted().names() == []


def test_a_deletion_that_was_not_written_did_not_happen() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    ann.leaves()
    scene.disk = "full"
    assert scene.deletes() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.names() == scene.restarted().names() == [QUEUE]


def test_a_group_made_anew_while_the_old_one_is_deleted_stays() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    ann.leaves()
    scene.disk = "slow"
    assert scene.deletes() is None
    assert ann.sends(0, ("orders",)) is None
    scene.flush()
    assert scene.names() == scene.restarted().names() == [QUEUE]
    assert not scene.open_tokens


def test_a_member_that_left_and_whose_group_is_deleted_before_it_was_answered_is_answered() -> None:
    scene = ShareScene()
    scene.disk = "slow"
    ann, bob = scene.member("ann"), scene.member("bob")
    for member in (ann, bob):
        assert member.sends(0, ("orders",)) is None
    ann.leaves(), bob.leaves()
    assert scene.deletes() is None
    scene.flush()
    assert not scene.open_tokens
    assert scene.restarted().names() == []


# Names


def test_a_consumer_group_and_a_share_group_never_have_one_name() -> None:
    scene = ShareScene()
    scene.member("ann").reports()
    assert joins(scene, QUEUE) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert commits(scene, QUEUE) is ErrorCode.GROUP_ID_NOT_FOUND
    assert commits(scene, "readers") is ErrorCode.NONE
    late = scene.member("bob", group_id="readers")
    result = late.reports()
    assert (result.error, "consumer group" in (result.message or "")) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    assert (scene.names(types=("classic",)), scene.names(types=("SHARE",))) == (["readers"], [QUEUE])


def test_a_name_is_free_for_the_other_kind_once_its_group_is_deleted() -> None:
    scene = ShareScene()
    ann = scene.member("ann")
    ann.reports()
    ann.leaves()
    scene.deletes()
    assert commits(scene, QUEUE) is ErrorCode.NONE
    assert scene.restarted().names(types=("classic",)) == [QUEUE]


def test_groups_are_listed_by_state_and_kind() -> None:
    scene = ShareScene()
    ann, bob = scene.member("ann", group_id="busy"), scene.member("bob", group_id="idle")
    ann.reports(), bob.reports()
    bob.leaves()
    assert scene.names(states=("stable",), types=("share",)) == ["busy"]
    assert scene.names(states=("Empty",)) == ["idle"]
    assert scene.names(types=("consumer",)) == []
    assert {row.protocol_type for row in scene.coordinator.list_groups()} == {"share"}


def joins(scene: ShareScene, group_id: str) -> ErrorCode:
    token = scene.new_token()
    request = JoinRequest(
        group_id=group_id,
        member_id="",
        new_member_id="new",
        protocol_type="consumer",
        protocols=(Protocol("range", b""),),
        session_timeout_ms=10_000,
    )
    scene.happens(scene.coordinator.join(scene.now_ms, token, request))
    result = scene.replies[token]
    assert isinstance(result, JoinResult)
    return result.error


def commits(scene: ShareScene, group_id: str) -> ErrorCode:
    token = scene.new_token()
    request = CommitRequest(
        group_id=group_id, offsets=(OffsetToCommit(topic="orders", partition=0, offset=1),)
    )
    scene.happens(scene.coordinator.commit_offsets(scene.now_ms, token, request))
    result = scene.replies[token]
    assert isinstance(result, CommitResult)
    return result.errors[TopicPartition("orders", 0)]
