"""One question to many nodes at the same time. A node that does not answer holds up none of the others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from penstock.errors import KafkaError

R = TypeVar("R")


async def ask_each(nodes: Iterable[int], ask: Callable[[int], Awaitable[R]]) -> dict[int, R | KafkaError]:
    """The answer of each node, or the error with which `ask` ended."""

    async def answer_of(node: int) -> R | KafkaError:
        try:
            return await ask(node)
        except KafkaError as problem:
            return problem

    asked = list(nodes)
    return dict(zip(asked, await asyncio.gather(*map(answer_of, asked)), strict=True))


async def rows_of_each(
    nodes: Iterable[int], ask: Callable[[int], Awaitable[Sequence[R]]]
) -> tuple[list[R], list[int]]:
    """The rows of all nodes that answer, and the nodes that do not."""
    rows: list[R] = []
    unanswered: list[int] = []
    for node, answer in (await ask_each(nodes, ask)).items():
        if isinstance(answer, KafkaError):
            unanswered.append(node)
        else:
            rows += answer
    return rows, unanswered
