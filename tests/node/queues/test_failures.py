"""What a leader remembers of failures: bounded, per message, until the message is done."""

from penstock.node.queues import Acknowledgement
from penstock.node.queues.failures import (
    MAX_FAILURES,
    MAX_NAMES,
    MAX_TEXT,
    NO_FAILURES,
    Failure,
    FailureHistory,
    FailureLog,
)
from penstock.queue.values import AckKind

ACCEPT, RELEASE, REJECT, RENEW = (
    bytes([kind]) for kind in (AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT, AckKind.RENEW)
)


def make(**names: str) -> FailureLog:
    return FailureLog(names.get)


def test_a_message_has_the_first_and_the_last_time_and_the_last_reason() -> None:
    log = make(member="host-1")
    log.settled(10, "member", [Acknowledgement(5, 6, RELEASE)], {5: Failure("ValueError", "x")})
    log.settled(20, "other", [Acknowledgement(5, 5, RELEASE)], NO_FAILURES)
    assert log.get(5) == FailureHistory(10, 20, "other", Failure("ValueError", "x"))
    assert log.get(6) == FailureHistory(10, 10, "host-1", None)


def test_only_failures_are_remembered_and_done_messages_are_forgotten() -> None:
    log = make()
    kinds = bytes([AckKind.ACCEPT, AckKind.REJECT, AckKind.RENEW])
    log.settled(10, "member", [Acknowledgement(0, 2, kinds)], NO_FAILURES)
    assert [offset for offset in range(3) if log.get(offset) is not None] == [1]
    log.settled(10, "member", [Acknowledgement(1, 1, RENEW)], NO_FAILURES)
    assert log.get(1) is not None
    log.settled(10, "member", [Acknowledgement(0, 10**9, ACCEPT)], NO_FAILURES)
    assert log.get(1) is None


def test_it_is_bounded() -> None:
    log = make()
    log.settled(10, "member", [Acknowledgement(0, 10**9, REJECT)], {0: Failure("t" * 1000, "x" * 5000)})
    log.settled(10, "member", [Acknowledgement(10**9, 10**9, REJECT)], NO_FAILURES)
    assert log.get(0) is None
    assert log.get(1) is not None
    assert log.get(10**9) is not None
    assert log.get(MAX_FAILURES) is None
    log.settled(10, "member", [Acknowledgement(0, 0, REJECT)], {0: Failure("t" * 1000, "x" * 5000)})
    history = log.get(0)
    assert history is not None
    assert history.failure is not None
    assert len(history.failure.error_text) == MAX_TEXT


def test_consumers_that_have_gone_keep_their_names_for_a_while() -> None:
    names: dict[str, str] = {}
    log = FailureLog(names.get)
    for number in range(MAX_NAMES + 1):
        names[f"m{number}"] = f"host-{number}"
        log.gone(f"m{number}")
        del names[f"m{number}"]
    assert log.name_of(f"m{MAX_NAMES}") == f"host-{MAX_NAMES}"
    assert log.name_of("m0") == "m0"
