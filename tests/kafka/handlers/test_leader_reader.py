"""A subscriber that attaches during an election gets its answers from the next leader."""

import asyncio
from uuid import uuid4

from penstock.cluster import NewTopic, decisions
from penstock.config import Address, NodeConfig
from penstock.errors import ErrorCode, NotExecuted
from penstock.kafka.handlers.inner_client import InnerClient, KafkaCalls
from penstock.kafka.handlers.leader_reader import LeaderReader
from penstock.node import Node
from penstock.node.calls import BROKER, methods
from penstock.node.calls.messages.kafka import KafkaRequest, KafkaResponse
from penstock.node.calls.methods import Method
from penstock.types import Caller


def fail_first(node: Node, method: Method[KafkaRequest, KafkaResponse], times: int) -> None:
    """Lets so many requests find no leader."""
    left = iter(range(times))
    answer = node.calls._handlers[method.number]

    async def answer_later(caller: Caller, request: KafkaRequest) -> KafkaResponse:
        if next(left, None) is not None:
            raise NotExecuted(ErrorCode.LEADER_NOT_AVAILABLE, "an election")
        response: KafkaResponse = await answer(caller, request)
        return response

    node.calls._handlers[method.number] = answer_later


def test_the_end_of_a_term_is_asked_of_the_next_leader() -> None:
    async def run() -> None:
        node = Node(NodeConfig(memory=True, kafka=Address("127.0.0.1", 1)))
        KafkaCalls(node)
        await node.start()
        new_topic = NewTopic(name="t", topic_id=uuid4(), partitions=1)
        await node.metadata.change(
            lambda state: decisions.create_topic(state, new_topic, node.controller.rules)
        )
        try:
            for method in (methods.KAFKA_REQUEST, methods.KAFKA_QUERY):
                fail_first(node, method, 2)
            reader = LeaderReader(InnerClient(node, BROKER))
            assert list(await reader.ends_of_terms("t", {0: node.leader("t", 0).term})) == [0]
        finally:
            await node.stop()

    asyncio.run(run())
