"""When a claim is news, and that tables converge."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.swim import GossipEndpoint, Member, State, SwimSettings
from penstock.swim.packets import Alive, Claim, Dead, Left, Suspect
from penstock.swim.table import ClaimResult, MemberTable
from penstock.types import NodeId
from tests.swim.simulated_cluster import meta, replica

BOB = replica(2)


def table(max_members: int = 1000) -> MemberTable:
    me = Member(meta=meta(1), incarnation=0, state=State.ALIVE)
    return MemberTable(me, SwimSettings(max_members=max_members))


def hears(about: MemberTable, *claims: Claim, now: float = 0.0) -> ClaimResult:
    """The verdict on the last one."""
    for claim in claims:
        verdict = about.evaluate(claim)
        if verdict is ClaimResult.NEW:
            about.apply(now, claim)
    return verdict


def alive(incarnation: int, node: int = 2) -> Alive:
    return Alive(incarnation, meta(node))


def suspect(incarnation: int, by: int = 1) -> Suspect:
    return Suspect(incarnation, BOB, NodeId(by))


@pytest.mark.parametrize(
    ("known", "claim", "verdict"),
    [
        (alive(5), alive(5), ClaimResult.OLD),
        (alive(5), alive(6), ClaimResult.NEW),
        (alive(5), suspect(4), ClaimResult.OLD),
        (alive(5), suspect(5), ClaimResult.NEW),
        (suspect(5), alive(5), ClaimResult.OLD),
        (suspect(5), alive(6), ClaimResult.NEW),
        (suspect(5), suspect(5, by=1), ClaimResult.OLD),
        (suspect(5), suspect(5, by=3), ClaimResult.CONFIRMED),
        (suspect(5), Dead(4, BOB), ClaimResult.OLD),
        (suspect(5), Dead(5, BOB), ClaimResult.NEW),
        (Dead(5, BOB), alive(5), ClaimResult.OLD),
        (Dead(5, BOB), suspect(5), ClaimResult.OLD),
        (Dead(5, BOB), alive(6), ClaimResult.NEW),
        (Dead(5, BOB), Left(5, BOB), ClaimResult.NEW),
        (Left(5, BOB), Dead(5, BOB), ClaimResult.OLD),
        (Left(5, BOB), alive(6), ClaimResult.NEW),
    ],
)
def test_precedence(known: Claim, claim: Claim, verdict: ClaimResult) -> None:
    members = table()
    crowd = [alive(0, node) for node in (3, 4, 5)]
    hears(members, *crowd, alive(5), known)
    assert hears(members, claim) is verdict


claims_about_bob = st.one_of(
    st.builds(alive, st.integers(0, 5)),
    st.builds(suspect, st.integers(0, 5), st.integers(1, 5)),
    st.builds(lambda incarnation: Dead(incarnation, BOB), st.integers(0, 5)),
    st.builds(lambda incarnation: Left(incarnation, BOB), st.integers(0, 5)),
)


@given(st.lists(claims_about_bob, min_size=1, max_size=12), st.integers())
def test_tables_that_hear_the_same_in_any_order_end_up_equal(claims: list[Claim], seed: int) -> None:
    """For tables that know the member already; a claim about an unknown node is ignored (only Alive introduces one)."""
    shuffled = list(claims)
    Random(seed).shuffle(shuffled)
    one, other = table(), table()
    hears(one, alive(0), *claims)
    hears(other, alive(0), *shuffled)
    assert one.rows == other.rows
    strongest = max((claim.incarnation, claim_state(claim)) for claim in [alive(0), *claims])
    assert (one.rows[BOB].incarnation, one.rows[BOB].state) == strongest


def claim_state(claim: Claim) -> State:
    return {Alive: State.ALIVE, Suspect: State.SUSPECT, Dead: State.DEAD, Left: State.LEFT}[type(claim)]


@given(st.lists(claims_about_bob, max_size=20))
def test_the_table_never_contradicts_itself(claims: list[Claim]) -> None:
    members = table()
    for time, claim in enumerate(claims):
        hears(members, claim, now=float(time))
        suspects = {each for each, member in members.rows.items() if member.state is State.SUSPECT}
        ended = {each for each, member in members.rows.items() if not member.state.is_present}
        assert set(members.suspicions) == suspects
        assert set(members.ended_at) == ended
        assert members.present_count == len(members.rows) - len(ended)


@pytest.mark.parametrize("claim", [suspect(5), Dead(5, BOB), Left(5, BOB)])
def test_an_accusation_does_not_introduce_a_member(claim: Claim) -> None:
    members = table()
    assert hears(members, claim) is ClaimResult.OLD
    assert BOB not in members.rows


def test_a_full_table_makes_room_by_forgetting_the_member_that_died_first() -> None:
    members = table(max_members=4)
    hears(members, alive(0, 2), alive(0, 3), alive(0, 4))
    assert hears(members, alive(0, 5)) is ClaimResult.FULL
    hears(members, Dead(0, replica(3)), now=1.0)
    hears(members, Dead(0, replica(2)), now=2.0)
    assert hears(members, alive(0, 5)) is ClaimResult.NEW
    assert [member.node for member in members.rows.values()] == [1, 2, 4, 5]


def test_a_wiped_node_at_its_old_address_is_another_member_and_no_conflict() -> None:
    members = table()
    hears(members, alive(7), Alive(0, meta(2, folder=77)))
    assert members.rows[BOB].state is members.rows[replica(2, folder=77)].state is State.ALIVE
    assert not list(members.id_conflicts(meta(2, folder=77)))


def test_one_node_id_at_two_addresses_is_detected() -> None:
    members = table()
    hears(members, alive(7))
    elsewhere = meta(2, folder=77, cluster=GossipEndpoint("10.0.0.200", 9192))
    assert [member.replica for member in members.id_conflicts(elsewhere)] == [BOB]
    hears(members, Dead(7, BOB))
    assert not list(members.id_conflicts(elsewhere))
