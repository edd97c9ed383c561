"""Which guarantee follows from which capabilities."""

import pytest

from penstock.clique import Capabilities, TooWeak
from penstock.clique.guarantees import check_guarantee, check_level, guarantee_of
from penstock.clique.memory import MemoryPubSub

PENSTOCK = Capabilities(durable=True, ordered=True, acks=True, exclusive=True)
NATS = Capabilities(ordered=True, compare_and_set=True)
CORE_NATS = Capabilities(ordered=True)


@pytest.mark.parametrize(
    ("capabilities", "level", "in_order"),
    [
        (Capabilities(), "best-effort", False),
        (CORE_NATS, "best-effort", False),
        (NATS, "one-owner", True),
        (Capabilities(compare_and_set=True), "one-owner", False),
        (MemoryPubSub.capabilities, "at-least-once", True),
        (PENSTOCK, "durable", True),
        (Capabilities(durable=True, acks=True), "best-effort", False),
    ],
)
def test_the_strongest_guarantee_of_a_carrier(capabilities, level, in_order) -> None:
    guarantee = guarantee_of(capabilities)
    assert (guarantee.level, guarantee.in_order) == (level, in_order)


def test_a_guarantee_is_a_sentence() -> None:
    assert str(guarantee_of(NATS)) == (
        "one owner at a time, in order per key, messages in a crashed process may be lost"
    )
    assert "best effort" in str(guarantee_of(CORE_NATS))


def test_a_stronger_guarantee_is_refused_and_the_missing_capabilities_are_named() -> None:
    with pytest.raises(TooWeak, match=r"nats://x lacks compare-and-set .* and acks and durable messages"):
        check_guarantee("durable", CORE_NATS, "nats://x")
    with pytest.raises(TooWeak, match="lacks acks"):
        check_guarantee("at-least-once", NATS, "nats://x")
    check_guarantee("one-owner", NATS, "nats://x")
    check_guarantee("durable", PENSTOCK, "penstock://x")


def test_a_guarantee_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exactly-once.*expected one of best-effort, one-owner"):
        check_level("exactly-once")
    assert check_level(None) is None
