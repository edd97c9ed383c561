"""When it is hopeless: which refusals end a node that nobody has let in."""

import pytest

from penstock.config import Address
from penstock.node.peers import Refusals, Refused
from penstock.node.peers.hello import Refusal, RefusalCode
from penstock.node.peers.refusals import FRESH_SECONDS, SHORTEST_CONFIRMATION_SECONDS

from .town import hello

ONE, TWO = Address("10.0.0.1", 7000), Address("10.0.0.2", 7000)
SEEDS = (ONE, TWO)
TAKEN, FOREIGN = RefusalCode.DUPLICATE_ID, RefusalCode.CLUSTER
LONG = SHORTEST_CONFIRMATION_SECONDS + 1


def no(code: int, *, proven: bool = True) -> Refused:
    return Refused(Refusal(code, "no, because"), ours=False, hello=hello(1) if proven else None)


def refused_for(seconds: float, code: int, *addresses: Address, proven: bool = True) -> Refusals:
    """Every two seconds, as diallers try."""
    refusals = Refusals(silence_ms=1000)
    for tried in range(int(seconds / 2) + 2):
        for address in addresses:
            refusals.heard(min(2.0 * tried, seconds), address, no(code, proven=proven))
    return refusals


def test_an_id_that_stays_taken_is_the_end_although_one_seed_does_not_answer() -> None:
    final = refused_for(LONG, TAKEN, ONE).final(LONG, SEEDS)
    assert final is not None
    assert final.reason == "10.0.0.1:7000 does not admit this node: no, because"
    assert "--node-id" in final.hint


def test_an_id_that_has_been_taken_for_a_moment_is_not() -> None:
    assert (
        refused_for(SHORTEST_CONFIRMATION_SECONDS - 1, TAKEN, ONE).final(SHORTEST_CONFIRMATION_SECONDS, SEEDS)
        is None
    )


def test_the_last_refusal_can_be_told_while_it_is_fresh() -> None:
    refusals = Refusals(silence_ms=1000)
    assert refusals.word(0.0) is None
    refusals.heard(0.0, ONE, no(RefusalCode.KEY, proven=False))
    assert refusals.word(1.0) == "10.0.0.1:7000 answers, but no, because"
    assert refusals.word(FRESH_SECONDS) is None


def test_patience_outlasts_a_connection_to_a_machine_that_is_gone() -> None:
    refusals = Refusals(silence_ms=60_000)
    for second in range(0, 170, 2):
        refusals.heard(second, ONE, no(TAKEN))
        assert refusals.final(second, SEEDS) is None


def test_another_cluster_is_the_end_when_all_seeds_say_so() -> None:
    final = refused_for(LONG, FOREIGN, ONE, TWO).final(LONG, SEEDS)
    assert final is not None
    assert "--seeds" in final.hint


def test_one_seed_of_another_cluster_is_not() -> None:
    assert refused_for(LONG, FOREIGN, ONE).final(LONG, SEEDS) is None


@pytest.mark.parametrize("code", [RefusalCode.KEY, RefusalCode.VERSION, RefusalCode.TOO_MANY])
def test_what_may_be_mended_on_the_other_side_is_never_the_end(code: RefusalCode) -> None:
    assert refused_for(100 * LONG, code, ONE, TWO).final(100 * LONG, SEEDS) is None


def test_whoever_has_not_proven_the_key_ends_nobody() -> None:
    assert refused_for(LONG, TAKEN, ONE, TWO, proven=False).final(LONG, SEEDS) is None


def test_a_node_that_was_let_in_once_is_ended_by_nobody() -> None:
    refusals = Refusals(silence_ms=1000)
    refusals.let_in()
    for second in range(0, 1000, 2):
        refusals.heard(second, ONE, no(TAKEN))
    assert refusals.final(1000, SEEDS) is None


def test_a_refusal_that_was_not_repeated_counts_no_more() -> None:
    refusals = refused_for(LONG, TAKEN, ONE)
    later = LONG + FRESH_SECONDS
    assert refusals.final(later, SEEDS) is None
    refusals.heard(later, ONE, no(TAKEN))
    assert refusals.final(later, SEEDS) is None
