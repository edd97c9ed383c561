"""One process full of subscribers: `python -m penstock.cli.bench.push_worker`, started by push_runner.py.

It reads a PushLoad from stdin, subscribes, says `ready`, and answers every Phase that it reads then with a Report.
When stdin ends it unsubscribes.

Subscribers are plain WebSockets with the `batch` encoding, which Penstock's client uses too. They do as little work per
message as possible, so that the broker gets most of a machine with few cores. Each frame is acknowledged, and a phase
ends when the broker has confirmed the last acknowledgement.
"""

import asyncio
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import msgspec
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from penstock.cli.bench.load import READY, Phase, Progress, PushLoad, Report
from penstock.cli.bench.worker import STALL_TIMEOUT_S, cpu_seconds, run_worker, write
from penstock.client.errors import ClientError
from penstock.client.frames import (
    MAX_FRAME_BYTES,
    PUSH_PATH,
    Acked,
    Batches,
    Subscribed,
    Unsubscribed,
    compose,
    parse,
)
from penstock.client.received_record import records_within

CONNECT_AT_ONCE: Final = 32
"""Subscribers that are on their way in at a time: fewer than a listener's backlog holds."""
CONNECT_SECONDS: Final = 60.0
LEAVE_SECONDS: Final = 20.0
TTL_MS: Final = 600_000
"""For subscriptions that are left behind when this process is killed: another person's broker deletes them soon."""
LOOK_SECONDS: Final = 0.5
TOO_MANY: Final = "does the broker allow that many? see limits.max_http_connections and ulimit -n"


class Unexpected(ClientError):
    """The broker said something that ends a benchmark."""


class Count:
    """The deliveries to all subscribers of this process in a phase."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.deliveries = 0
        self.last_arrival_ns = 0
        self.latencies_us: list[int] = []
        self._counted_from_ns = time.monotonic_ns() + round(phase.warm_up_seconds * 1e9)

    def take(self, batches: Batches) -> int:
        """How many messages a frame has."""
        self.last_arrival_ns = now_ns = time.monotonic_ns()
        count = sum(last - first + 1 for first, last in batches.head.offsets)
        self.deliveries += count
        if self.phase.is_paced:
            self.latencies_us += self._latencies_us(batches, now_ns)
        return count

    def _latencies_us(self, batches: Batches, now_ns: int) -> Iterator[int]:
        for _run, record in records_within(batches.data, batches.head.offsets):
            sent_ns = int.from_bytes((record.value or b"")[:8])
            if sent_ns >= self._counted_from_ns:
                yield (now_ns - sent_ns) // 1000


class Subscriber:
    """One connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._unconfirmed: dict[int, int] = {}
        """The last offset that was acked in each partition, until the broker says that this is durable."""

    async def follow(self, count: Count) -> None:
        """One phase: until it has everything and all its acks are durable."""
        missing = count.phase.messages
        while missing > 0 or self._unconfirmed:
            match frame := parse(await self._socket.recv()):
                case Batches():
                    missing -= count.take(frame)
                    await self._ack(frame)
                case Acked():
                    self._confirm(frame)
                case None:
                    pass
                case _:
                    raise Unexpected(f"the broker said {frame}")

    async def _ack(self, batches: Batches) -> None:
        head, last = batches.head, batches.head.offsets[-1][1]
        self._unconfirmed[head.partition] = last
        await self._socket.send(compose("ack", topic=head.topic, partition=head.partition, offset=last))

    def _confirm(self, acked: Acked) -> None:
        for position in acked.positions:
            last = self._unconfirmed.get(position.partition)
            if last is not None and position.covers(last):
                del self._unconfirmed[position.partition]

    async def leave(self) -> None:
        with suppress(WebSocketException, OSError):  # who is gone already has left
            await self._socket.send(compose("unsubscribe"))
            while not isinstance(parse(await self._socket.recv()), Unsubscribed):
                pass
        await self._socket.close()


async def subscribe(load: PushLoad, name: str, limit: asyncio.Semaphore) -> Subscriber:
    url = f"{load.url.replace('http', 'ws', 1).rstrip('/')}{PUSH_PATH}?subscription={quote(name, safe='')}"
    async with limit:
        try:
            socket = await connect(
                url, compression=None, proxy=None, max_size=MAX_FRAME_BYTES, open_timeout=CONNECT_SECONDS
            )
            settings = {"topics": [load.topic], "credit": load.credit, "encoding": "batch", "ttl_ms": TTL_MS}
            await socket.send(compose("subscribe", subscription=name, **settings))
            answer = parse(await socket.recv())
        except (WebSocketException, OSError) as problem:
            raise Unexpected(f"a subscriber did not get in ({TOO_MANY}): {problem}") from None
    if not isinstance(answer, Subscribed):
        raise Unexpected(f"a subscriber was not let in: {answer}")
    return Subscriber(socket)


async def run_phase(subscribers: list[Subscriber], phase: Phase) -> Report:
    count = Count(phase)
    cpu_began = cpu_seconds()
    tasks = {asyncio.create_task(subscriber.follow(count)) for subscriber in subscribers}
    error = await _watch(tasks, count, phase.messages * len(subscribers))
    for task in tasks:
        task.cancel()
    return Report(
        messages=count.deliveries,
        last_arrival_ns=count.last_arrival_ns,
        cpu_seconds=cpu_seconds() - cpu_began,
        error=error,
        latencies_us=count.latencies_us,
    )


async def _watch(tasks: set["asyncio.Task[None]"], count: Count, wanted: int) -> str:
    """Waits for all of them, or for the first that fails, or until they get no further."""
    pending = tasks
    seen, seen_at = 0, time.monotonic()
    while pending:
        done, pending = await asyncio.wait(pending, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if (problem := task.exception()) is not None:
                lost = f" ({TOO_MANY})" if isinstance(problem, WebSocketException) else ""
                return f"{problem}{lost}"
        if count.deliveries != seen:
            seen, seen_at = count.deliveries, time.monotonic()
        elif time.monotonic() - seen_at > STALL_TIMEOUT_S:
            return f"only {seen:,} of {wanted:,} deliveries, or not all acks were confirmed"
        if pending:
            write(Progress(done=count.deliveries // len(tasks)))
    return ""


async def main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.readline(), type=PushLoad)
    limit = asyncio.Semaphore(CONNECT_AT_ONCE)
    subscribers = await asyncio.gather(*(subscribe(load, name, limit) for name in load.names))
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        write(await run_phase(subscribers, msgspec.json.decode(line, type=Phase)))
    with suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_SECONDS):
            await asyncio.gather(*(subscriber.leave() for subscriber in subscribers))


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a hard limit that cannot be asked for
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    _raise_file_limit()
    run_worker(lambda: uvloop.run(main()))
