"""Settlements in transactions on one node: restarts, compaction, refused producers."""

import asyncio
from pathlib import Path

import pytest

from penstock.batch import EndMarker
from penstock.cluster import STATE_TOPIC, topics
from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node
from penstock.node.queues import Acknowledgement, QueueDriver
from penstock.node.queues.failures import NO_FAILURES
from penstock.node.queues.values import NotLeased, ProducerTransaction
from penstock.queue.state_records import settlement_suffix
from penstock.transactions import Dialect, EndRequest, InitRequest, Producer
from penstock.types import ANONYMOUS
from tests.log.tools import compact
from tests.node.queues.test_queue_state import ACCEPT, MEMBER, create, numbers, publish, queue, run, taken

ID = "billing"


async def begin(node: Node) -> Producer:
    result = await node.transactions.init_producer_id(InitRequest(transactional_id=ID, timeout_ms=60_000))
    assert result.error is ErrorCode.NONE
    return result.producer


async def end(node: Node, producer: Producer, *, commit: bool) -> Producer:
    """The producer of the next transaction."""
    request = EndRequest(transactional_id=ID, producer=producer, commit=commit, dialect=Dialect.V2)
    result = await node.transactions.end(request)
    assert result.error is ErrorCode.NONE
    return result.producer


async def settle(driver: QueueDriver, producer: Producer, first: int, last: int) -> None:
    acks = [Acknowledgement(first, last, ACCEPT)]
    transaction = ProducerTransaction(ID, *producer)
    await driver.settle_in_transaction(MEMBER, acks, NO_FAILURES, transaction, caller=ANONYMOUS)


async def until_released(driver: QueueDriver) -> None:
    """No transaction holds a message any more."""
    async with asyncio.timeout(60):
        while driver.core.held_by_transactions:
            await asyncio.sleep(0.005)
        await driver.settled()


async def fill(node: Node, count: int = 5) -> QueueDriver:
    await create(node)
    driver = await queue(node)
    await publish(node, numbers(count))
    assert await taken(driver) == list(range(count))
    return driver


@pytest.mark.parametrize("commit", [True, False])
def test_an_open_settlement_survives_a_restart(tmp_path: Path, commit: bool) -> None:
    kept: list[Producer] = []

    async def work(node: Node) -> None:
        driver = await fill(node)
        kept.append(await begin(node))
        await settle(driver, kept[0], 1, 3)

    async def come_back(node: Node) -> None:
        driver = await queue(node)
        assert await taken(driver, member="other") == [0, 4]
        await end(node, kept[0], commit=commit)
        await until_released(driver)
        assert await taken(driver, member="other") == ([] if commit else [1, 2, 3])

    asyncio.run(run(tmp_path, work))
    asyncio.run(run(tmp_path, come_back))


def test_a_settlement_that_was_committed_without_a_driver_is_applied_when_the_queue_opens(
    tmp_path: Path,
) -> None:
    async def work(node: Node) -> None:
        driver = await fill(node)
        producer = await begin(node)
        await settle(driver, producer, 1, 3)
        driver.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its leader has changed"))
        await end(node, producer, commit=True)
        state = node.queues.state.cores.get(0).core
        async with asyncio.timeout(60):
            while state.open_settlements(driver.key):
                await asyncio.sleep(0.005)
        assert await taken(await queue(node)) == [0, 4]

    asyncio.run(run(tmp_path, work))


def test_done_stays_done_after_compaction_of_the_state_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {
        "cleanup.policy": "compact",
        "internal.segment.bytes": "1000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    monkeypatch.setitem(topics.INTERNAL_CONFIGS, STATE_TOPIC, small)
    kept: list[Producer] = []

    async def work(node: Node) -> None:
        driver = await fill(node, 16)
        producer = await begin(node)
        for offset in range(14):
            await settle(driver, producer, offset, offset)
            producer = await end(node, producer, commit=offset % 3 > 0)
            await until_released(driver)
        await settle(driver, producer, 15, 15)
        assert compact(node.leader(STATE_TOPIC, 0).log, node.clock.wall_ms())
        kept.append(producer)

    async def come_back(node: Node) -> None:
        driver = await queue(node)
        assert await taken(driver) == [*range(0, 14, 3), 14], "15 is held by an open transaction"
        await end(node, kept[0], commit=False)
        await until_released(driver)
        assert await taken(driver) == [15]

    asyncio.run(run(tmp_path, work))
    asyncio.run(run(tmp_path, come_back))


def test_only_the_messages_that_the_consumer_holds_are_settled(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        driver = await fill(node)
        producer = await begin(node)
        await driver.acknowledge(MEMBER, [Acknowledgement(2, 2, ACCEPT)])
        acks = [Acknowledgement(0, 1, ACCEPT), Acknowledgement(2, 3, ACCEPT)]
        transaction = ProducerTransaction(ID, *producer)
        with pytest.raises(NotLeased) as refused:
            await driver.settle_in_transaction(MEMBER, acks, NO_FAILURES, transaction, caller=ANONYMOUS)
        assert refused.value.ranges == [(2, 3)]
        await end(node, producer, commit=True)
        await until_released(driver)
        driver.release(MEMBER)
        assert await taken(driver) == [3, 4]

    asyncio.run(run(tmp_path, work))


def test_a_fenced_producer_settles_nothing_and_the_messages_are_available_again(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        driver = await fill(node)
        zombie = await begin(node)
        await begin(node)
        with pytest.raises(KafkaError) as refused:
            await settle(driver, zombie, 0, 2)
        assert refused.value.code is ErrorCode.PRODUCER_FENCED
        assert await taken(driver, member="other") == [0, 1, 2]

    asyncio.run(run(tmp_path, work))


def test_a_write_that_the_log_refuses_does_not_reload_the_state(tmp_path: Path) -> None:
    """A marker with a higher epoch may come between the coordinator's answer and the write."""

    async def work(node: Node) -> None:
        driver = await fill(node)
        state = node.queues.state
        fence = driver._saver._fence
        host = state.cores.get(0)
        state.cores.write_marker(0, EndMarker(False, 0), Producer(7, 5))
        with pytest.raises(KafkaError):
            await state.settle(driver.key, fence, Producer(7, 0), settlement_suffix(1, 1), b"")
        assert state.cores.get(0) is host
        await driver.acknowledge(MEMBER, [Acknowledgement(0, 0, ACCEPT)])

    asyncio.run(run(tmp_path, work))
