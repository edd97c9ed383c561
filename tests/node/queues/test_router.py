"""A receive is sent again only to leaders that surely leased nothing for it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.errors import ErrorCode, KafkaError, NotExecuted, Unanswered
from penstock.node.calls import LeaderOf, Target, methods
from penstock.node.calls.messages.queues import ReceivedBatch, ReceiveRequest
from penstock.types import Caller, NodeId
from tests.node.queues.test_waiting import Scene, play

LOST = Unanswered(ErrorCode.BROKER_NOT_AVAILABLE, "the connection broke", may_be_done=True)
NOT_CONNECTED = Unanswered(ErrorCode.BROKER_NOT_AVAILABLE, "not connected", may_be_done=False)
FORBIDDEN = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not allowed")
TOO_OLD = Unanswered(ErrorCode.UNSUPPORTED_VERSION, "update that node", may_be_done=False)
MOVED = NotExecuted(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another node leads")
OTHER_HAS_IT = KafkaError(ErrorCode.POLICY_VIOLATION, "another consumer has it")

Fail = Callable[[ReceiveRequest], KafkaError | None]


class Leader:
    """The node's own queues, which first answer with the errors of `fail`."""

    def __init__(self, scene: Scene, fail: Fail) -> None:
        self.asked: list[ReceiveRequest] = []
        self._fail = fail
        assert scene.node.queues  # a late part: it serves the method from now on
        self._receive = scene.node.calls._handlers[methods.RECEIVE.number]
        scene.node.calls._handlers[methods.RECEIVE.number] = self.receive

    async def receive(self, caller: Caller, request: ReceiveRequest) -> list[ReceivedBatch]:
        self.asked.append(request)
        problem = self._fail(request)
        if problem is not None:
            raise problem
        received: list[ReceivedBatch] = await self._receive(caller, request)
        return received


def first(problem: KafkaError, times: int) -> Fail:
    """Fails so many requests, and no more."""
    left = iter(range(times))
    return lambda request: problem if next(left, None) is not None else None


def as_if_remote(scene: Scene) -> None:
    """Lets the router ask as it asks other nodes: at once, and then with a wait."""
    scene.node.queues.router._node_id = NodeId(99)


async def refusal(scene: Scene) -> KafkaError:
    async with asyncio.timeout(30):
        with pytest.raises(KafkaError) as refused:
            await scene.receive("c", wait_ms=60_000)
    return refused.value


@pytest.mark.parametrize("problem", [LOST, FORBIDDEN, TOO_OLD], ids=lambda problem: problem.code.name)
@pytest.mark.parametrize("is_remote", [False, True])
def test_a_leader_that_refuses_for_good_or_may_have_leased_is_asked_once(
    problem: KafkaError, is_remote: bool
) -> None:
    async def scenario(scene: Scene) -> None:
        if is_remote:
            as_if_remote(scene)
        leader = Leader(scene, lambda request: problem)
        assert await refusal(scene) is problem
        assert len(leader.asked) == 1

    play(scenario)


@pytest.mark.parametrize("problem", [LOST, FORBIDDEN, OTHER_HAS_IT], ids=lambda problem: problem.code.name)
def test_a_wait_that_fails_for_good_is_not_repeated(problem: KafkaError) -> None:
    async def scenario(scene: Scene) -> None:
        as_if_remote(scene)
        leader = Leader(scene, lambda request: problem if request.wait_ms else None)
        assert await refusal(scene) is problem
        # Before, it may be asked more than once without a wait: opening the queue takes time.
        assert [request.wait_ms > 0 for request in leader.asked][-2:] == [False, True]
        assert len([request for request in leader.asked if request.wait_ms]) == 1

    play(scenario)


@pytest.mark.parametrize("problem", [NOT_CONNECTED, MOVED], ids=lambda problem: problem.code.name)
@pytest.mark.parametrize("is_remote", [False, True])
def test_a_leader_that_surely_leased_nothing_is_asked_again(problem: KafkaError, is_remote: bool) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.open()
        if is_remote:
            as_if_remote(scene)
        scene.publish(0)
        leader = Leader(scene, first(problem, 3))
        [received] = await scene.receive("c")
        assert received.count == 1
        assert len(leader.asked) >= 4

    play(scenario)


def test_the_other_leaders_are_asked_on_without_the_one_whose_answer_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two nodes lead one partition each; the first answer for partition 0 gets lost."""

    async def scenario(scene: Scene) -> None:
        await scene.open()
        router = scene.node.queues.router
        ask = router._calls.ask
        find = router._calls._directory.find
        monkeypatch.setattr(
            router._calls._directory,
            "find",
            lambda target: (
                NodeId(1 + target.group.partition)
                if isinstance(target, LeaderOf) and target.group in scene.partitions
                else find(target)
            ),
        )
        monkeypatch.setattr(
            router._calls,
            "ask",
            lambda target, method, request, **options: ask(
                target._replace(node=scene.node.node_id), method, request, **options
            ),
        )
        leader = Leader(scene, lambda request: LOST if request.partitions[0].partition == 0 else None)
        receiving = scene.receive("c")
        while sum(request.wait_ms > 0 for request in leader.asked) < 1:
            await asyncio.sleep(0)
        scene.publish(1)
        [received] = await receiving
        assert received.partition.partition == 1
        assert sum(request.partitions[0].partition == 0 for request in leader.asked) == 1

    play(scenario, partitions=2)


def test_a_receive_that_ends_says_so_to_waits_that_are_not_at_their_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wait that is repeated without waiting at its leader would go on, and lease messages for nobody."""

    async def scenario(scene: Scene) -> None:
        await scene.open()
        as_if_remote(scene)
        calls, waits = scene.node.queues.router._calls, list[asyncio.Event]()
        ask = calls.ask

        def recorded(
            target: Target,
            method: Any,
            request: Any,
            *,
            unwanted: asyncio.Event | None = None,
            **options: Any,
        ) -> Awaitable[Any]:
            if unwanted is not None:
                waits.append(unwanted)
            return ask(target, method, request, unwanted=unwanted, **options)

        monkeypatch.setattr(calls, "ask", recorded)
        receiving = scene.receive("c", wait_ms=600_000)
        async with asyncio.timeout(60):
            while not waits:
                await asyncio.sleep(0)
            assert not waits[0].is_set()
            receiving.cancel()
            await waits[0].wait()

    play(scenario)
