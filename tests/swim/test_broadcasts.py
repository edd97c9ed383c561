"""Claims that are still to be gossiped."""

from penstock.swim.broadcasts import Broadcasts, retransmit_limit
from tests.swim.simulated_cluster import replica


def queue(**claims: bytes) -> Broadcasts:
    made = Broadcasts()
    for name, claim in claims.items():
        made.add(replica(int(name.removeprefix("node"))), claim)
    return made


def test_a_claim_is_sent_as_often_as_the_limit_says() -> None:
    claims = queue(node1=b"one")
    assert [claims.take(100, 3) for _ in range(4)] == [[b"one"], [b"one"], [b"one"], []]
    assert len(claims) == 0


def test_the_limit_grows_with_the_logarithm_of_the_members() -> None:
    assert [retransmit_limit(4, members) for members in (1, 9, 10, 99, 100, 1000)] == [4, 4, 8, 8, 12, 16]


def test_the_least_sent_claims_go_first_and_among_these_the_newest() -> None:
    claims = queue(node1=b"1", node2=b"2")
    assert claims.take(1, 9) == [b"2"]
    assert claims.take(1, 9) == [b"1"]
    claims.add(replica(3), b"3")
    assert claims.take(2, 9) == [b"3", b"2"]


def test_a_newer_claim_of_a_member_replaces_the_older() -> None:
    claims = queue(node1=b"alive")
    claims.take(100, 9)
    claims.add(replica(1), b"suspect")
    assert claims.take(100, 9) == [b"suspect"]
    assert len(claims) == 1


def test_a_claim_that_does_not_fit_is_skipped_for_one_that_does() -> None:
    claims = queue(node1=b"short", node2=b"a rather long one")
    assert claims.take(10, 9) == [b"short"]
    assert claims.take(17, 9) == [b"a rather long one"]
