"""Markers on their way from a coordinator to the leaders of partitions: they are sent until they are written."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from penstock.cluster import TRANSACTIONS_TOPIC
from penstock.config import Address, NodeConfig, TransactionSettings
from penstock.errors import ErrorCode
from penstock.node import Node, Partition
from penstock.node.calls import BROKER, AtNode, methods
from penstock.node.calls.messages.transactions import Marker, WriteMarkers, WrittenMarkers
from penstock.node.replication.leaders import Leadership
from penstock.node.scheduling import retry_backoff
from penstock.node.transactions.led_partitions import LedPartitions
from penstock.node.transactions.marker_sender import MarkerSender
from penstock.transactions import (
    AddRequest,
    Dialect,
    EndRequest,
    InitRequest,
    Producer,
    TransactionCoordinator,
    TransactionState,
)
from penstock.types import Caller

ID = "payments"
PATIENCE_SECONDS = 60

Act = Callable[[Node, Partition, Producer], Coroutine[None, None, None]]


def play(act: Act) -> None:
    """A node with a topic, and a producer with a transaction on it."""

    async def run() -> None:
        settings = TransactionSettings(topic_partitions=1)
        config = NodeConfig(memory=True, http=None, kafka=Address("127.0.0.1", 1), transactions=settings)
        node = Node(config)
        await node.start()
        try:
            await node.controller.create_topic("t", caller=BROKER)
            await node.settled()
            partition = node.leader("t", 0)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await act(node, partition, await begin(node, partition))
        finally:
            await node.stop()

    asyncio.run(run())


async def begin(node: Node, partition: Partition) -> Producer:
    begun = await node.transactions.init_producer_id(InitRequest(transactional_id=ID, timeout_ms=60_000))
    request = AddRequest(
        transactional_id=ID,
        producer=begun.producer,
        partitions=frozenset({partition.name}),
        dialect=Dialect.V1,
    )
    assert await node.transactions.add_partitions(request) is ErrorCode.NONE
    return begun.producer


async def commit(node: Node, producer: Producer) -> None:
    request = EndRequest(transactional_id=ID, producer=producer, commit=True, dialect=Dialect.V1)
    assert (await node.transactions.end(request)).error is ErrorCode.NONE


def state(node: Node) -> TransactionState:
    found = node.transactions.cores.loaded()[0].core.describe(ID)
    assert found is not None
    return found.state


class Answers:
    """The answers of leaders, as the senders of markers get them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._codes: asyncio.Queue[int] = asyncio.Queue()
        write = LedPartitions._write_markers

        async def noted(led: LedPartitions, caller: Caller, request: WriteMarkers) -> WrittenMarkers:
            written = await write(led, caller, request)
            for code in written.codes:
                self._codes.put_nowait(code)
            return written

        monkeypatch.setattr(LedPartitions, "_write_markers", noted)

    async def next(self) -> int:
        return await self._codes.get()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_a_marker_is_sent_again_until_the_coordinators_node_knows_the_leaders_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers(monkeypatch)

    async def act(node: Node, partition: Partition, producer: Producer) -> None:
        rows = node.leaders._rows
        known = rows[partition.group]
        rows[partition.group] = Leadership(known.leader, known.term - 1, known.in_sync)
        await commit(node, producer)
        for _ in range(3):
            assert await answers.next() == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert state(node) is TransactionState.PREPARE_COMMIT
        assert node.leaders.learn(partition.group, known)
        await until(lambda: state(node) is TransactionState.COMPLETE_COMMIT)
        assert partition.high_watermark == 1

    play(act)


def test_a_coordinator_that_another_one_has_replaced_tries_until_it_hears_of_it_and_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only its own partition can tell it so: the partitions of a transaction know it by the markers of its
    successor."""
    answers = Answers(monkeypatch)

    async def act(node: Node, partition: Partition, producer: Producer) -> None:
        host = node.transactions.cores.loaded()[0]
        later = Marker(partition.group, partition.term, *producer, False, host.term + 1, 1)
        request = WriteMarkers([later])
        await node.calls.ask(AtNode(node.node_id), methods.WRITE_MARKERS, request, caller=BROKER)
        assert await answers.next() == ErrorCode.NONE
        await commit(node, producer)
        for _ in range(3):
            assert await answers.next() == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert state(node) is TransactionState.PREPARE_COMMIT
        coordinator = node.leader(TRANSACTIONS_TOPIC, 0)
        coordinator.leads = False
        node.transactions.role_changed(coordinator)
        assert host.is_stopped
        await until(lambda: not node.transactions._markers._tasks)
        assert partition.high_watermark == 1

    play(act)


def test_markers_are_sent_again_after_a_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry_backoff, "FIRST_SECONDS", 0.0)
    steps = [(MarkerSender, "_marker"), (MarkerSender, "_write"), (TransactionCoordinator, "markers_written")]
    for owner, step in steps:
        monkeypatch.setattr(owner, step, failing_once(getattr(owner, step)))

    async def act(node: Node, partition: Partition, producer: Producer) -> None:
        await commit(node, producer)
        await until(lambda: state(node) is TransactionState.COMPLETE_COMMIT)

    play(act)
    bugs = [line for line in caplog.records if line.exc_info is not None]
    assert len(bugs) == len(steps)
    assert all(line.getMessage().endswith("; the rest goes on") for line in bugs)


def failing_once(method: Callable[..., object]) -> Callable[..., object]:
    has_failed = False

    def call(*arguments: object) -> object:
        nonlocal has_failed
        if not has_failed:
            has_failed = True
            raise ZeroDivisionError
        return method(*arguments)

    return call
