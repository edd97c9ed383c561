"""The retry policy: which failures are worth another attempt, and when the next one is made."""

import asyncio

import pytest

from penstock.cluster import ClusterState
from penstock.cluster.membership import decommission_node
from penstock.errors import ErrorCode, KafkaError, NotExecuted, Unanswered
from penstock.node.calls import retry
from penstock.node.calls.retry import CallRetry, ClusterChanges, is_retryable, may_repeat
from penstock.types import NodeId

MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER
WRONG = ErrorCode.INVALID_REQUEST
TRANSIENT = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.BROKER_NOT_AVAILABLE,
}
UNKNOWN_TOPIC = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}


def test_all_other_codes_are_final() -> None:
    assert {code for code in ErrorCode if is_retryable(code)} == TRANSIENT | UNKNOWN_TOPIC


def test_an_unknown_topic_is_final_from_a_place_that_knows_all_topics() -> None:
    assert {code for code in ErrorCode if is_retryable(code, knows_topics=True)} == TRANSIENT
    for code in UNKNOWN_TOPIC:
        assert may_repeat(NotExecuted(code), repeatable=False)
        assert not may_repeat(NotExecuted(code), repeatable=True, knows_topics=True)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_request_that_was_not_executed_is_always_sent_again(repeatable: bool) -> None:
    for code in TRANSIENT:
        assert may_repeat(NotExecuted(code), repeatable=repeatable)
        assert may_repeat(Unanswered(code, "", may_be_done=False), repeatable=repeatable)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_request_that_may_have_been_executed_is_sent_again_only_if_it_may_be_repeated(
    repeatable: bool,
) -> None:
    for code in TRANSIENT:
        assert may_repeat(KafkaError(code), repeatable=repeatable) is repeatable
        assert may_repeat(Unanswered(code, "", may_be_done=True), repeatable=repeatable) is repeatable


def test_a_mistake_in_the_request_is_never_sent_again() -> None:
    for problem in (KafkaError(WRONG), NotExecuted(WRONG), Unanswered(WRONG, "", may_be_done=False)):
        assert not may_repeat(problem, repeatable=True)


def test_the_controllers_answer_that_a_node_does_not_exist_is_final() -> None:
    with pytest.raises(KafkaError) as refusal:
        decommission_node(ClusterState(NodeId(1)), 9)
    assert not may_repeat(refusal.value, repeatable=True)


async def test_a_pause_ends_when_the_target_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 1_000.0)
    changes = ClusterChanges()
    moved: list[bool] = []
    pause = asyncio.ensure_future(CallRetry(changes).pause(lambda: bool(moved)))
    await asyncio.sleep(0)
    changes.fire()  # an unrelated change
    for _ in range(5):
        await asyncio.sleep(0)
    assert not pause.done()
    moved.append(True)
    changes.fire()
    await pause


async def test_a_pause_without_changes_ends_after_its_delay() -> None:
    await CallRetry(ClusterChanges()).pause(lambda: False)


async def test_delays_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    real = asyncio.timeout

    def noted(seconds: float) -> asyncio.Timeout:
        delays.append(seconds)
        return real(0)

    monkeypatch.setattr(asyncio, "timeout", noted)
    attempts = CallRetry(ClusterChanges())
    for _ in range(6):
        await attempts.pause(lambda: False)
    assert delays == [0.02, 0.04, 0.08, 0.16, 0.2, 0.2]
