"""Parts that only some clients need are made when they are first needed, and miss nothing by that."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.cluster import decisions
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode
from penstock.groups import CommitRequest, OffsetToCommit
from penstock.late_loading import late
from penstock.node import Node
from penstock.node.calls import BROKER, AtNode, methods
from penstock.node.calls.messages.cliques import DescribeClique
from penstock.node.late_parts import LatePart, LateParts, late_part
from penstock.node.parts import Part
from penstock.types import TopicPartition

LATE = {name for kind in (LateParts, Node) for name, value in vars(kind).items() if isinstance(value, late)}
PATIENCE_SECONDS = 20.0
PARTITION = TopicPartition("t", 0)


def play(scenario: Callable[[Node], Awaitable[None]], folder: Path | None = None) -> None:
    async def run() -> None:
        config = NodeConfig(
            memory=folder is None, data_dir=str(folder or ""), http=None, kafka=Address("127.0.0.1", 1)
        )
        node = Node(config)
        await node.start()
        try:
            await scenario(node)
        finally:
            await node.stop()

    asyncio.run(run())


def made(node: Node) -> set[str]:
    return {name for name in LATE if node.is_made(name)}


async def commit(node: Node, offset: int) -> None:
    """Commits as a consumer without a group's members does, when the coordinator has loaded."""
    request = CommitRequest(group_id="g", offsets=(OffsetToCommit(topic="t", partition=0, offset=offset),))
    while True:
        errors = (await node.groups.commit(request)).errors
        if errors[PARTITION] != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert errors == {PARTITION: ErrorCode.NONE}
            return
        await asyncio.sleep(0)


def test_a_node_starts_and_stops_without_them() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topic("t", caller=BROKER)
        assert made(node) == set()

    play(scenario)


def test_each_is_made_once() -> None:
    async def scenario(node: Node) -> None:
        node.make_all()
        before = {name: getattr(node, name) for name in LATE}
        node.make_all()
        assert made(node) == LATE
        assert all(getattr(node, name) is part for name, part in before.items())

    play(scenario)


def test_those_that_receive_events_are_in_the_list_of_parts() -> None:
    async def scenario(node: Node) -> None:
        node.make_all()
        parts = {name for name in LATE if isinstance(getattr(node, name), Part)}
        assert {"groups", "queues"} < parts < LATE
        assert {part._name for part in node._list_parts() if isinstance(part, LatePart)} == parts

    play(scenario)


def test_a_restarted_node_makes_those_whose_state_it_leads(tmp_path: Path) -> None:
    async def first(node: Node) -> None:
        await node.controller.create_topic("t", caller=BROKER)
        await commit(node, 7)

    async def second(node: Node) -> None:
        await node.settled()
        assert made(node) == {"groups"}

    play(first, tmp_path)
    play(second, tmp_path)


def test_a_request_that_no_part_serves_yet_makes_them() -> None:
    async def scenario(node: Node) -> None:
        target, request = AtNode(node.node_id), DescribeClique("c")
        answered = node.calls.ask(target, methods.DESCRIBE_CLIQUE, request, caller=BROKER)
        [error] = await asyncio.gather(answered, return_exceptions=True)
        assert "does not serve" not in str(error)
        assert made(node) == LATE

    play(scenario)


def test_groups_that_are_made_late_hear_of_the_deletion_of_earlier_topics() -> None:
    async def scenario(node: Node) -> None:
        await node.controller.create_topic("t", caller=BROKER)
        await commit(node, 7)
        assert [group.group_id for group in node.groups.list((), ())] == ["g"]
        await node.metadata.change(lambda state: decisions.delete_topic(state, "t"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while list(node.groups.list((), ())):
                await asyncio.sleep(0)

    play(scenario)


def test_one_that_would_have_to_be_started_is_refused() -> None:
    class Started(Part):
        async def start(self) -> None: ...

    class More(LateParts):
        @late_part()
        def silent(self) -> Part:
            return Part()

        @late_part()
        def started(self) -> Started:
            return Started()

    parts = More()
    assert isinstance(parts.silent, Part)
    with pytest.raises(AssertionError, match="its start is not called"):
        parts.make("started")
