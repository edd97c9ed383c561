"""Between joining and leaving: assignments, heartbeats, departures, and members that fail."""

import pytest

from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.groups import GroupState, LeavingMember
from tests.groups.group_harness import REBALANCE_MS, SESSION_MS, Client, GroupHarness, rejoin, stable


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness()


@pytest.fixture
def alice(harness: GroupHarness) -> Client:
    return harness.client("alice")


@pytest.fixture
def bob(harness: GroupHarness) -> Client:
    return harness.client("bob")


def test_an_assignment_is_not_sent_before_it_is_durable(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    harness.disk = "slow"
    alice.assigns(alice=b"0", bob=b"1")
    bob.syncs()
    assert not alice.is_answered
    assert not bob.is_answered
    harness.flush()
    assert (alice.assignment, bob.assignment) == (b"0", b"1")


def test_an_assignment_that_cannot_be_stored_starts_a_rebalance(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    harness.disk = "full"
    alice.assigns(alice=b"0", bob=b"1")
    assert alice.error is bob.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    harness.disk = "prompt"
    alice.joins()
    bob.joins()
    rejoin(alice, bob)
    assert bob.assignment == b"bob"


def test_an_assignment_that_becomes_durable_after_a_rebalance_began_is_dropped(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    harness.disk = "slow"
    alice.assigns(alice=b"old")
    bob.joins()
    assert alice.error is ErrorCode.REBALANCE_IN_PROGRESS
    alice.joins()
    harness.flush()
    assert harness.group().state is GroupState.COMPLETING_REBALANCE
    alice.assigns(alice=b"new", bob=b"new")
    bob.syncs()
    harness.flush()
    assert alice.assignment == bob.assignment == b"new"


def test_a_leader_that_repeats_its_assignment_is_answered_once(harness: GroupHarness, alice: Client) -> None:
    alice.joins()
    harness.disk = "slow"
    alice.assigns(alice=b"first")
    lost = alice.token
    alice.assigns(alice=b"second")
    assert harness.replies[lost].error is ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[union-attr]
    harness.flush()
    assert alice.assignment == b"first", "what was written is what counts"
    assert len(harness.durable) == 1


def test_when_the_leader_fails_before_it_assigns_another_takes_over(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    assert not bob.is_answered
    harness.passes(SESSION_MS)  # alice is silent; bob waits, which counts as a heartbeat
    assert bob.error is ErrorCode.REBALANCE_IN_PROGRESS
    bob.joins()
    assert bob.is_leader
    assert bob.joined.generation == 3
    assert bob.assigns(bob=b"all").assignment == b"all"


def test_a_leader_that_only_heartbeats_does_not_hold_up_the_group_for_ever(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    for _ in range(REBALANCE_MS // (SESSION_MS - 1) + 1):
        harness.passes(SESSION_MS - 1)
        alice.heartbeats()
    assert bob.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert alice.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_never_syncs_is_removed_after_the_timeout(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins().assigns(alice=b"0", bob=b"1")
    for _ in range(REBALANCE_MS // (SESSION_MS - 1) + 1):
        harness.passes(SESSION_MS - 1)
        alice.heartbeats()
        bob.heartbeats()
    assert bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_can_ask_for_its_assignment_again(harness: GroupHarness, alice: Client, bob: Client) -> None:
    stable(harness, alice, bob)
    assert bob.syncs().assignment == b"bob"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_an_invalid_sync_is_refused(
    harness: GroupHarness, alice: Client, changes: dict[str, object], error: ErrorCode
) -> None:
    stable(harness, alice)
    assert alice.syncs(**changes).error is error  # type: ignore[arg-type]
    assert alice.syncs(protocol_type="consumer", protocol_name="range").error is ErrorCode.NONE


def test_a_sync_during_a_rebalance_is_told_to_join(harness: GroupHarness, alice: Client, bob: Client) -> None:
    stable(harness, alice)
    bob.joins()
    assert alice.syncs().error is ErrorCode.REBALANCE_IN_PROGRESS


def test_assignments_are_limited(alice: Client) -> None:
    harness = GroupHarness(limits=Limits(max_group_assignment_bytes=10))
    alice = harness.client("alice").joins()
    assert alice.assigns(alice=b"x" * 11).error is ErrorCode.INVALID_REQUEST
    assert alice.assigns(alice=b"x" * 10).error is ErrorCode.NONE


def test_a_member_without_heartbeats_is_removed_after_its_session(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    for _ in range(3):
        harness.passes(SESSION_MS - 1)
        assert alice.heartbeats() is ErrorCode.NONE
        assert bob.heartbeats() is ErrorCode.NONE
    harness.passes(SESSION_MS - 1)
    alice.heartbeats()
    harness.passes(1)
    assert bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    alice.joins()
    assert [member.member_id for member in alice.joined.members] == [alice.member_id]


def test_invalid_heartbeats_are_refused(harness: GroupHarness, alice: Client, bob: Client) -> None:
    assert alice.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    stable(harness, alice)
    alice.generation += 1
    assert alice.heartbeats() is ErrorCode.ILLEGAL_GENERATION
    alice.group_id = ""
    assert alice.heartbeats() is ErrorCode.INVALID_GROUP_ID


def test_a_heartbeat_while_the_leader_assigns_is_accepted(harness: GroupHarness, alice: Client) -> None:
    alice.joins()
    assert alice.heartbeats() is ErrorCode.NONE


def test_a_member_that_leaves_starts_a_rebalance_at_once(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice, bob)
    assert alice.leaves() is ErrorCode.NONE
    assert alice.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    assert bob.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    bob.joins()
    assert bob.is_leader


def test_the_last_member_leaves_an_empty_group(harness: GroupHarness, alice: Client) -> None:
    stable(harness, alice)
    alice.leaves()
    group = harness.group()
    assert (group.state, group.generation, group.protocol_type) == (GroupState.EMPTY, 2, "consumer")
    assert (group.leader, group.members) == (None, ())


def test_a_rebalance_does_not_wait_for_a_member_that_left(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice)
    bob.joins()
    assert not bob.is_answered
    alice.leaves()
    assert bob.joined.generation == 2


def test_a_member_that_leaves_while_it_waits_is_answered(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    stable(harness, alice)
    bob.joins()
    bob_id = next(
        member.member_id for member in harness.group().members if member.member_id != alice.member_id
    )
    harness.removes_members(LeavingMember(member_id=bob_id))
    assert bob.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_answered(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    assert not bob.is_answered
    assert bob.leaves() is ErrorCode.NONE
    assert bob.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_assigned_id_can_leave_before_it_joins(harness: GroupHarness, alice: Client) -> None:
    alice.asks_to_join()
    assert alice.leaves() is ErrorCode.NONE
    assert harness.state() == {}


def test_leaving_as_an_unknown_member_is_refused(harness: GroupHarness, alice: Client) -> None:
    assert alice.leaves() is ErrorCode.UNKNOWN_MEMBER_ID
    stable(harness, alice)
    answer = harness.removes_members(LeavingMember(member_id="unknown"), LeavingMember(instance_id="unknown"))
    assert [left.error for left in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert harness.removes_members(group_id="").error is ErrorCode.INVALID_GROUP_ID
    assert harness.group().state is GroupState.STABLE


def test_several_members_can_leave_in_one_request(harness: GroupHarness, alice: Client, bob: Client) -> None:
    carol = harness.client("carol")
    stable(harness, alice, bob, carol)
    answer = harness.removes_members(
        LeavingMember(member_id=alice.member_id),
        LeavingMember(member_id="x"),
        LeavingMember(member_id=bob.member_id),
    )
    assert [left.error for left in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert [member.member_id for member in harness.group().members] == [carol.member_id]


def test_a_cooperative_rebalance_takes_two_generations_and_never_stops_the_members(
    harness: GroupHarness, alice: Client, bob: Client
) -> None:
    """Partitions are first revoked from their old owner, and only then assigned to the new one."""
    stable(harness, alice)
    assert alice.syncs().assignment == b"alice"
    bob.joins()
    assert alice.commits(offset=5).error is ErrorCode.NONE, "she works on while others join"
    alice.joins().assigns(alice=b"0", bob=b"")  # she has to give up partition 1, which is not assigned yet
    assert (alice.assignment, bob.syncs().assignment) == (b"0", b"")

    alice.joins()  # having given it up, she asks for the second half
    assert bob.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    bob.joins()
    alice.assigns(alice=b"0", bob=b"1")
    assert (alice.assignment, bob.syncs().assignment) == (b"0", b"1")
    assert alice.generation == bob.generation == 3
