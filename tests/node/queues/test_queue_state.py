"""The stored state of queues: done stays done, also after a restart and under another driver; a replaced driver cannot
write."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock.batch import Record, build_batch, check_batch, iter_headers, read_records
from penstock.cluster import STATE_TOPIC, NewTopic, decisions
from penstock.config import Address, GroupSettings, NodeConfig
from penstock.errors import ErrorCode, KafkaError
from penstock.node import Node
from penstock.node.queues import Acknowledgement, QueueDriver
from penstock.node.queues import driver as drivers
from penstock.node.queues.failures import Failure
from penstock.node.replication.partition import Partition
from penstock.node.scheduling import retry_backoff
from penstock.node.scheduling.clock import Clock
from penstock.queue import QueueKey
from penstock.queue.values import AckKind, DeadLetterRange

GROUP, MEMBER = "workers", "member-1"
ACCEPT, RELEASE, REJECT = (bytes([kind]) for kind in (AckKind.ACCEPT, AckKind.RELEASE, AckKind.REJECT))
EVERYTHING = 1 << 20

Act = Callable[[Node], Coroutine[None, None, None]]


async def run(folder: Path, act: Act, clock: Clock | None = None) -> None:
    node = Node(
        NodeConfig(
            data_dir=str(folder),
            kafka=Address("127.0.0.1", 1),
            groups=GroupSettings(state_topic_partitions=1),
        ),
        clock=clock,
    )
    await node.start()
    try:
        await act(node)
    finally:
        await node.stop()


async def create(node: Node, name: str = "jobs") -> None:
    new_topic = NewTopic(name=name, topic_id=uuid4(), partitions=1)
    await node.metadata.change(lambda state: decisions.create_topic(state, new_topic, node.controller.rules))
    await node.settled()


async def publish(node: Node, values: list[bytes], **facts: object) -> None:
    rows = [Record(at, node.clock.wall_ms(), None, value, ()) for at, value in enumerate(values)]
    batch = memoryview(bytearray(build_batch(rows)))
    partition = node.leader("jobs", 0)
    committed = partition.committed_at(partition.append(batch, check_batch(batch)))
    if committed is not None:
        await committed


def topic_id(node: Node) -> UUID:
    return node.metadata.state.topics["jobs"].topic_id


async def queue(node: Node) -> QueueDriver:
    return await node.queues.manager.driver(GROUP, topic_id(node), node.leader("jobs", 0))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def taken(driver: QueueDriver, most: int = 100, member: str = MEMBER) -> list[int]:
    delivery = driver.deliver(member, most, EVERYTHING)
    return [offset for one in delivery.acquired for offset in range(one.first, one.last + 1)]


def test_after_a_restart_only_messages_that_were_not_accepted_are_delivered(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await create(node)
        driver = await queue(node)  # the queue begins with new records
        await publish(node, numbers(10))
        assert await taken(driver) == list(range(10))
        await driver.acknowledge(MEMBER, [Acknowledgement(2, 4, ACCEPT), Acknowledgement(8, 8, ACCEPT)])

    async def come_back(node: Node) -> None:
        assert await taken(await queue(node)) == [0, 1, 5, 6, 7, 9]

    asyncio.run(run(tmp_path, work))
    asyncio.run(run(tmp_path, come_back))


def test_an_acknowledgement_is_answered_only_when_it_is_on_the_disk(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        await publish(node, numbers(3))
        await taken(driver)
        state = node.partitions.get(STATE_TOPIC, 0)
        before = state.high_watermark
        answered = driver.acknowledge(MEMBER, [Acknowledgement(0, 2, ACCEPT)])
        assert not answered.done()
        await answered
        assert state.high_watermark > before

    asyncio.run(run(tmp_path, act))


def test_a_driver_that_was_replaced_cannot_write_any_more(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        old = await queue(node)
        await publish(node, numbers(3))
        await taken(old)
        await node.queues.manager._store.claim(old.key, old.term)  # another driver has claimed it
        with pytest.raises(KafkaError) as refused:
            await old.acknowledge(MEMBER, [Acknowledgement(0, 2, ACCEPT)])
        assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH
        assert await taken(await queue(node)) == [0, 1, 2], "the next one knows nothing of what was refused"

    asyncio.run(run(tmp_path, act))


def test_a_delayed_save_does_not_undo_a_later_one(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        store, key = node.queues.manager._store, QueueKey(GROUP, topic_id(node), 0)
        fence = (await store.claim(key, 5)).fence
        await store.save(key, fence, 2, [(b"\x00", b"newer")])
        with pytest.raises(KafkaError, match="term 5"):
            await store.save(key, fence, 1, [(b"\x00", b"older")])
        assert (await store.claim(key, 5)).parts == [(b"\x00", b"newer")]

    asyncio.run(run(tmp_path, act))


def test_a_claim_of_an_older_term_is_refused(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        store, key = node.queues.manager._store, QueueKey(GROUP, topic_id(node), 0)
        await store.claim(key, 7)
        with pytest.raises(KafkaError) as refused:
            await store.claim(key, 6)
        assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH

    asyncio.run(run(tmp_path, act))


def test_messages_of_a_disconnected_consumer_are_released_at_once(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        await publish(node, numbers(4))
        assert await taken(driver) == [0, 1, 2, 3]
        assert await taken(driver, member="member-2") == []
        driver.release(MEMBER)
        assert await taken(driver, member="member-2") == [0, 1, 2, 3]

    asyncio.run(run(tmp_path, act))


def test_a_rejected_record_is_copied_whole_with_the_reason(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        rows = [Record(0, 1234567890123, b"key", b"value", (("colour", b"red"),))]
        batch = memoryview(bytearray(build_batch(rows)))
        partition = node.leader("jobs", 0)
        committed = partition.committed_at(partition.append(batch, check_batch(batch)))
        if committed is not None:
            await committed
        await taken(driver)
        reason = {0: Failure("ValueError", "no such user")}
        await driver.acknowledge(MEMBER, [Acknowledgement(0, 0, REJECT)], reason)
        await driver.settled()
        assert driver.failures.get(0) is None
        letters = node.leader("jobs.dlq", 0)
        data = letters.read(letters.start_offset, EVERYTHING, end=letters.high_watermark, at_least_one=True)
        (letter,) = [record for at, _ in iter_headers(data) for record in read_records(data, at)]
        assert (letter.timestamp, letter.key, letter.value) == (1234567890123, b"key", b"value")
        headers = dict(letter.headers)
        assert headers.pop("penstock-dead-at")
        assert headers.pop("penstock-dead-first-failure") == headers.pop("penstock-dead-last-failure")
        assert headers == {
            "colour": b"red",
            "penstock-dead-reason": b"rejected",
            "penstock-dead-topic": b"jobs",
            "penstock-dead-partition": b"0",
            "penstock-dead-offset": b"0",
            "penstock-dead-group": b"workers",
            "penstock-dead-deliveries": b"1",
            "penstock-dead-worker": MEMBER.encode(),
            "penstock-dead-error-type": b"ValueError",
            "penstock-dead-error-text": b"no such user",
        }

    asyncio.run(run(tmp_path, act))


def test_no_more_is_leased_than_is_sent(tmp_path: Path) -> None:
    """Messages that did not fit into the response are available to others, and their delivery does not count."""

    async def act(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        for number in range(10):
            await publish(node, [b"%d" % number * 1000])
        delivery = driver.deliver(MEMBER, 10, 2500)
        assert len(delivery.records) <= 2500
        sent = sum(header.record_count for _, header in iter_headers(delivery.records))
        assert sent == sum(one.last - one.first + 1 for one in delivery.acquired) < 10
        rest = driver.deliver("member-2", 10, EVERYTHING)
        assert [one.deliveries for one in rest.acquired] == [1]
        assert rest.acquired[0].first == sent
        assert rest.acquired[-1].last == 9

    asyncio.run(run(tmp_path, act))


def test_a_failed_copy_of_a_dead_letter_is_retried_until_it_works_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_backoff, "FIRST_SECONDS", 0.0)
    failures = 5

    async def bury(driver: QueueDriver, letter: DeadLetterRange) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "no more topics")

    async def act(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        driver._write_dead_letter = bury
        await publish(node, numbers(1))
        await taken(driver)
        await driver.acknowledge(MEMBER, [Acknowledgement(0, 0, REJECT)])
        await driver.settled()
        assert (failures, driver.core.dying_count, driver.core.start_offset) == (0, 0, 1)

    asyncio.run(run(tmp_path, act))
    assert len([record for record in caplog.records if "no more topics" in record.getMessage()]) == 1


def test_dead_letters_of_a_damaged_batch_wait_until_it_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_backoff, "FIRST_SECONDS", 0.0)
    reads = 0

    async def act(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        await publish(node, numbers(1))
        await taken(driver)
        read = Partition.read

        def rotten_at_first(partition: Partition, *args: Any, **more: Any) -> bytes:
            nonlocal reads
            reads += 1
            data = read(partition, *args, **more)
            return data[:-1] + bytes([data[-1] ^ 1]) if reads <= 3 else data

        monkeypatch.setattr(Partition, "read", rotten_at_first)
        await driver.acknowledge(MEMBER, [Acknowledgement(0, 0, REJECT)])
        await driver.settled()
        assert (driver.core.dying_count, driver.core.start_offset) == (0, 1)
        letters = node.leader("jobs.dlq", 0)
        assert letters.high_watermark == 1

    asyncio.run(run(tmp_path, act))
    assert reads == 4
    assert any("crc" in record.getMessage() for record in caplog.records)


def test_retry_delays_survive_a_restart_and_the_unloading_of_an_idle_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "IDLE_SECONDS", -1.0)

    async def work(node: Node) -> None:
        await create(node)
        driver = await queue(node)
        await publish(node, numbers(3))
        await taken(driver)
        hour = Acknowledgement(0, 0, RELEASE, delay_ms=3_600_000)
        await driver.acknowledge(MEMBER, [hour, Acknowledgement(1, 1, ACCEPT)])
        await driver.acknowledge(MEMBER, [Acknowledgement(2, 2, RELEASE)])
        await node.queues.tidy()
        assert driver.ended is not None
        assert await taken(await queue(node)) == [2]

    async def come_back(node: Node) -> None:
        assert await taken(await queue(node)) == [2]

    asyncio.run(run(tmp_path, work))
    asyncio.run(run(tmp_path, come_back))


class SettableClock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now


def test_a_queue_that_opens_after_the_machines_clock_was_corrected_has_the_right_time(tmp_path: Path) -> None:
    """Delivery times are times of the wall clock: until the node restarts would be too late."""
    clock, day_ms = SettableClock(), 24 * 3_600_000

    async def act(node: Node) -> None:
        await create(node)
        before = await queue(node)
        clock.now += day_ms
        assert before.now_ms < clock.now, "its leases do not end early"
        before.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "its leader has changed"))
        assert clock.now <= (await queue(node)).now_ms < clock.now + day_ms

    asyncio.run(run(tmp_path, act, clock))
