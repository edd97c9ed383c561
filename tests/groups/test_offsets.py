"""Committed offsets: who may commit, what is kept, and when it goes."""

import pytest

from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode
from penstock.groups import (
    DeleteGroupsResult,
    DeleteOffsetsResult,
    GroupState,
    OffsetToCommit,
)
from penstock.types import TopicPartition
from tests.groups.scene import DAY_MS, GROUP, SESSION_MS, Client, Scene, stable

ORDERS = TopicPartition("orders", 0)
INVOICES = TopicPartition("invoices", 0)
RETENTION_MS = 7 * DAY_MS
CHECK_MS = 600_000


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def alice(scene: Scene) -> Client:
    return scene.client("alice")


def keep_alive(scene: Scene, client: Client, duration_ms: int) -> None:
    client.session_ms = 1_000_000
    client.joins(session_timeout_ms=1_000_000)
    client.assigns(**{client.name: b""})
    for _ in range(duration_ms // 900_000 + 1):
        scene.passes(900_000)
        assert client.heartbeats() is ErrorCode.NONE


def test_an_offset_counts_when_it_is_durable(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    scene.disk = "slow"
    alice.commits(offset=7)
    assert not alice.is_answered
    assert scene.offsets() == {}
    scene.flush()
    assert alice.error is ErrorCode.NONE
    assert scene.offsets()[ORDERS].offset == 7


def test_an_offset_that_could_not_be_stored_does_not_count(scene: Scene, alice: Client) -> None:
    scene.disk = "full"
    assert alice.commits(offset=7).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert scene.state() == {}, "and leaves no group behind"


def test_commits_under_way_at_once_end_up_as_the_log_has_them(scene: Scene, alice: Client) -> None:
    scene.disk = "slow"
    for offset in (1, 2, 3):
        alice.commits(offset=offset)
    scene.flush(1)
    assert scene.offsets()[ORDERS].offset == 1
    scene.flush()
    assert scene.offsets()[ORDERS].offset == 3
    assert scene.restarted().offsets() == scene.offsets()


def test_news_of_writes_may_come_in_any_order(scene: Scene, alice: Client) -> None:
    scene.disk = "slow"
    alice.commits(offset=1)
    scene.deletes_topics("orders")
    scene.metadata.creates("orders")
    alice.commits(offset=2).commits(offset=3)
    first, deletion, second, third = (persist.id for persist in scene.in_flight)
    for persist_id in (third, deletion, second, first):
        assert not alice.is_answered
        scene.happens(scene.coordinator.persisted(scene.now_ms, persist_id, True))
    assert scene.offsets()[ORDERS].offset == 3


def test_epoch_metadata_and_time_are_kept_to_the_letter(scene: Scene, alice: Client) -> None:
    one = OffsetToCommit(topic="orders", partition=0, offset=9, leader_epoch=4, metadata='{"höhe": 1}\n')
    alice.commits(offsets=(one,))
    kept = scene.offsets()[ORDERS]
    assert (kept.offset, kept.leader_epoch, kept.metadata) == (9, 4, '{"höhe": 1}\n')
    assert kept.commit_timestamp_ms == scene.now_ms


def test_only_what_was_asked_for_is_fetched(scene: Scene, alice: Client) -> None:
    alice.commits("orders").commits("invoices")
    assert list(scene.coordinator.fetch_offsets(GROUP, [ORDERS, TopicPartition("x", 0)])) == [ORDERS]
    assert set(scene.coordinator.fetch_offsets(GROUP, require_stable=True)) == {ORDERS, INVOICES}
    assert scene.coordinator.fetch_offsets("unknown", [ORDERS]) == {}


def test_a_consumer_that_is_no_member_may_commit_while_there_are_none(scene: Scene, alice: Client) -> None:
    assert alice.commits().error is ErrorCode.NONE
    assert scene.group().state is GroupState.EMPTY
    assert scene.group().protocol_type == ""
    bob = scene.client("bob")
    stable(scene, bob)
    assert alice.commits().error is ErrorCode.UNKNOWN_MEMBER_ID
    bob.leaves()
    assert alice.commits().error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": "other"}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_id": "other", "generation": -1, "member_id": "x"}, ErrorCode.NONE),
        ({"group_id": "x" * 4097, "generation": -1}, ErrorCode.INVALID_GROUP_ID),
        ({"generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "", "generation": -1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_are_for_members_in_their_generation(
    scene: Scene, alice: Client, changes: dict[str, object], error: ErrorCode
) -> None:
    stable(scene, alice)
    assert alice.commits(**changes).error is error  # type: ignore[arg-type]


def test_a_member_may_commit_before_it_joins_again_but_not_between_join_and_sync(
    scene: Scene, alice: Client
) -> None:
    stable(scene, alice)
    scene.client("bob").joins()
    assert alice.commits().error is ErrorCode.NONE
    alice.joins()
    assert alice.commits().error is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_is_a_sign_of_life(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    for _ in range(3):
        scene.passes(SESSION_MS - 1)
        alice.commits()
    assert alice.heartbeats() is ErrorCode.NONE


def test_metadata_over_the_limit_is_refused_and_the_rest_is_kept(scene: Scene, alice: Client) -> None:
    long = OffsetToCommit(topic="orders", partition=0, offset=1, metadata="ä" * 2049)
    fits = OffsetToCommit(topic="orders", partition=1, offset=1, metadata="x" * 4096)
    odd = OffsetToCommit(topic="x" * 5000, partition=1, offset=1)
    token = scene.new_token()
    alice.token = token
    alice.commits(offsets=(long, fits, odd))
    errors = scene.replies[alice.token].errors  # type: ignore[union-attr]
    assert list(errors.values()) == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert set(scene.offsets()) == {TopicPartition("orders", 1)}


def test_a_group_s_offsets_are_limited_in_number(alice: Client) -> None:
    scene = Scene(limits=Limits(max_group_offsets=2))
    alice = scene.client("alice")
    assert [alice.commits(partition=number).error for number in (0, 1, 2, 1)] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        ErrorCode.NONE,
    ]


def test_very_many_offsets_are_written_in_pieces_and_answered_once(scene: Scene, alice: Client) -> None:
    many = tuple(OffsetToCommit(topic="orders", partition=number, offset=1) for number in range(2500))
    scene.disk = "slow"
    alice.commits(offsets=many)
    assert [len(persist.records) for persist in scene.in_flight] == [1000, 1000, 500]
    scene.flush(2)
    assert not alice.is_answered
    scene.flush()
    assert len(scene.offsets()) == 2500


# Deletion


def test_offsets_that_nobody_reads_can_be_deleted(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    alice.commits("orders").commits("invoices")
    answer = scene.deletes_offsets(ORDERS, INVOICES, TopicPartition("never", 0))
    assert answer == DeleteOffsetsResult(
        errors={
            ORDERS: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            INVOICES: ErrorCode.NONE,
            TopicPartition("never", 0): ErrorCode.NONE,
        }
    )
    assert set(scene.offsets()) == {ORDERS} == set(scene.restarted().offsets())
    alice.leaves()
    scene.deletes_offsets(ORDERS)
    assert scene.offsets() == {}


def test_a_deletion_takes_only_what_was_written_before_it(scene: Scene, alice: Client) -> None:
    alice.commits(offset=1)
    scene.disk = "slow"
    assert scene.deletes_offsets(ORDERS) is None
    alice.commits(offset=2)
    scene.flush()
    assert scene.offsets()[ORDERS].offset == 2
    assert scene.restarted().offsets() == scene.offsets()


def test_a_deletion_that_could_not_be_stored_did_not_happen(scene: Scene, alice: Client) -> None:
    alice.commits(offset=1)
    scene.disk = "full"
    assert scene.deletes_offsets(ORDERS) == DeleteOffsetsResult(
        errors={ORDERS: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    )
    answer = scene.deletes_groups(GROUP)
    assert answer == DeleteGroupsResult(errors={GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE})
    assert scene.offsets()[ORDERS].offset == 1
    assert scene.group().state is GroupState.EMPTY


def test_offsets_of_unknown_groups_and_of_other_protocols_cannot_be_deleted(
    scene: Scene, alice: Client
) -> None:
    assert scene.deletes_offsets(ORDERS) == DeleteOffsetsResult(error=ErrorCode.GROUP_ID_NOT_FOUND)
    alice.joins(protocol_type="connect")
    assert scene.deletes_offsets(ORDERS) == DeleteOffsetsResult(error=ErrorCode.NON_EMPTY_GROUP)


def test_only_empty_groups_can_be_deleted(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    alice.commits()
    assert scene.deletes_groups(GROUP, "unknown") == DeleteGroupsResult(
        errors={GROUP: ErrorCode.NON_EMPTY_GROUP, "unknown": ErrorCode.GROUP_ID_NOT_FOUND}
    )
    alice.leaves()
    assert scene.deletes_groups(GROUP) == DeleteGroupsResult(errors={GROUP: ErrorCode.NONE})
    assert scene.state() == scene.restarted().state() == {}
    assert alice.asks_to_join().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_is_born_while_its_namesake_is_deleted_is_another(scene: Scene, alice: Client) -> None:
    alice.commits(partition=0, offset=1).commits(partition=1, offset=1)
    scene.disk = "slow"
    alice.commits(partition=3, offset=2)
    assert scene.deletes_groups(GROUP) is None
    alice.commits(partition=2, offset=3)
    scene.flush()
    assert set(scene.offsets()) == {TopicPartition("orders", 2)}
    assert scene.restarted().state() == scene.state()


def test_a_group_whose_deletion_failed_gets_its_offsets_back_beside_the_newer_ones(
    scene: Scene, alice: Client
) -> None:
    alice.commits(partition=0, offset=1).commits(partition=1, offset=1)
    scene.disk = "slow"
    scene.deletes_groups(GROUP)
    alice.commits(partition=1, offset=5)
    deletion, commit = scene.in_flight
    scene.in_flight = []
    scene.happens(scene.coordinator.persisted(scene.now_ms, commit.id, True))
    scene.happens(scene.coordinator.persisted(scene.now_ms, deletion.id, False))
    assert [scene.offsets()[TopicPartition("orders", number)].offset for number in (0, 1)] == [1, 5]


def test_a_deleted_topic_takes_its_offsets_with_it(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    alice.commits("orders").commits("invoices")
    scene.disk = "slow"
    alice.commits("orders", partition=1)
    scene.deletes_topics("orders")
    scene.flush()
    assert set(scene.offsets()) == {INVOICES}
    assert scene.restarted().offsets() == scene.offsets()


# Expiry


def test_offsets_expire_when_the_group_has_been_empty_for_long_enough(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    alice.commits()
    keep_alive(scene, alice, 2 * RETENTION_MS)
    assert set(scene.offsets()) == {ORDERS}, "a group that reads a topic keeps its offsets, however old"
    alice.leaves()
    scene.passes(RETENTION_MS - 1)
    assert set(scene.offsets()) == {ORDERS}
    scene.passes(CHECK_MS)
    assert scene.state() == scene.restarted().state() == {}, "and the group goes with its last offset"


def test_offsets_of_topics_that_the_group_no_longer_reads_expire_by_their_own_age(
    scene: Scene, alice: Client
) -> None:
    stable(scene, alice)
    alice.commits("orders").commits("invoices")
    keep_alive(scene, alice, RETENTION_MS)
    scene.passes(CHECK_MS)
    assert set(scene.offsets()) == {ORDERS}


def test_nothing_expires_from_members_that_cannot_be_understood(scene: Scene, alice: Client) -> None:
    alice.joins(protocol_type="connect", session_timeout_ms=1_800_000)
    alice.assigns(alice=b"")
    alice.commits("invoices")
    for _ in range(RETENTION_MS // 1_700_000 + 2):
        scene.passes(1_700_000)
        alice.heartbeats()
    assert set(scene.offsets()) == {INVOICES}


def test_offsets_of_consumers_that_are_no_members_expire_by_age(scene: Scene, alice: Client) -> None:
    alice.commits(partition=0)
    scene.passes(DAY_MS)
    alice.commits(partition=1)
    scene.passes(RETENTION_MS - DAY_MS + CHECK_MS)
    assert set(scene.offsets()) == {TopicPartition("orders", 1)}
    scene.passes(DAY_MS)
    assert scene.state() == {}


def test_an_offset_with_an_expiry_of_its_own_goes_then(scene: Scene, alice: Client) -> None:
    alice.commits(partition=0, retention_ms=1000).commits(partition=1)
    assert scene.restarted().offsets() == scene.offsets()
    scene.passes(CHECK_MS)
    assert set(scene.offsets()) == {TopicPartition("orders", 1)}


def test_an_expiry_that_could_not_be_stored_is_tried_again(scene: Scene, alice: Client) -> None:
    alice.commits()
    scene.disk = "full"
    scene.passes(RETENTION_MS + CHECK_MS)
    assert set(scene.offsets()) == {ORDERS}
    scene.disk = "prompt"
    scene.passes(CHECK_MS)
    assert scene.state() == {}


def test_an_offset_that_is_committed_anew_while_its_expiry_is_written_stays(
    scene: Scene, alice: Client
) -> None:
    alice.commits(offset=1)
    scene.disk = "slow"
    scene.passes(RETENTION_MS + CHECK_MS)
    assert len(scene.in_flight) > 0
    alice.commits(offset=2)
    scene.flush()
    assert scene.offsets()[ORDERS].offset == 2
    assert scene.restarted().offsets() == scene.offsets()


def test_the_retention_is_configurable() -> None:
    settings = GroupSettings(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1000)
    scene = Scene(settings)
    scene.client("alice").commits()
    scene.passes(59_000)
    assert set(scene.offsets()) == {ORDERS}
    scene.passes(2000)
    assert scene.state() == {}
    assert scene.coordinator.next_deadline_ms is None
