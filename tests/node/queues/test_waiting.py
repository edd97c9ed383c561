"""Consumers that wait for messages: as many are woken as there are messages, and none in vain."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch
from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.errors import KafkaError
from penstock.node import Node
from penstock.node.calls import BROKER, AtNode, methods
from penstock.node.calls.messages.queues import CancelReceive, ReceivedBatch, ReceiveRequest
from penstock.node.queues import local_receiver, router
from penstock.node.queues.driver import QueueDriver
from penstock.node.queues.values import Consumer, LeasedBatches
from penstock.node.queues.waiting_consumers import WaitingConsumers, woken
from penstock.types import GroupId


class FakeDriver:
    """A driver at which consumers wait, without a queue."""

    def __init__(self) -> None:
        self.waiting = WaitingConsumers(self)
        self.passed_on = 0

    def wait(self, consumer: Consumer, member: str) -> None:
        self.waiting.add(consumer, member)

    def forget(self, consumer: Consumer) -> None:
        self.waiting.remove(consumer)

    def pass_on(self) -> None:
        self.passed_on += 1


def test_the_first_consumers_are_woken_and_no_more_than_asked_for() -> None:
    driver, consumers = FakeDriver(), [Consumer() for _ in range(5)]
    for consumer in consumers:
        driver.wait(consumer, "a")
    driver.waiting.wake(2)
    assert [consumer.is_set() for consumer in consumers] == [True, True, False, False, False]
    assert len(driver.waiting) == 3


def test_a_consumer_knows_which_drivers_have_messages_for_it() -> None:
    async def scenario() -> None:
        drivers = [FakeDriver() for _ in range(3)]
        consumer = Consumer()
        waiting = asyncio.ensure_future(woken(consumer, drivers, "a", far_away()))
        await asyncio.sleep(0)
        drivers[1].waiting.wake(1)
        assert await waiting
        assert list(consumer.woken_by) == [drivers[1]]
        assert [len(driver.waiting) for driver in drivers] == [0, 0, 0]

    asyncio.run(scenario())


def far_away() -> float:
    return asyncio.get_running_loop().time() + 600


def test_a_consumer_that_is_woken_when_its_time_is_over_still_asks() -> None:
    """Otherwise the message for which it was woken would wait for the next event, although others wait for it."""

    async def scenario() -> bool:
        driver, consumer = FakeDriver(), Consumer()
        loop = asyncio.get_running_loop()
        waiting = asyncio.ensure_future(woken(consumer, [driver], "a", loop.time()))
        await asyncio.sleep(0)
        driver.waiting.wake(1)
        return await waiting

    assert asyncio.run(scenario())


def test_a_consumer_that_is_cancelled_when_it_was_woken_passes_that_on() -> None:
    async def scenario() -> list[int]:
        drivers = [FakeDriver(), FakeDriver()]
        waiting = asyncio.ensure_future(woken(Consumer(), drivers, "a", far_away()))
        await asyncio.sleep(0)
        drivers[1].waiting.wake(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return [driver.passed_on for driver in drivers]

    assert asyncio.run(scenario()) == [0, 1]


# --- on a node


class Scene:
    """A node with a queue."""

    def __init__(self, node: Node, partitions: list[GroupId]) -> None:
        self.node = node
        self.partitions = partitions

    def publish(self, index: int) -> None:
        batch = memoryview(bytearray(build_batch([Record(0, 0, None, b"x", ())])))
        self.node.leader("jobs", index).append(batch, check_batch(batch))

    def receive(self, consumer: str, wait_ms: int = 60_000) -> "asyncio.Task[list[ReceivedBatch]]":
        request = ReceiveRequest("jobs", consumer, "", self.partitions, 1, 1_000_000, wait_ms, False)
        return asyncio.ensure_future(self.node.queues.router.receive(request, caller=BROKER))

    async def open(self) -> None:
        """Opens the queue on every partition; a busy machine takes more than one request for that."""
        while sum(driver.is_open for driver in self.node.queues.manager.drivers()) < len(self.partitions):
            with suppress(KafkaError):
                await self.receive("opens them", wait_ms=0)

    async def until_waiting(self, count: int) -> None:
        while sum(len(driver._consumers) for driver in self.node.queues.manager.drivers()) < count:
            await asyncio.sleep(0)


def play(scenario: Callable[[Scene], Awaitable[None]], partitions: int = 1) -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        new_topic = NewTopic(name="jobs", topic_id=uuid4(), partitions=partitions)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        try:
            await scenario(Scene(node, [GroupId(new_topic.topic_id, index) for index in range(partitions)]))
        finally:
            await node.stop()

    asyncio.run(run())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The member and the partition of each request to a driver."""
    found: list[tuple[str, int]] = []
    deliver = QueueDriver.deliver

    def noting(self: QueueDriver, member: str, *arguments: int, **options: object) -> LeasedBatches:
        found.append((member, self.partition.name.partition))
        return deliver(self, member, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueDriver, "deliver", noting)
    return found


def test_one_message_wakes_one_of_many_waiting_requests(asked: list[tuple[str, int]]) -> None:
    async def scenario(scene: Scene) -> None:
        waiting = [scene.receive(f"c{number}") for number in range(50)]
        await scene.until_waiting(50)
        asked.clear()
        scene.publish(0)
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert len(asked) == 1
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)

    play(scenario)


def test_a_woken_request_asks_only_the_partition_that_has_messages(asked: list[tuple[str, int]]) -> None:
    async def scenario(scene: Scene) -> None:
        waiting = scene.receive("c")
        await scene.until_waiting(8)
        asked.clear()
        scene.publish(5)
        [received] = await waiting
        assert received.partition.partition == 5
        assert asked == [("c", 5)]

    play(scenario, partitions=8)


def test_a_message_whose_waiting_request_is_cancelled_goes_to_the_next_one() -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.receive("first"), scene.receive("second")
        await scene.until_waiting(2)
        [driver] = scene.node.queues.manager.drivers()
        scene.publish(0)
        while len(driver._consumers) == 2:
            await asyncio.sleep(0)
        first.cancel()
        [received] = await second
        assert received.count == 1

    play(scenario)


def test_a_request_to_this_node_alone_is_not_repeated_while_it_waits(
    asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "WAIT_MS_MAX", 1)

    async def scenario(scene: Scene) -> None:
        assert await scene.receive("c", wait_ms=500) == []
        assert len(asked) < 50  # once, and when the queue changed; if it were repeated, hundreds of times

    play(scenario)


def test_many_partitions_are_asked_in_several_turns_of_the_event_loop(
    asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_receiver, "PARTITIONS_PER_TURN", 5)

    async def scenario(scene: Scene) -> None:
        await scene.open()
        asked.clear()
        receiving, steps = scene.receive("c", wait_ms=0), [0]
        while not receiving.done():
            await asyncio.sleep(0)
            steps.append(len(asked))
        assert len(asked) == 20
        assert max(after - before for before, after in pairwise(steps)) <= 5

    play(scenario, partitions=20)


def test_the_ends_of_many_requests_that_wait_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "SPREAD_FROM", 4)

    async def scenario(scene: Scene) -> None:
        queues = scene.node.queues.router
        request = ReceiveRequest("jobs", "c", "", scene.partitions, 1, 1_000, 20_000, False)
        assert [queues._wait_seconds(request) for _ in range(3)] == [20.0, 20.0, 20.0]
        waiting = [scene.receive(f"c{number}") for number in range(4)]
        await scene.until_waiting(4)
        spread = {queues._wait_seconds(request) for _ in range(4)}
        assert spread == {20.0, 18.75, 17.5, 16.25}
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)

    play(scenario)


def test_a_receive_that_is_cancelled_while_its_queue_is_looked_up_leases_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue that is just being opened takes up to seconds."""

    async def scenario(scene: Scene) -> None:
        await scene.open()
        scene.publish(0)
        node, found = scene.node, asyncio.Event()
        local = node.queues.router.local.receiver
        find_drivers = local._drivers

        async def find_late(request: ReceiveRequest) -> Any:
            await found.wait()
            return await find_drivers(request)

        monkeypatch.setattr(local, "_drivers", find_late)
        request = ReceiveRequest("jobs", "gone", "", scene.partitions, 1, 1_000_000, 60_000, False, wait_id=7)
        target = AtNode(node.node_id)
        asked = asyncio.ensure_future(node.calls.ask(target, methods.RECEIVE, request, caller=BROKER))
        while not local.waiting_count:
            await asyncio.sleep(0)
        await node.calls.ask(target, methods.CANCEL_RECEIVE, CancelReceive(7), caller=BROKER)
        found.set()
        assert await asked == []
        assert [one.count for one in await scene.receive("next", wait_ms=0)] == [1]

    play(scenario)
