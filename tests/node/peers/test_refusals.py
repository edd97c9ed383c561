"""Which refusals end a node that was never accepted."""

import pytest

from penstock.config import Address
from penstock.node.peers import PeerRefused, Refusals
from penstock.node.peers.hello import PeerRefusal, RefusalCode
from penstock.node.peers.refusals import FRESH_SECONDS, SHORTEST_CONFIRMATION_SECONDS

from .peer_nodes import hello

ONE, TWO = Address("10.0.0.1", 7000), Address("10.0.0.2", 7000)
SEEDS = (ONE, TWO)
TAKEN, FOREIGN = RefusalCode.DUPLICATE_ID, RefusalCode.CLUSTER
LONG = SHORTEST_CONFIRMATION_SECONDS + 1


def no(code: int, *, proven: bool = True) -> PeerRefused:
    return PeerRefused(PeerRefusal(code, "no, because"), ours=False, hello=hello(1) if proven else None)


def refused_for(seconds: float, code: int, *addresses: Address, proven: bool = True) -> Refusals:
    """Refused every two seconds, as diallers retry."""
    refusals = Refusals(silence_ms=1000)
    for tried in range(int(seconds / 2) + 2):
        for address in addresses:
            refusals.heard(min(2.0 * tried, seconds), address, no(code, proven=proven))
    return refusals


def test_an_id_in_use_ends_the_node_although_one_seed_does_not_answer() -> None:
    final = refused_for(LONG, TAKEN, ONE).final(LONG, SEEDS)
    assert final is not None
    assert final.reason == "10.0.0.1:7000 does not admit this node: no, because"
    assert "--node-id" in final.hint


def test_an_id_in_use_for_a_moment_does_not_end_the_node() -> None:
    assert (
        refused_for(SHORTEST_CONFIRMATION_SECONDS - 1, TAKEN, ONE).final(SHORTEST_CONFIRMATION_SECONDS, SEEDS)
        is None
    )


def test_the_last_refusal_is_reported_while_it_is_recent() -> None:
    refusals = Refusals(silence_ms=1000)
    assert refusals.word(0.0) is None
    refusals.heard(0.0, ONE, no(RefusalCode.KEY, proven=False))
    assert refusals.word(1.0) == "10.0.0.1:7000 answers, but no, because"
    assert refusals.word(FRESH_SECONDS) is None


def test_the_waiting_time_is_longer_than_the_timeout_of_a_dead_connection() -> None:
    refusals = Refusals(silence_ms=60_000)
    for second in range(0, 170, 2):
        refusals.heard(second, ONE, no(TAKEN))
        assert refusals.final(second, SEEDS) is None


def test_another_cluster_at_all_seeds_ends_the_node() -> None:
    final = refused_for(LONG, FOREIGN, ONE, TWO).final(LONG, SEEDS)
    assert final is not None
    assert "--seeds" in final.hint


def test_another_cluster_at_one_seed_does_not_end_the_node() -> None:
    assert refused_for(LONG, FOREIGN, ONE).final(LONG, SEEDS) is None


@pytest.mark.parametrize("code", [RefusalCode.KEY, RefusalCode.VERSION, RefusalCode.TOO_MANY])
def test_refusals_that_the_other_side_may_fix_never_end_the_node(code: RefusalCode) -> None:
    assert refused_for(100 * LONG, code, ONE, TWO).final(100 * LONG, SEEDS) is None


def test_a_refusal_without_proof_of_the_key_does_not_end_the_node() -> None:
    assert refused_for(LONG, TAKEN, ONE, TWO, proven=False).final(LONG, SEEDS) is None


def test_a_node_that_was_accepted_once_is_not_ended_by_refusals() -> None:
    refusals = Refusals(silence_ms=1000)
    refusals.let_in()
    for second in range(0, 1000, 2):
        refusals.heard(second, ONE, no(TAKEN))
    assert refusals.final(1000, SEEDS) is None


def test_a_refusal_that_was_not_repeated_no_longer_counts() -> None:
    refusals = refused_for(LONG, TAKEN, ONE)
    later = LONG + FRESH_SECONDS
    assert refusals.final(later, SEEDS) is None
    refusals.heard(later, ONE, no(TAKEN))
    assert refusals.final(later, SEEDS) is None
