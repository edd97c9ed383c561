"""Joining: transcripts of the classic group protocol."""

import pytest

from penstock.config import GroupSettings, Limits
from penstock.errors import ErrorCode
from penstock.groups import GroupState, Protocol
from tests.groups.group_harness import REBALANCE_MS, SESSION_MS, GroupHarness, rejoin, stable, subscription


def test_a_new_member_gets_its_id_first_and_then_leads_a_group_of_one() -> None:
    harness = GroupHarness()
    alice = harness.client("alice").asks_to_join()
    assert alice.error is ErrorCode.MEMBER_ID_REQUIRED
    assert harness.group().state is GroupState.EMPTY

    alice.asks_to_join()
    assert alice.joined.member_id == alice.joined.leader == alice.member_id
    assert alice.joined.generation == 1
    assert (alice.joined.protocol_type, alice.joined.protocol_name) == ("consumer", "range")
    assert [member.metadata for member in alice.joined.members] == [subscription("orders")]
    assert harness.group().state is GroupState.COMPLETING_REBALANCE

    alice.assigns(alice=b"everything")
    assert alice.assignment == b"everything"
    assert harness.group().state is GroupState.STABLE
    assert alice.heartbeats() is ErrorCode.NONE


def test_clients_before_version_4_join_at_once() -> None:
    alice = GroupHarness().client("alice", version=3).asks_to_join()
    assert alice.error is ErrorCode.NONE
    assert alice.is_leader


def test_a_second_member_makes_the_first_join_again() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice)

    bob.joins()
    assert not bob.is_answered, "he waits for the others"
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS

    alice.joins()
    assert alice.joined.generation == bob.joined.generation == 2
    assert alice.is_leader
    assert not bob.is_leader
    assert {member.member_id for member in alice.joined.members} == {alice.member_id, bob.member_id}
    assert bob.joined.members == (), "only the leader sees the others"

    bob.syncs()
    assert not bob.is_answered, "he waits for the leader's assignment"
    alice.assigns(alice=b"0", bob=b"1")
    assert (alice.assignment, bob.assignment) == (b"0", b"1")


def test_a_member_without_a_share_gets_an_empty_one() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice)
    bob.joins()
    alice.joins().assigns(alice=b"all")
    assert bob.syncs().assignment == b""


def test_the_first_rebalance_waits_for_members_that_start_together() -> None:
    harness = GroupHarness(GroupSettings(initial_rebalance_delay_ms=3000))
    alice, bob, carol = (harness.client(name) for name in ("alice", "bob", "carol"))
    alice.joins()
    harness.passes(2000)
    bob.joins()
    harness.passes(1000)
    assert not alice.is_answered, "bob came meanwhile, so another delay begins"
    harness.passes(2999)
    assert not alice.is_answered
    carol.joins()
    harness.passes(1)
    assert not alice.is_answered, "carol came meanwhile"
    harness.passes(3000)
    assert alice.joined.generation == bob.joined.generation == carol.joined.generation == 1


def test_the_first_rebalance_does_not_wait_longer_than_the_rebalance_timeout() -> None:
    harness = GroupHarness(GroupSettings(initial_rebalance_delay_ms=3000))
    members = [harness.client(f"member{number}", rebalance_ms=7000) for number in range(9)]
    for member in members:
        member.joins()
        harness.passes(1000)
    assert all(member.is_answered for member in members[:7])
    assert members[0].joined.generation == 1


def test_a_rebalance_ends_without_members_that_do_not_join() -> None:
    harness = GroupHarness()
    alice, bob, carol = (harness.client(name) for name in ("alice", "bob", "carol"))
    stable(harness, alice, bob)
    carol.joins()
    assert bob.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(REBALANCE_MS // SESSION_MS):
        harness.passes(SESSION_MS - 1)
        bob.heartbeats()  # bob lives, but never joins again; alice is dead
    harness.passes(SESSION_MS)
    assert carol.is_leader
    assert [member.member_id for member in carol.joined.members] == [carol.member_id]
    assert bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_assigned_ids_but_not_for_ever() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice)
    bob.asks_to_join()
    alice.joins(protocols=(Protocol("range", subscription("orders", "more")),))
    assert not alice.is_answered, "bob may join any moment"
    harness.passes(SESSION_MS)
    assert alice.joined.generation == 2
    assert bob.asks_to_join().error is ErrorCode.UNKNOWN_MEMBER_ID, "his id has lapsed"


def test_an_unused_id_leaves_no_group_behind() -> None:
    harness = GroupHarness()
    harness.client("alice").asks_to_join()
    harness.passes(SESSION_MS)
    assert harness.state() == {}
    assert harness.durable == []


def test_a_follower_that_joins_again_unchanged_gets_its_generation() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice, bob)
    generation = alice.generation
    assert bob.asks_to_join().joined.generation == generation
    assert harness.group().state is GroupState.STABLE
    assert bob.syncs().assignment == b"bob"


def test_a_follower_that_changes_its_subscription_starts_a_rebalance() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice, bob)
    bob.joins(protocols=(Protocol("range", subscription("invoices")),))
    assert not bob.is_answered
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_joins_again_always_starts_a_rebalance() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice, bob)
    alice.joins()
    assert not alice.is_answered
    bob.joins()
    assert alice.joined.generation == bob.joined.generation == bob.generation


def test_a_join_whose_response_was_lost_can_be_repeated_while_the_leader_assigns() -> None:
    harness = GroupHarness()
    alice = harness.client("alice").joins()
    first = alice.joined
    assert alice.asks_to_join().joined == first


def test_a_second_join_of_a_waiting_member_replaces_the_first() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice)
    bob.joins()
    forgotten = bob.token
    bob.asks_to_join()
    assert harness.replies[forgotten].error is ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[union-attr]
    alice.joins()
    assert bob.joined.generation == 2


def test_the_chosen_protocol_is_supported_by_all_and_preferred_by_most() -> None:
    harness = GroupHarness(GroupSettings(initial_rebalance_delay_ms=1000))
    alice = harness.client("alice", protocols=("sticky", "range", "roundrobin")).joins()
    bob = harness.client("bob", protocols=("roundrobin", "range")).joins()
    carol = harness.client("carol", protocols=("roundrobin", "range", "sticky")).joins()
    harness.passes(2000)
    assert {client.joined.protocol_name for client in (alice, bob, carol)} == {"roundrobin"}


def test_with_equal_votes_the_leader_s_preference_counts() -> None:
    harness = GroupHarness(GroupSettings(initial_rebalance_delay_ms=1000))
    alice = harness.client("alice", protocols=("range", "roundrobin")).joins()
    harness.client("bob", protocols=("roundrobin", "range")).joins()
    harness.passes(2000)
    assert alice.joined.protocol_name == "range"


def test_a_member_that_shares_no_protocol_with_the_others_is_refused() -> None:
    harness = GroupHarness()
    stable(harness, harness.client("alice", protocols=("range",)))
    bob = harness.client("bob", protocols=("roundrobin",))
    assert bob.joins().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert bob.joins(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.group().state is GroupState.STABLE, "the others are not disturbed"


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": ""}])
def test_the_first_member_needs_a_protocol(changes: dict[str, object]) -> None:
    harness = GroupHarness()
    assert harness.client("alice").joins(**changes).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.state() == {}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "x" * 4097}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "x" * 4097}, ErrorCode.INVALID_REQUEST),
        ({"protocols": (Protocol("range", b"x" * 2**20),)}, ErrorCode.INVALID_REQUEST),
        ({"protocols": (Protocol("range", b""),) * 101}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_invalid_join_is_refused_and_leaves_no_group_behind(
    changes: dict[str, object], error: ErrorCode
) -> None:
    harness = GroupHarness()
    assert harness.client("alice").asks_to_join(**changes).error is error
    assert harness.state() == {}


def test_a_full_group_accepts_no_other_member() -> None:
    harness = GroupHarness(limits=Limits(max_group_members=2))
    alice, bob, carol = (harness.client(name) for name in ("alice", "bob", "carol"))
    stable(harness, alice, bob)
    assert carol.joins().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert carol.joined.member_id == ""
    assert harness.group().state is GroupState.STABLE
    alice.joins()
    bob.joins()
    assert alice.joined.generation == 3, "those who are in stay in"


def test_assigned_ids_are_limited_like_members() -> None:
    harness = GroupHarness(limits=Limits(max_group_members=2))
    for name in ("alice", "bob"):
        assert harness.client(name).asks_to_join().error is ErrorCode.MEMBER_ID_REQUIRED
    assert harness.client("carol").asks_to_join().error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_the_number_of_groups_is_limited() -> None:
    harness = GroupHarness(limits=Limits(max_groups=1))
    stable(harness, harness.client("alice", group_id="one"))
    bob = harness.client("bob", group_id="two")
    assert bob.joins().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert bob.commits().error is ErrorCode.POLICY_VIOLATION


def test_the_metadata_of_all_members_is_limited() -> None:
    harness = GroupHarness(limits=Limits(max_group_metadata_bytes=100))
    alice, bob = harness.client("alice"), harness.client("bob")
    stable(harness, alice)
    assert bob.joins(protocols=(Protocol("range", b"x" * 90),)).error is ErrorCode.INVALID_REQUEST
    bob.joins()
    alice.joins()
    rejoin(alice, bob)
    assert bob.joins(protocols=(Protocol("range", b"x" * 90),)).error is ErrorCode.INVALID_REQUEST
    assert harness.group().state is GroupState.STABLE


def test_a_new_member_that_waits_too_long_is_removed() -> None:
    harness = GroupHarness()
    alice, bob = harness.client("alice", rebalance_ms=1_000_000), harness.client("bob")
    stable(harness, alice)
    bob.joins()
    for _ in range(31):
        alice.heartbeats()
        harness.passes(SESSION_MS - 1)
    assert bob.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert [member.member_id for member in harness.group().members] == [alice.member_id]
