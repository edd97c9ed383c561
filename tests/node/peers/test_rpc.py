"""Calls between nodes: every one ends with an answer or an error."""

import asyncio
import logging
from collections.abc import Awaitable

import pytest

from penstock.config import Address, Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.node.peers import CallProblem, FrameDispatcher, PeerCallFailed, PeerHello, PeerNetwork, Rpc
from penstock.types import NodeId

from .peer_nodes import PATIENCE_SECONDS, hello, listen

ECHO, LATER, WRONG, BUG, UNKNOWN = 1, 2, 3, 4, 5
LONG_MS = PATIENCE_SECONDS * 1000


class RpcNode:
    """One node with calls only."""

    def __init__(self, node: int, most: int) -> None:
        self.listening = listen(Address("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listening.getsockname()[1])
        self.me: PeerHello = hello(node, port=self.address.port)
        self.dispatcher = FrameDispatcher()
        self.network = PeerNetwork(self.me, self.dispatcher, limits=Limits())
        self.rpc = Rpc(self.network, self.dispatcher, max_calls_per_peer=most)
        self.up = asyncio.Event()
        self.dispatcher.watch(up=lambda _: self.up.set())
        self.release = asyncio.Event()
        """Answers the waiting calls of LATER."""
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.rpc.handle(ECHO, self.echo)
        self.rpc.handle(LATER, self.later)
        self.rpc.handle(WRONG, self.wrong)
        self.rpc.handle(BUG, self.bug)

    def echo(self, sender: NodeId, question: memoryview) -> bytes:
        return b"%d asked " % sender + question

    async def later(self, sender: NodeId, question: memoryview) -> bytes:
        self.begun.release()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return bytes(question)

    async def wrong(self, sender: NodeId, question: memoryview) -> bytes:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, "ask node 3")

    def bug(self, sender: NodeId, question: memoryview) -> bytes:
        raise ZeroDivisionError("oh")


class RpcNodes:
    def __init__(self, most: int = 100) -> None:
        self.one, self.two = RpcNode(1, most), RpcNode(2, most)

    async def __aenter__(self) -> "RpcNodes":
        for rpc_node in (self.one, self.two):
            await rpc_node.network.start(rpc_node.listening)
        self.one.network.set_peers({NodeId(2): self.two.address})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.one.up.wait()
            await self.two.up.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        for rpc_node in (self.one, self.two):
            rpc_node.rpc.stop()
            await rpc_node.network.stop()

    def call(self, method: int, question: bytes = b"", timeout_ms: int = LONG_MS) -> Awaitable[memoryview]:
        return self.one.rpc.call(NodeId(2), method, question, timeout_ms)


async def test_a_call_is_answered() -> None:
    async with RpcNodes() as rpc_nodes:
        assert await rpc_nodes.call(ECHO, b"why") == b"1 asked why"
        assert (
            await rpc_nodes.two.rpc.call(NodeId(1), ECHO, b"x" * 500_000, LONG_MS)
            == b"2 asked " + b"x" * 500_000
        )


async def test_answers_need_not_come_in_order() -> None:
    async with RpcNodes() as rpc_nodes:
        slow = asyncio.ensure_future(rpc_nodes.call(LATER, b"slow"))
        assert await rpc_nodes.call(ECHO, b"quick") == b"1 asked quick"
        assert not slow.done()
        rpc_nodes.two.release.set()
        assert await slow == b"slow"


async def test_a_handlers_kafka_error_is_raised_where_the_call_was_made() -> None:
    async with RpcNodes() as rpc_nodes:
        with pytest.raises(KafkaError, match="ask node 3") as caught:
            await rpc_nodes.call(WRONG)
        assert caught.value.code is ErrorCode.NOT_CONTROLLER


async def test_a_bug_in_a_handler_is_logged_there_and_raised_here(caplog: pytest.LogCaptureFixture) -> None:
    async with RpcNodes() as rpc_nodes:
        with pytest.raises(PeerCallFailed, match="ZeroDivisionError") as caught:
            await rpc_nodes.call(BUG)
        assert caught.value.problem is CallProblem.HANDLER_FAILED
        assert [
            record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR
        ] == [True]
        assert await rpc_nodes.call(ECHO) == b"1 asked "


async def test_an_unknown_method_is_an_error() -> None:
    async with RpcNodes() as rpc_nodes:
        with pytest.raises(PeerCallFailed, match="no method 5") as caught:
            await rpc_nodes.call(UNKNOWN)
        assert caught.value.problem is CallProblem.UNKNOWN_METHOD


async def test_a_late_answer_is_a_timeout_and_does_no_harm() -> None:
    async with RpcNodes() as rpc_nodes:
        with pytest.raises(PeerCallFailed, match="within 1 ms") as caught:
            await rpc_nodes.call(LATER, timeout_ms=1)
        assert caught.value.problem is CallProblem.TIMED_OUT
        rpc_nodes.two.release.set()
        assert await rpc_nodes.call(ECHO, b"after") == b"1 asked after"


async def test_calls_fail_at_once_when_the_peer_disconnects_and_their_handlers_are_cancelled() -> None:
    async with RpcNodes() as rpc_nodes:
        waiting = [asyncio.ensure_future(rpc_nodes.call(LATER)) for _ in range(3)]
        for _ in waiting:
            await rpc_nodes.two.begun.acquire()
        await rpc_nodes.one.network.stop()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [getattr(outcome, "problem", None) for outcome in outcomes] == [CallProblem.PEER_LOST] * 3
        async with asyncio.timeout(PATIENCE_SECONDS):
            await rpc_nodes.two.cancelled.wait()
        with pytest.raises(PeerCallFailed) as caught:
            await rpc_nodes.call(ECHO)
        assert caught.value.problem is CallProblem.NOT_CONNECTED


async def test_unanswered_calls_to_one_peer_are_limited() -> None:
    async with RpcNodes(most=2) as rpc_nodes:
        waiting = [asyncio.ensure_future(rpc_nodes.call(LATER)) for _ in range(2)]
        for _ in waiting:
            await rpc_nodes.two.begun.acquire()
        with pytest.raises(PeerCallFailed, match="2 calls to node 2") as caught:
            await rpc_nodes.call(ECHO)
        assert caught.value.problem is CallProblem.TOO_MANY_CALLS
        rpc_nodes.two.release.set()
        await asyncio.gather(*waiting)
        assert await rpc_nodes.call(ECHO) == b"1 asked "


async def test_the_answering_side_has_a_limit_of_its_own() -> None:
    async with RpcNodes(most=2) as rpc_nodes:
        rpc_nodes.one.rpc._most = 10  # a caller that ignores the limit
        waiting = [asyncio.ensure_future(rpc_nodes.call(LATER)) for _ in range(2)]
        for _ in waiting:
            await rpc_nodes.two.begun.acquire()
        with pytest.raises(PeerCallFailed, match="2 calls are being handled"):
            await rpc_nodes.call(ECHO)
        rpc_nodes.two.release.set()
        await asyncio.gather(*waiting)


async def test_a_cancelled_call_counts_until_it_is_answered() -> None:
    async with RpcNodes(most=2) as rpc_nodes:
        ended = asyncio.Semaphore(0)
        for _ in range(2):
            rpc_nodes.one.rpc.start(NodeId(2), LATER, b"", LONG_MS, ended.release).cancel()
            await rpc_nodes.two.begun.acquire()
        with pytest.raises(PeerCallFailed, match="2 calls to node 2"):
            await rpc_nodes.call(ECHO)
        rpc_nodes.two.release.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(2):
                await ended.acquire()
        assert await rpc_nodes.call(ECHO) == b"1 asked "


async def test_a_cancelled_call_counts_no_longer_than_its_own_time() -> None:
    async with RpcNodes(most=1) as rpc_nodes:
        ended = asyncio.Event()
        rpc_nodes.one.rpc.start(NodeId(2), LATER, b"", 1, ended.set).cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()
        with pytest.raises(PeerCallFailed, match="1 calls are being handled"):
            await rpc_nodes.call(ECHO)


async def test_a_cancelled_call_ends_with_the_connection() -> None:
    async with RpcNodes() as rpc_nodes:
        ended = asyncio.Event()
        rpc_nodes.one.rpc.start(NodeId(2), LATER, b"", LONG_MS, ended.set).cancel()
        await rpc_nodes.two.begun.acquire()
        assert not ended.is_set()
        await rpc_nodes.one.network.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()


async def test_a_cancelled_call_ends_at_the_other_node_if_it_may() -> None:
    async with RpcNodes(most=1) as rpc_nodes:
        for _ in range(3):
            ended = asyncio.Event()
            call = rpc_nodes.one.rpc.start(NodeId(2), LATER, b"", LONG_MS, ended.set, may_cancel=True)
            await rpc_nodes.two.begun.acquire()
            call.cancel()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await rpc_nodes.two.cancelled.wait()
                await ended.wait()
            rpc_nodes.two.cancelled.clear()
        assert await rpc_nodes.call(ECHO) == b"1 asked "


async def test_cancelling_a_call_that_is_answered_already_does_nothing() -> None:
    async with RpcNodes() as rpc_nodes:
        rpc_nodes.two.release.set()
        ended = asyncio.Event()
        call = rpc_nodes.one.rpc.start(NodeId(2), LATER, b"", LONG_MS, ended.set, may_cancel=True)
        await rpc_nodes.two.begun.acquire()
        for _ in range(5):  # the answer is on its way
            await asyncio.sleep(0)
        call.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()
        assert await rpc_nodes.call(ECHO) == b"1 asked "


async def test_a_call_whose_time_is_over_ends_at_the_other_node_if_it_may() -> None:
    async with RpcNodes(most=1) as rpc_nodes:
        call = rpc_nodes.one.rpc.start(NodeId(2), LATER, b"", 1, may_cancel=True)
        with pytest.raises(PeerCallFailed, match="within 1 ms"):
            await call
        assert await rpc_nodes.call(ECHO) == b"1 asked ", "frames come in order"
