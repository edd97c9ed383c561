"""Large responses: their rows are bounded before they are built, and built in slices that let other clients be served.

A handler makes one `ResponseRows` for its response. Over `limits.max_response_rows`, a KafkaError becomes the error of
the name that has no room. The response itself is encoded in a thread (`encode_off_loop`).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire import Message, RequestHeader, encode_response
from penstock.kafka.wire.schema import ARRAY, Buffer

Item = TypeVar("Item")
Row = TypeVar("Row")

SLICE_ROWS = 1_000
"""Rows that are built without a pause; a row takes about 10 µs."""


class ResponseRows:
    """Counts the rows of one response."""

    def __init__(self, context: RequestContext) -> None:
        self._most = context.node.config.limits.max_response_rows
        self._left = self._most
        self._since_pause = 0

    def reserve(self, rows: int) -> None:
        if rows > self._left:
            message = f"the response would have over limits.max_response_rows={self._most} rows: name less"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        self._left -= rows

    async def pause(self, rows: int = 1) -> None:
        """Call after so many rows were built: lets others run after each slice."""
        self._since_pause += rows
        if self._since_pause >= SLICE_ROWS:
            self._since_pause = 0
            await asyncio.sleep(0)

    async def build(self, make: Callable[[Item], Row], items: Sequence[Item]) -> list[Row]:
        """One row for each item; a KafkaError before the first if there is no room for all."""
        self.reserve(len(items))
        rows: list[Row] = []
        for start in range(0, len(items), SLICE_ROWS):
            part = items[start : start + SLICE_ROWS]
            rows.extend(map(make, part))
            await self.pause(len(part))
        return rows


async def encode_off_loop(header: RequestHeader, response: Message) -> list[Buffer]:
    """Encodes a small response at once and a large one in a thread."""
    facts = header.api_key, header.api_version, header.correlation_id
    if count_rows(response) < SLICE_ROWS:
        return encode_response(*facts, response)
    return await asyncio.to_thread(encode_response, *facts, response)


def count_rows(message: Message, depth: int = 2) -> int:
    """The elements of a message's lists, and of the lists in them."""
    total = 0
    for field in message.SCHEMA:
        if field.kind == ARRAY and (rows := getattr(message, field.name)):
            total += len(rows)
            if depth > 1 and not isinstance(field.of, str):
                total += sum(count_rows(row, depth - 1) for row in rows)
    return total
