"""The wait for the leaders of new partitions ends when there is nothing left to wait for."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.node.calls import BROKER, methods
from penstock.node.calls.messages.controller import AwaitLeaders, NewPartitions
from penstock.node.metadata import new_partitions
from penstock.node.metadata.new_partitions import NewPartitionWaits

TOPIC_ID = UUID(int=5)


class SilentNodes:
    """The nodes do not answer; this node learns of changes."""

    def __init__(self) -> None:
        self.handlers: dict[object, Any] = {}
        self.asked = asyncio.Event()
        self.changed = asyncio.Event()

    def serve(self, method: object, handler: object) -> None:
        self.handlers[method] = handler

    async def ask_nodes(self, *request: object, caller: object) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    async def next_change(self) -> None:
        await self.changed.wait()
        self.changed.clear()


class OneTopic:
    """A cluster's state with one topic without a leader, which can be deleted."""

    def __init__(self) -> None:
        self.topics = {"t": SimpleNamespace(topic_id=TOPIC_ID, partitions=1)}

    def topic_by_id(self, topic_id: UUID) -> object:
        return self.topics.get("t")


def waits_of(calls: SilentNodes, state: OneTopic) -> NewPartitionWaits:
    view = SimpleNamespace(brokers=lambda: [SimpleNamespace(node_id=2)], partition=lambda *_: None)
    return NewPartitionWaits(
        state=cast(Any, state), view=cast(Any, view), calls=cast(Any, calls), is_alone=False
    )


def test_a_topic_that_is_deleted_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_partitions, "LEADERS_WITHIN_SECONDS", 3600.0)

    async def scenario() -> None:
        calls, state = SilentNodes(), OneTopic()
        waiting = asyncio.ensure_future(waits_of(calls, state).known_everywhere(["t"], 3600.0))
        await calls.asked.wait()
        state.topics.clear()
        calls.changed.set()
        await asyncio.wait_for(waiting, 30)

    asyncio.run(scenario())


def test_another_node_cannot_make_this_one_wait_for_longer_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(new_partitions, "LEADERS_WITHIN_SECONDS", 0.01)

    async def scenario() -> None:
        calls, state = SilentNodes(), OneTopic()
        waits_of(calls, state)
        state.topics.clear()
        request = AwaitLeaders([NewPartitions(TOPIC_ID, 1)], 10**12)
        await asyncio.wait_for(calls.handlers[methods.AWAIT_LEADERS](BROKER, request), 30)

    asyncio.run(scenario())
