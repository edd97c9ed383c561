"""Between joining and leaving: assignments, heartbeats, departures, and what happens when somebody fails."""

import pytest

from penstock.config import Limits
from penstock.errors import ErrorCode
from penstock.groups import GroupState, LeavingMember
from tests.groups.scene import REBALANCE_MS, SESSION_MS, Client, Scene, rejoin, stable


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def alice(scene: Scene) -> Client:
    return scene.client("alice")


@pytest.fixture
def bob(scene: Scene) -> Client:
    return scene.client("bob")


def test_nobody_learns_its_assignment_before_it_is_durable(scene: Scene, alice: Client, bob: Client) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    scene.disk = "slow"
    alice.assigns(alice=b"0", bob=b"1")
    bob.syncs()
    assert not alice.is_answered
    assert not bob.is_answered
    scene.flush()
    assert (alice.assignment, bob.assignment) == (b"0", b"1")


def test_an_assignment_that_cannot_be_stored_starts_the_group_anew(
    scene: Scene, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    scene.disk = "full"
    alice.assigns(alice=b"0", bob=b"1")
    assert alice.error is bob.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    scene.disk = "prompt"
    alice.joins()
    bob.joins()
    rejoin(alice, bob)
    assert bob.assignment == b"bob"


def test_an_assignment_that_comes_too_late_is_nobody_s(scene: Scene, alice: Client, bob: Client) -> None:
    alice.joins()
    scene.disk = "slow"
    alice.assigns(alice=b"old")
    bob.joins()
    assert alice.error is ErrorCode.REBALANCE_IN_PROGRESS
    alice.joins()
    scene.flush()
    assert scene.group().state is GroupState.COMPLETING_REBALANCE
    alice.assigns(alice=b"new", bob=b"new")
    bob.syncs()
    scene.flush()
    assert alice.assignment == bob.assignment == b"new"


def test_a_leader_that_repeats_its_assignment_is_answered_once(scene: Scene, alice: Client) -> None:
    alice.joins()
    scene.disk = "slow"
    alice.assigns(alice=b"first")
    lost = alice.token
    alice.assigns(alice=b"second")
    assert scene.replies[lost].error is ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[union-attr]
    scene.flush()
    assert alice.assignment == b"first", "what was written is what counts"
    assert len(scene.durable) == 1


def test_when_the_leader_fails_before_it_assigns_another_takes_over(
    scene: Scene, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    assert not bob.is_answered
    scene.passes(SESSION_MS)  # alice is silent; bob waits, which counts as a sign of life
    assert bob.error is ErrorCode.REBALANCE_IN_PROGRESS
    bob.joins()
    assert bob.is_leader
    assert bob.joined.generation == 3
    assert bob.assigns(bob=b"all").assignment == b"all"


def test_a_leader_that_only_heartbeats_does_not_hold_up_the_group_for_ever(
    scene: Scene, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    for _ in range(REBALANCE_MS // (SESSION_MS - 1) + 1):
        scene.passes(SESSION_MS - 1)
        alice.heartbeats()
    assert bob.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert alice.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_never_syncs_is_out_when_the_time_is_up(
    scene: Scene, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins().assigns(alice=b"0", bob=b"1")
    for _ in range(REBALANCE_MS // (SESSION_MS - 1) + 1):
        scene.passes(SESSION_MS - 1)
        alice.heartbeats()
        bob.heartbeats()
    assert bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_can_ask_for_its_assignment_again(scene: Scene, alice: Client, bob: Client) -> None:
    stable(scene, alice, bob)
    assert bob.syncs().assignment == b"bob"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 9}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_that_does_not_fit_is_refused(
    scene: Scene, alice: Client, changes: dict[str, object], error: ErrorCode
) -> None:
    stable(scene, alice)
    assert alice.syncs(**changes).error is error  # type: ignore[arg-type]
    assert alice.syncs(protocol_type="consumer", protocol_name="range").error is ErrorCode.NONE


def test_a_sync_during_a_rebalance_is_told_to_join(scene: Scene, alice: Client, bob: Client) -> None:
    stable(scene, alice)
    bob.joins()
    assert alice.syncs().error is ErrorCode.REBALANCE_IN_PROGRESS


def test_assignments_are_limited(alice: Client) -> None:
    scene = Scene(limits=Limits(max_group_assignment_bytes=10))
    alice = scene.client("alice").joins()
    assert alice.assigns(alice=b"x" * 11).error is ErrorCode.INVALID_REQUEST
    assert alice.assigns(alice=b"x" * 10).error is ErrorCode.NONE


def test_a_member_that_falls_silent_is_out_after_its_session(
    scene: Scene, alice: Client, bob: Client
) -> None:
    stable(scene, alice, bob)
    for _ in range(3):
        scene.passes(SESSION_MS - 1)
        assert alice.heartbeats() is ErrorCode.NONE
        assert bob.heartbeats() is ErrorCode.NONE
    scene.passes(SESSION_MS - 1)
    alice.heartbeats()
    scene.passes(1)
    assert bob.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    assert alice.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    alice.joins()
    assert [member.member_id for member in alice.joined.members] == [alice.member_id]


def test_heartbeats_that_do_not_fit_are_refused(scene: Scene, alice: Client, bob: Client) -> None:
    assert alice.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    stable(scene, alice)
    alice.generation += 1
    assert alice.heartbeats() is ErrorCode.ILLEGAL_GENERATION
    alice.group_id = ""
    assert alice.heartbeats() is ErrorCode.INVALID_GROUP_ID


def test_a_heartbeat_while_assignments_are_made_is_well(scene: Scene, alice: Client) -> None:
    alice.joins()
    assert alice.heartbeats() is ErrorCode.NONE


def test_a_member_that_leaves_makes_the_others_share_at_once(
    scene: Scene, alice: Client, bob: Client
) -> None:
    stable(scene, alice, bob)
    assert alice.leaves() is ErrorCode.NONE
    assert alice.heartbeats() is ErrorCode.UNKNOWN_MEMBER_ID
    assert bob.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    bob.joins()
    assert bob.is_leader


def test_the_last_member_leaves_an_empty_group(scene: Scene, alice: Client) -> None:
    stable(scene, alice)
    alice.leaves()
    group = scene.group()
    assert (group.state, group.generation, group.protocol_type) == (GroupState.EMPTY, 2, "consumer")
    assert (group.leader, group.members) == (None, ())


def test_a_member_that_leaves_while_others_wait_for_it_sets_them_free(
    scene: Scene, alice: Client, bob: Client
) -> None:
    stable(scene, alice)
    bob.joins()
    assert not bob.is_answered
    alice.leaves()
    assert bob.joined.generation == 2


def test_a_member_that_leaves_while_it_waits_is_answered(scene: Scene, alice: Client, bob: Client) -> None:
    stable(scene, alice)
    bob.joins()
    bob_id = next(member.member_id for member in scene.group().members if member.member_id != alice.member_id)
    scene.removes_members(LeavingMember(member_id=bob_id))
    assert bob.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_answered(
    scene: Scene, alice: Client, bob: Client
) -> None:
    alice.joins()
    bob.joins()
    alice.joins()
    bob.syncs()
    assert not bob.is_answered
    assert bob.leaves() is ErrorCode.NONE
    assert bob.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_out_can_be_given_back(scene: Scene, alice: Client) -> None:
    alice.asks_to_join()
    assert alice.leaves() is ErrorCode.NONE
    assert scene.state() == {}


def test_leaving_what_one_is_not_in_is_refused(scene: Scene, alice: Client) -> None:
    assert alice.leaves() is ErrorCode.UNKNOWN_MEMBER_ID
    stable(scene, alice)
    answer = scene.removes_members(LeavingMember(member_id="nobody"), LeavingMember(instance_id="nobody"))
    assert [left.error for left in answer.members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2
    assert scene.removes_members(group_id="").error is ErrorCode.INVALID_GROUP_ID
    assert scene.group().state is GroupState.STABLE


def test_several_members_can_leave_in_one_request(scene: Scene, alice: Client, bob: Client) -> None:
    carol = scene.client("carol")
    stable(scene, alice, bob, carol)
    answer = scene.removes_members(
        LeavingMember(member_id=alice.member_id),
        LeavingMember(member_id="x"),
        LeavingMember(member_id=bob.member_id),
    )
    assert [left.error for left in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert [member.member_id for member in scene.group().members] == [carol.member_id]


def test_a_cooperative_rebalance_takes_two_generations_and_never_stops_the_members(
    scene: Scene, alice: Client, bob: Client
) -> None:
    """Partitions first are given up by their old owner, and only then given to the new one."""
    stable(scene, alice)
    assert alice.syncs().assignment == b"alice"
    bob.joins()
    assert alice.commits(offset=5).error is ErrorCode.NONE, "she works on while others join"
    alice.joins().assigns(alice=b"0", bob=b"")  # she is to give up partition 1, which nobody gets yet
    assert (alice.assignment, bob.syncs().assignment) == (b"0", b"")

    alice.joins()  # having given it up, she asks for the second half
    assert bob.heartbeats() is ErrorCode.REBALANCE_IN_PROGRESS
    bob.joins()
    alice.assigns(alice=b"0", bob=b"1")
    assert (alice.assignment, bob.syncs().assignment) == (b"0", b"1")
    assert alice.generation == bob.generation == 3
