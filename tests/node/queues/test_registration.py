"""The group coordinator registers a queue before it begins; a queue in use never waits for that."""

import asyncio
from pathlib import Path

import pytest

from penstock.errors import ErrorCode, KafkaError
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.node import Node
from penstock.node.calls import BROKER, methods, retry
from penstock.node.calls.messages.groups import BeginShareGroup
from penstock.node.queues import QueueDriver, registration
from penstock.types import Caller
from tests.node.queues.test_start_position import GROUP, create, play, topic_id

LOOK_SECONDS = 0.01


class Coordinator:
    """Wraps the real coordinator, and can be unavailable."""

    def __init__(self, node: Node) -> None:
        self.is_there = asyncio.Event()
        self.asked = 0
        assert node.queues  # a late part: it serves the method from now on
        self._begin = node.calls._handlers[methods.BEGIN_SHARE_GROUP.number]
        node.calls._handlers[methods.BEGIN_SHARE_GROUP.number] = self.begin

    async def begin(self, caller: Caller, request: BeginShareGroup) -> None:
        self.asked += 1
        if not self.is_there.is_set():
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "there is no coordinator now")
        await self._begin(caller, request)


async def open_queue(node: Node, index: int = 0) -> QueueDriver:
    return await node.queues.manager.driver(GROUP, topic_id(node), node.leader("jobs", index))


async def noted(node: Node) -> None:
    async with asyncio.timeout(60):
        while not node.queues.share_groups.is_known(GROUP):
            await asyncio.sleep(LOOK_SECONDS)


async def commit(node: Node) -> None:
    """Makes the name that of a consumer group."""
    offset = OffsetToCommit(topic="jobs", partition=0, offset=0)
    result = await node.groups.commit(CommitRequest(group_id=GROUP, offsets=(offset,)))
    assert set(result.errors.values()) == {ErrorCode.NONE}


def test_a_queue_that_begins_without_a_coordinator_is_registered_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "WAIT_SECONDS", 0.05)

    async def act(node: Node) -> None:
        await create(node)
        coordinator = Coordinator(node)
        driver = await open_queue(node)
        assert driver.is_open
        assert not node.queues.share_groups.is_known(GROUP)
        coordinator.is_there.set()
        await noted(node)

    play(tmp_path, act)


def test_a_queue_that_was_not_registered_in_time_is_registered_while_it_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)

    async def act(node: Node) -> None:
        await create(node)
        coordinator = Coordinator(node)
        assert (await open_queue(node)).is_open
        assert coordinator.asked == 1, "the request itself asked as long as the retry policy says"
        assert not node.queues.share_groups.is_known(GROUP)
        coordinator.is_there.set()
        await node.queues.tidy()
        await noted(node)

    play(tmp_path, act)


def test_a_queue_with_stored_state_does_not_wait_for_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "WAIT_SECONDS", 3600.0)

    async def act(node: Node) -> None:
        await create(node)
        topic = node.metadata.state.topics["jobs"]
        await node.queues.overview.reset(GROUP, topic, 0, 0, caller=BROKER)
        Coordinator(node)
        async with asyncio.timeout(60):
            assert (await open_queue(node)).is_open

    play(tmp_path, act)


def test_one_request_registers_all_partitions_and_none_is_sent_while_the_queue_is_active(
    tmp_path: Path,
) -> None:
    async def act(node: Node) -> None:
        await create(node, partitions=5)
        coordinator = Coordinator(node)
        coordinator.is_there.set()
        await asyncio.gather(*(open_queue(node, index) for index in range(5)))
        await open_queue(node)
        await node.queues.tidy()
        assert coordinator.asked == 1

    play(tmp_path, act)


def test_a_queue_with_the_name_of_a_consumer_group_continues_and_no_new_one_begins(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await create(node, partitions=2)
        await commit(node)
        with pytest.raises(KafkaError) as refused:
            await open_queue(node)
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        assert GROUP in refused.value.message
        await node.queues.overview.reset(
            GROUP, node.metadata.state.topics["jobs"], 0, 0, caller=BROKER
        )  # as an older version did
        assert (await open_queue(node, 0)).is_open
        assert (await open_queue(node, 1)).is_open, "also on partitions that it has not been on so far"

    play(tmp_path, act)


def test_a_lost_registration_is_repeated_while_the_queue_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "FRESH_SECONDS", 0.0)

    async def act(node: Node) -> None:
        await create(node)
        await open_queue(node)
        host = await node.groups.cores.host_of(GROUP)
        host.carry_out(host.core.delete_share_group(host.now_ms, asyncio.Future(), GROUP))
        assert not node.queues.share_groups.is_known(GROUP)
        await node.queues.tidy()
        await noted(node)

    play(tmp_path, act)
