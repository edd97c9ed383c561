"""Share groups and the disk: stored state, responses, and their order."""

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
from tests.groups.share_group_harness import QUEUE, ShareGroupHarness

# The bytes


def test_the_layout_is_kafkas() -> None:
    assert encode_share_group_key("ab") == b"\x00\x0b\x00\x02ab"
    assert encode_share_group(7) == b"\x00\x00" + b"\x00\x00\x00\x07" + bytes(8) + b"\x00"


@pytest.mark.parametrize("name", ["a", "grün", "g" * 4_096])
def test_a_name_is_decoded_from_its_key(name: str) -> None:
    assert decode_share_group_key(encode_share_group_key(name)) == name


def test_keys_of_other_records_are_ignored() -> None:
    assert decode_share_group_key(encode_group_key("a")) is None
    assert decode_share_group_key(encode_offset_key("a", TopicPartition("t", 1))) is None
    assert decode_share_group_key(b"") is None


@pytest.mark.parametrize(
    "key", [b"\x00\x0b", b"\x00\x0b\x00\x02a", b"\x00\x0b\x00\x01ab", b"\x00\x0b\x00\x01\xff"]
)
def test_an_unknown_key_is_never_skipped(key: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_share_group_key(key)


@pytest.mark.parametrize(
    "value", [b"", encode_share_group(1)[:-1], b"\x00\x01" + bytes(13), bytes(14) + b"\x01"]
)
def test_an_unknown_value_is_never_skipped(value: bytes) -> None:
    with pytest.raises(UnknownFormat):
        decode_share_group(value)


# Durability


def test_a_group_survives_its_members_and_restarts() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    ann.leaves()
    harness = harness.restarted()
    assert harness.names(types=("Share",)) == [QUEUE]
    assert harness.share_group().state is GroupState.EMPTY


def test_after_a_failover_members_join_again_and_their_epochs_continue() -> None:
    harness = ShareGroupHarness()
    ann, bob = harness.member("ann"), harness.member("bob")
    ann.reports(), bob.reports(), ann.reports()
    told = ann.epoch
    harness = harness.restarted()
    ann.harness = bob.harness = harness
    assert ann.reports().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert ann.reports().member_epoch > told
    assert ann.assignment == {"orders": 3}


def test_no_epoch_is_sent_before_it_is_durable() -> None:
    harness = ShareGroupHarness()
    harness.disk = "slow"
    ann = harness.member("ann")
    assert ann.sends(0, ("orders",)) is None
    harness.flush()
    assert len(harness.replies) == 1
    assert harness.restarted().share_group().epoch == 1


def test_unchanged_heartbeats_write_nothing() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    written = len(harness.durable)
    for _ in range(10):
        ann.reports()
    assert len(harness.durable) == written


def test_members_that_join_while_the_disk_is_busy_share_a_write() -> None:
    harness = ShareGroupHarness()
    harness.disk = "slow"
    for number in range(100):
        assert harness.member(f"member-{number}").sends(0, ("orders",)) is None
    harness.flush()
    assert len(harness.replies) == 100
    assert len(harness.durable) == 2
    assert harness.restarted().share_group().epoch == 100


def test_members_can_join_only_after_a_full_disk_has_space_again() -> None:
    harness = ShareGroupHarness()
    harness.disk = "full"
    ann = harness.member("ann")
    result = ann.reports()
    assert (result.error, result.member_epoch) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
    harness.disk = "prompt"
    assert ann.reports().error is ErrorCode.NONE
    assert ann.assignment == {"orders": 3}


def test_a_member_that_missed_a_change_on_a_full_disk_gets_it_later() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    harness.puts("orders", 4)
    harness.disk = "full"
    assert ann.reports().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.disk = "prompt"
    ann.reports()
    assert ann.assignment == {"orders": 4}


def test_a_group_that_was_never_stored_is_removed_with_its_last_member() -> None:
    harness = ShareGroupHarness()
    harness.disk = "full"
    ann = harness.member("ann")
    ann.reports()
    ann.leaves()
    assert harness.names() == []


def test_a_group_whose_only_member_leaves_during_the_write_exists_if_the_write_succeeds() -> None:
    for disk, names in (("prompt", [QUEUE]), ("full", [])):
        harness = ShareGroupHarness()
        harness.disk = "slow"
        ann = harness.member("ann")
        assert ann.sends(0, ("orders",)) is None
        ann.leaves()
        harness.disk = disk
        harness.flush()
        assert harness.names() == names
        assert not harness.open_tokens


# Deletion


def test_only_an_empty_group_is_deleted() -> None:
    harness = ShareGroupHarness()
    assert harness.deletes() is ErrorCode.GROUP_ID_NOT_FOUND
    ann = harness.member("ann")
    ann.reports()
    assert harness.deletes() is ErrorCode.NON_EMPTY_GROUP
    ann.leaves()
    assert harness.deletes() is ErrorCode.NONE
    assert harness.names() == []
    assert harness.restarted().names() == []


def test_a_deletion_whose_write_failed_did_not_happen() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    ann.leaves()
    harness.disk = "full"
    assert harness.deletes() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.names() == harness.restarted().names() == [QUEUE]


def test_a_group_recreated_during_its_deletion_stays() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    ann.leaves()
    harness.disk = "slow"
    assert harness.deletes() is None
    assert ann.sends(0, ("orders",)) is None
    harness.flush()
    assert harness.names() == harness.restarted().names() == [QUEUE]
    assert not harness.open_tokens


def test_a_member_that_left_and_whose_group_is_deleted_before_it_was_answered_is_answered() -> None:
    harness = ShareGroupHarness()
    harness.disk = "slow"
    ann, bob = harness.member("ann"), harness.member("bob")
    for member in (ann, bob):
        assert member.sends(0, ("orders",)) is None
    ann.leaves(), bob.leaves()
    assert harness.deletes() is None
    harness.flush()
    assert not harness.open_tokens
    assert harness.restarted().names() == []


# Names


def test_a_consumer_group_and_a_share_group_never_share_a_name() -> None:
    harness = ShareGroupHarness()
    harness.member("ann").reports()
    assert joins(harness, QUEUE) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert commits(harness, QUEUE) is ErrorCode.GROUP_ID_NOT_FOUND
    assert commits(harness, "readers") is ErrorCode.NONE
    late = harness.member("bob", group_id="readers")
    result = late.reports()
    assert (result.error, "consumer group" in (result.message or "")) == (ErrorCode.GROUP_ID_NOT_FOUND, True)
    assert (harness.names(types=("classic",)), harness.names(types=("SHARE",))) == (["readers"], [QUEUE])


def test_a_name_is_free_for_the_other_kind_once_its_group_is_deleted() -> None:
    harness = ShareGroupHarness()
    ann = harness.member("ann")
    ann.reports()
    ann.leaves()
    harness.deletes()
    assert commits(harness, QUEUE) is ErrorCode.NONE
    assert harness.restarted().names(types=("classic",)) == [QUEUE]


def test_groups_are_listed_by_state_and_kind() -> None:
    harness = ShareGroupHarness()
    ann, bob = harness.member("ann", group_id="busy"), harness.member("bob", group_id="idle")
    ann.reports(), bob.reports()
    bob.leaves()
    assert harness.names(states=("stable",), types=("share",)) == ["busy"]
    assert harness.names(states=("Empty",)) == ["idle"]
    assert harness.names(types=("consumer",)) == []
    assert {row.protocol_type for row in harness.coordinator.list_groups()} == {"share"}


def joins(harness: ShareGroupHarness, group_id: str) -> ErrorCode:
    token = harness.new_token()
    request = JoinRequest(
        group_id=group_id,
        member_id="",
        new_member_id="new",
        protocol_type="consumer",
        protocols=(Protocol("range", b""),),
        session_timeout_ms=10_000,
    )
    harness.happens(harness.coordinator.join(harness.now_ms, token, request))
    result = harness.replies[token]
    assert isinstance(result, JoinResult)
    return result.error


def commits(harness: ShareGroupHarness, group_id: str) -> ErrorCode:
    token = harness.new_token()
    request = CommitRequest(
        group_id=group_id, offsets=(OffsetToCommit(topic="orders", partition=0, offset=1),)
    )
    harness.happens(harness.coordinator.commit_offsets(harness.now_ms, token, request))
    result = harness.replies[token]
    assert isinstance(result, CommitResult)
    return result.errors[TopicPartition("orders", 0)]
