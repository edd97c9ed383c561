"""Descriptions of queues whose partitions move to other leaders."""

import asyncio
from typing import Any

import pytest

from penstock.node.calls import BROKER, LeaderOf, Target
from penstock.node.calls.messages.queues import DescribedQueue
from penstock.types import NodeId
from tests.node.queues.test_waiting import Scene, play

FORMER = NodeId(99)


class FormerLeader:
    """A node that led the partition until it was asked for the queue."""

    def __init__(self) -> None:
        self.asked = 0

    async def call(self, node: NodeId, *request: Any) -> DescribedQueue:
        assert node == FORMER
        self.asked += 1
        return DescribedQueue(None)


def test_a_queue_whose_leader_has_just_moved_is_asked_of_the_next_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.open()
        overview, former = scene.node.queues.overview, FormerLeader()
        directory = scene.node.calls._directory
        find = directory.find

        def known(target: Target) -> NodeId:
            is_leader = isinstance(target, LeaderOf) and target.group in scene.partitions
            return FORMER if is_leader and not former.asked else find(target)

        monkeypatch.setattr(scene.node.calls, "_remote", former)
        monkeypatch.setattr(directory, "find", known)
        async with asyncio.timeout(60):
            report = await overview.report(caller=BROKER, max_consumers=10)
        assert former.asked == 1
        assert [one.leader for one in report.descriptions] == [scene.node.node_id]
        assert report.consumers_of("jobs").total == 1

    play(scenario)
