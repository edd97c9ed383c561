"""Static members: a restart without a rebalance, and one holder of an instance id."""

import pytest

from penstock.errors import ErrorCode
from penstock.groups import GroupState, LeavingMember, Protocol
from tests.groups.group_harness import SESSION_MS, Client, GroupHarness, stable, subscription


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()


@pytest.fixture
def alice(harness: GroupHarness) -> Client:
    return harness.client("alice", instance_id="pod-0")


@pytest.fixture
def bob(harness: GroupHarness) -> Client:
    return harness.client("bob", instance_id="pod-1")


def restarted(client: Client) -> Client:
    """The same instance, a new process."""
    return client.harness.client(client.name, instance_id=client.instance_id, version=client.version)


def test_a_static_member_needs_no_id_beforehand(alice: Client) -> None:
    assert alice.asks_to_join().error is ErrorCode.NONE


def test_a_restart_in_a_stable_group_causes_no_rebalance(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    generation = harness.group().generation
    again = restarted(bob).joins()
    assert again.joined.generation == generation
    assert again.member_id != bob.member_id
    assert again.joined.leader == alice.member_id
    assert alice.heartbeats() is ErrorCode.NONE
    assert again.syncs().assignment == b"bob", "it has its old share"
    assert harness.group().state is GroupState.STABLE


def test_the_old_process_is_fenced(harness: GroupHarness, alice: Client, bob: Client) -> None:
    stable(harness, alice, bob)
    restarted(bob).joins()
    assert bob.heartbeats() is ErrorCode.FENCED_INSTANCE_ID
    assert bob.asks_to_join().error is ErrorCode.FENCED_INSTANCE_ID
    assert bob.syncs().error is ErrorCode.FENCED_INSTANCE_ID
    assert bob.commits().error is ErrorCode.FENCED_INSTANCE_ID
    assert bob.leaves() is ErrorCode.FENCED_INSTANCE_ID


def test_a_waiting_process_is_fenced_too(harness: GroupHarness, alice: Client, bob: Client) -> None:
    stable(harness, alice)
    bob.asks_to_join()
    assert not bob.is_answered
    again = restarted(bob).asks_to_join()
    assert bob.error is ErrorCode.FENCED_INSTANCE_ID
    alice.joins()
    assert again.joined.generation == 2


def test_the_new_id_is_durable_before_it_is_sent(harness: GroupHarness, alice: Client, bob: Client) -> None:
    stable(harness, alice, bob)
    harness.disk = "slow"
    again = restarted(bob).joins()
    assert not again.is_answered
    harness.flush()
    after_crash = harness.restarted()
    assert {member.member_id for member in after_crash.group().members} == {alice.member_id, again.member_id}


def test_a_new_id_that_cannot_be_stored_is_not_sent(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    harness.disk = "full"
    again = restarted(bob).joins()
    assert again.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.disk = "prompt"
    assert again.joins().error is ErrorCode.NONE
    assert again.syncs().assignment == b"bob"


def test_a_restarted_leader_is_told_to_skip_the_assignment(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    again = restarted(alice).joins()
    assert again.is_leader
    assert again.joined.skip_assignment
    assert len(again.joined.members) == 2
    assert again.syncs().assignment == b"alice"


def test_a_restarted_leader_of_an_older_version_acts_as_a_follower(
    harness: GroupHarness, bob: Client
) -> None:
    alice = harness.client("alice", instance_id="pod-0", version=8)
    stable(harness, alice, bob)
    again = restarted(alice).joins()
    assert again.joined.leader == alice.member_id, "the id that it had before"
    assert again.joined.members == ()
    assert harness.group().leader == again.member_id
    assert again.joins().is_answered is False, "when it really joins again, it does lead a rebalance"


def test_a_restart_with_another_subscription_is_a_rebalance(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    again = restarted(bob).joins(protocols=(Protocol("range", subscription("orders", "invoices")),))
    assert not again.is_answered
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS


def test_user_data_of_assignors_does_not_count_as_another_subscription(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    again = restarted(bob).joins(protocols=(Protocol("range", subscription("orders", extra=b"owned: none")),))
    assert again.joined.generation == harness.group().generation


def test_a_restart_while_the_leader_assigns_is_a_rebalance(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    again = restarted(bob).joins()
    assert not again.is_answered
    assert alice.joins().joined.generation == again.joined.generation == 3


def test_an_absent_static_member_stays_until_its_session_ends(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    carol = harness.client("carol", session_ms=6000, rebalance_ms=6000)
    short = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 6000}
    alice.joins(**short)
    bob.joins(**short)
    alice.joins(**short)
    alice.assigns(alice=b"0", bob=b"1")
    bob.syncs()
    carol.joins()
    alice.joins(**short)
    harness.passes(6000)  # bob does not join again in time
    assert alice.joined.generation == 3
    assert len(alice.joined.members) == 3, "but he is still counted"
    assert carol.joined.generation == 3


def test_when_only_absent_static_members_are_left_the_group_waits_for_their_sessions(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    carol = harness.client("carol", rebalance_ms=6000)
    stable(harness, carol)
    alice.asks_to_join(rebalance_timeout_ms=0, session_timeout_ms=20_000)
    carol.joins()
    assert alice.is_answered
    carol.leaves()
    harness.passes(19_999)
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    harness.passes(1)
    assert harness.group().state is GroupState.EMPTY


def test_an_operator_can_remove_an_instance_by_its_name(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    answer = harness.removes_members(LeavingMember(instance_id="pod-1"), LeavingMember(instance_id="pod-9"))
    assert [left.error for left in answer.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [member.instance_id for member in harness.group().members] == ["pod-0"]
    assert bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_dead_static_member_is_removed_after_its_session(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    harness.passes(SESSION_MS - 1)
    alice.heartbeats()
    harness.passes(1)
    assert bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    alice.joins()
    assert [member.instance_id for member in harness.group().members] == ["pod-0"]
