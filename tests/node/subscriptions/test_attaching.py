"""Attaching waits for what passes in a moment, by the retry policy of requests between nodes, and for nothing else."""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import uuid4

import pytest

from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode, KafkaError, PenstockError, StorageError
from penstock.node import Node
from penstock.node.calls import retry
from penstock.node.subscriptions import Bounds, SubscribeRefused, SubscribeRequest
from penstock.node.subscriptions.manager import SubscriptionManager
from penstock.node.subscriptions.session import MOVED
from penstock.types import Isolation
from tests.node.subscriptions.test_subscriptions import FakeReader, PlainEncoder

ELECTION = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "an election")
BROKEN_DISK = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is broken")


class FailingReader(FakeReader):
    """Answers with these errors before it tells where a partition starts and ends."""

    def __init__(self, *problems: PenstockError) -> None:
        super().__init__()
        self.problems = list(problems)
        self.asked = 0

    async def bounds(
        self, topic: str, partitions: Sequence[int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> Mapping[int, Bounds]:
        self.asked += 1
        if self.problems:
            raise self.problems.pop(0)
        return await super().bounds(topic, partitions, isolation)


def attach(reader: FailingReader) -> None:
    """Attaches and detaches a subscriber."""

    async def run() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        await node.start()
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=1)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        try:
            subscriptions = SubscriptionManager(node, reader)
            request = SubscribeRequest(name="s", topics=("t",), encoder=PlainEncoder())
            session, _ = await subscriptions.attach(request)
            await subscriptions.detach(session)
        finally:
            await node.stop()

    asyncio.run(run())


def test_a_subscriber_that_meets_an_election_is_attached_after_it() -> None:
    reader = FailingReader(*[ELECTION] * 5)
    attach(reader)
    assert reader.asked == 6


@pytest.mark.parametrize("problem", [BROKEN_DISK, StorageError("the disk is full")])
def test_an_error_that_does_not_pass_refuses_the_subscriber_at_once(problem: PenstockError) -> None:
    reader = FailingReader(problem)
    with pytest.raises(SubscribeRefused) as refused:
        attach(reader)
    assert refused.value.code == MOVED
    assert str(problem) in refused.value.message
    assert reader.asked == 1


def test_a_subscriber_waits_for_an_election_as_long_as_any_request(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = FailingReader(*[ELECTION] * 1_000)
    monkeypatch.setattr(retry.CallRetry, "is_over", property(lambda _: reader.asked >= 3))
    with pytest.raises(SubscribeRefused, match="try again"):
        attach(reader)
    assert reader.asked == 3
