"""Large responses: their rows are bounded before they are built, and built in slices that let other clients be served.

A handler makes one `ResponseRows` for its response. Over `limits.max_response_rows`, a KafkaError becomes the error of
the name that has no room. After the first slice the response reserves the memory of the largest one: if it reserved
slice by slice, two responses could wait for each other's memory. The response itself is encoded in a thread
(`encode_off_loop`), and so is a request of very many elements decoded (`decode_off_loop`).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from penstock.errors import ErrorCode, KafkaError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.names import Names
from penstock.kafka.wire import Message, RequestHeader, TooManyElements, decode_request, encode_response
from penstock.kafka.wire.schema import ARRAY, Buffer
from penstock.node.limits.memory import Reservation

Item = TypeVar("Item")
Row = TypeVar("Row")

SLICE_ROWS = 1_000
"""Rows that are built without a pause; a row takes about 10 µs."""
ELEMENTS_ON_LOOP = 10_000
"""Elements of a request that are decoded on the event loop, which takes about 10 ms. Requests may have ten times as
many."""
ROW_BYTES = 512
"""The memory of one row until it is encoded; a partition in Metadata takes 350 bytes."""
MEMORY_SHARE = 4
"""At most a quarter of a budget that is smaller than the largest response."""


class ResponseRows:
    """Counts the rows of one response."""

    def __init__(self, context: RequestContext) -> None:
        self._most = context.node.config.limits.max_response_rows
        self._left = self._most
        self._since_pause = 0
        self._memory: Reservation | None = context.memory

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
            if self._memory is not None:
                most = self._memory.budget.max_bytes // MEMORY_SHARE
                await self._memory.wait_for(min(self._most * ROW_BYTES, most), large=True)
                self._memory = None
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


async def decode_off_loop(header: RequestHeader, frame: Buffer, names: Iterable[Names]) -> Message:
    """Decodes a small request at once, and a large one in a thread, which also merges its repeated `names`."""
    try:
        return decode_request(header, frame, ELEMENTS_ON_LOOP)
    except TooManyElements:
        return await asyncio.to_thread(_decode_and_merge, header, frame, names)


def _decode_and_merge(header: RequestHeader, frame: Buffer, lists: Iterable[Names]) -> Message:
    request = decode_request(header, frame)
    for names in lists:
        names.merge(request)
    return request


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
