"""A message reaches the owner of its slot, and never goes in a circle."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.ring.routing import HOPS_MAX, ForwardTo, Hold, Refuse, RunHere, route
from penstock.ring.slots import SLOTS, bitmap_of
from penstock.ring.table import NO_OWNER, Table, pack_indexes

SLOT = 7
NAMES = "abcdef"


def _table(owner: str | None, *, revoked: bool = False) -> Table:
    """A table in which this member owns the slot."""
    index = NO_OWNER if owner is None else NAMES.index(owner)
    return Table(
        epoch=1,
        workers=tuple(NAMES),
        member_ids=tuple(NAMES),
        owners=pack_indexes([index] * SLOTS),
        epochs=(1,),
        slot_epochs=pack_indexes([0] * SLOTS),
        revoked=bitmap_of([SLOT] if revoked else []),
    )


def test_the_owner_runs_it() -> None:
    assert route(_table("a"), "a", SLOT, 0) == RunHere()
    assert route(_table("a"), "a", SLOT, HOPS_MAX) == RunHere()


def test_any_other_worker_forwards_it_to_the_owner() -> None:
    assert route(_table("b"), "a", SLOT, 0) == ForwardTo("b")


def test_it_waits_while_the_owner_is_not_known_or_the_slot_is_handed_over() -> None:
    for table in (None, _table(None), _table("a", revoked=True), _table("b", revoked=True)):
        assert route(table, "a", SLOT, 0) == Hold()


def test_a_request_from_inside_a_handler_enters_a_slot_that_is_handed_over() -> None:
    assert route(_table("a", revoked=True), "a", SLOT, 0, is_nested=True) == RunHere()


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([None, *NAMES]), min_size=6))
def test_whatever_the_workers_believe_a_message_is_run_or_given_back_after_a_few_hops(believed) -> None:
    at, hops = "a", 0
    while isinstance(step := route(_table(believed[at]), at, SLOT, hops), ForwardTo):
        at, hops = step.member_id, hops + 1
        assert hops <= HOPS_MAX
    assert step in (RunHere(), Refuse(), Hold())
    assert step != RunHere() or believed[at] == at
