"""One question to many nodes."""

import asyncio

from penstock.errors import ErrorCode, KafkaError
from penstock.node.calls import ask_each, rows_of_each


async def answer(node: int) -> list[str]:
    await asyncio.sleep(0.01 * (3 - node))  # the first node is the slowest
    if node == 2:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "node 2 is silent")
    return [f"{node}-a", f"{node}-b"]


async def test_rows_come_in_the_order_of_the_nodes_and_silent_nodes_are_named() -> None:
    assert await rows_of_each([1, 2, 3], answer) == (["1-a", "1-b", "3-a", "3-b"], [2])


async def test_each_node_has_its_answer_or_its_error() -> None:
    found = await ask_each([2, 3], answer)
    assert isinstance(found[2], KafkaError)
    assert found[3] == ["3-a", "3-b"]
