"""One load process of `penstock bench clique`: `python -m penstock.cli.bench.clique_worker`.

clique_runner.py starts it. It reads a CliqueLoad from stdin, joins its clique or its consumer group, says `ready`, and
answers every phase that it reads then with a Report. When stdin ends it leaves.

Members of a clique and of a plain consumer group have the same handler. A phase ends for a worker when all messages are
handled, by whichever worker, and its own are acknowledged.
"""

import asyncio
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import uvloop
from confluent_kafka import Consumer, KafkaException, Producer

from penstock.cli.bench.load import (
    READY,
    AskPhase,
    CliqueLoad,
    HandledMessages,
    KillPhase,
    Phase,
    Progress,
    Report,
)
from penstock.cli.bench.worker import (
    METADATA_TIMEOUT_S,
    PROGRESS_EVERY_S,
    QUEUE_FULL_WAIT_S,
    READ_AHEAD,
    STALL_TIMEOUT_S,
    Failures,
    Stopwatch,
    cpu_seconds,
    payloads,
    run_worker,
    wait_for_go,
    write,
)
from penstock.clique import Clique, Message, Slot

LOOK_SECONDS: Final = 0.005
"""How often a worker without messages checks whether all are handled: at most this is added to a run."""
JOIN_SECONDS: Final = 60.0
CONSUME_CHUNK: Final = 500
"""Messages that a member of the consumer group takes at once, and commits together."""
WINDOW: Final = 10_000
"""Messages under way on a carrier that stores nothing: it drops those that its subscribers are too slow for."""
WINDOW_STEP: Final = 100
PROBE_SECONDS: Final = 0.05
"""The pause between two requests for a key of a killed worker."""
REQUEST_SECONDS: Final = 60.0


def main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.readline(), type=CliqueLoad)
    match load.role:
        case "work":
            uvloop.run(work(load))
        case "consume":
            consume(load)
        case "publish" if load.carrier.startswith("nats:"):
            uvloop.run(publish_to_clique(load))
        case "publish":
            write(publish_to_topic(load))
        case "ask":
            uvloop.run(ask(load))


def say_ready() -> None:
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()


async def phases(kind: Any) -> AsyncIterator[Any]:
    """What the parent asks for, until it closes its end."""
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        yield msgspec.json.decode(line, type=kind)


# --- workers


class Handling:
    """The handler of all workers, and what it has done."""

    def __init__(self, load: CliqueLoad) -> None:
        self.everywhere = HandledMessages(load.handled)
        self.here = 0
        self._handler_ns = load.handler_us * 1000
        self._bytes: dict[bytes, int] = {}

    def handle(self, key: bytes | None, value: bytes | None) -> None:
        """Keeps a sum for each key: the state that should stay where its key is."""
        assert key is not None
        assert value is not None
        self._bytes[key] = self._bytes.get(key, 0) + len(value)
        self._be_busy()
        self.here += 1
        self.everywhere.mark(int.from_bytes(value[:8]))

    def _be_busy(self) -> None:
        """Uses as much CPU as a real handler would."""
        if self._handler_ns:
            until_ns = time.thread_time_ns() + self._handler_ns
            while time.thread_time_ns() < until_ns:
                pass


class Watch:
    """One phase of a worker: when it ends, and what is reported then. An error when nothing happens for long."""

    def __init__(self, handling: Handling, phase: Phase) -> None:
        self._handling = handling
        self._wanted = phase.messages
        self._here = handling.here
        self._cpu_began = cpu_seconds()
        self._count, self._counted_at = 0, time.monotonic()
        self._said = 0.0
        self.error = ""

    def is_over(self) -> bool:
        now = time.monotonic()
        count = self._handling.everywhere.count
        if count != self._count:
            self._count, self._counted_at = count, now
        elif now - self._counted_at > STALL_TIMEOUT_S:
            self.error = f"only {count:,} of {self._wanted:,} messages were handled"
        if now - self._said > PROGRESS_EVERY_S:
            self._said = now
            write(Progress(done=count))
        return count >= self._wanted or bool(self.error)

    def report(self) -> Report:
        return Report(
            messages=self._handling.here - self._here,
            cpu_seconds=cpu_seconds() - self._cpu_began,
            last_arrival_ns=time.monotonic_ns(),
            error=self.error,
        )


async def work(load: CliqueLoad) -> None:
    """A worker of the clique."""
    handling = Handling(load)
    clique = Clique(load.group, load.carrier, worker=load.worker, lease_ms=load.lease_ms)

    @clique.handler(load.topic)
    async def handle(message: Message, slot: Slot) -> None:
        handling.handle(message.key, message.value)

    @clique.responder(load.questions)
    async def answer(message: Message, slot: Slot) -> str:
        return load.worker

    async with clique:
        await clique.wait_for_slots(JOIN_SECONDS)
        say_ready()
        async for phase in phases(Phase):
            watch = Watch(handling, phase)
            while not watch.is_over() or (clique.status().in_flight and not watch.error):
                await asyncio.sleep(LOOK_SECONDS)
            write(watch.report())


def consume(load: CliqueLoad) -> None:
    """A member of a plain consumer group, which commits after each chunk."""
    handling = Handling(load)
    assigned = threading.Event()
    consumer = Consumer(
        {
            **READ_AHEAD,
            "bootstrap.servers": load.carrier,
            "group.id": load.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
    )
    consumer.subscribe([load.topic], on_assign=lambda *_: assigned.set())
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    watch: Watch | None = None
    while not assigned.is_set():
        _take(consumer, handling)
    say_ready()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    while True:
        with suppress(queue.Empty):
            if not (line := lines.get_nowait()):
                break
            watch = Watch(handling, msgspec.json.decode(line, type=Phase))
        _take(consumer, handling)
        if watch is not None and watch.is_over():
            with suppress(KafkaException):  # a member that has handled nothing has nothing to commit
                consumer.commit(asynchronous=False)
            write(watch.report())
            watch = None
    consumer.close()


def _read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    """Beside the loop: a member of a group that does not poll is expelled."""
    while line := sys.stdin.buffer.readline():
        lines.put(line)
    lines.put(b"")


def _take(consumer: Consumer, handling: Handling) -> None:
    messages = consumer.consume(CONSUME_CHUNK, LOOK_SECONDS)
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
        handling.handle(message.key(), message.value())
    if messages:
        consumer.commit(asynchronous=True)


# --- the publisher


def _messages(load: CliqueLoad) -> Callable[[int], tuple[bytes, bytes]]:
    """Makes the key and the value of a message from its number."""
    keys = [b"key-%d" % number for number in range(load.keys)]
    padding = payloads(load.size_bytes, 1)[0][8:]
    return lambda number: (keys[number % len(keys)], number.to_bytes(8) + padding)


def publish_to_topic(load: CliqueLoad) -> Report:
    """By confluent-kafka, for the clique and for the consumer group alike."""
    failures = Failures()
    make = _messages(load)
    producer = Producer(
        {
            "bootstrap.servers": load.carrier.removeprefix("penstock://"),
            "enable.idempotence": True,
            "delivery.report.only.error": True,
            "on_delivery": failures.note,
            "log_level": 2,
        }
    )
    producer.list_topics(load.topic, METADATA_TIMEOUT_S)
    wait_for_go()
    watch = Stopwatch()
    for number in range(load.messages):
        key, value = make(number)
        while True:
            try:
                producer.produce(load.topic, value, key)
                break
            except BufferError:  # as much under way as librdkafka takes
                producer.poll(QUEUE_FULL_WAIT_S)
    unsent = producer.flush(STALL_TIMEOUT_S)
    error = failures.first or (f"{unsent} were not acknowledged in time" if unsent else "")
    return watch.report(load, load.messages, errors=failures.count + unsent, error=error)


async def publish_to_clique(load: CliqueLoad) -> None:
    """Where the carrier stores nothing: not faster than the workers handle messages."""
    make, handled = _messages(load), HandledMessages(load.handled)
    async with Clique(load.group, load.carrier) as clique:
        await asyncio.to_thread(wait_for_go)
        watch = Stopwatch()
        for number in range(load.messages):
            key, value = make(number)
            await clique.publish(load.topic, value, key=key)
            while number % WINDOW_STEP == 0 and number - handled.count > WINDOW:
                await asyncio.sleep(LOOK_SECONDS)
        write(watch.report(load, load.messages))


# --- requests


async def ask(load: CliqueLoad) -> None:
    async with Clique(load.group, load.carrier) as clique:
        await _owner(clique, load, 0)  # makes the connections
        say_ready()
        async for phase in phases(AskPhase | KillPhase):
            if isinstance(phase, KillPhase):
                write(await kill_and_ask(clique, load, phase))
            else:
                write(await ask_steadily(clique, load, phase))


async def _owner(clique: Clique, load: CliqueLoad, number: int, timeout_s: float = REQUEST_SECONDS) -> str:
    answer = await clique.request(load.questions, None, key=b"key-%d" % number, timeout=timeout_s)
    return answer.decode()


async def ask_steadily(clique: Clique, load: CliqueLoad, phase: AskPhase) -> Report:
    """The time of each request, at a rate that does not depend on the answers."""
    cpu_began, chance = cpu_seconds(), random.Random(42)
    latencies_us: list[int] = []
    counted_from = time.monotonic() + phase.warm_up_seconds

    async def ask_once() -> None:
        began_ns = time.monotonic_ns()
        await _owner(clique, load, chance.randrange(load.keys))
        if began_ns / 1e9 >= counted_from:
            latencies_us.append((time.monotonic_ns() - began_ns) // 1000)

    due = time.monotonic()
    async with asyncio.TaskGroup() as requests:
        for number in range(phase.requests):
            due += 1 / phase.rate_per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            requests.create_task(ask_once())
            if number % phase.rate_per_second == 0:
                write(Progress(done=number))
    return Report(messages=phase.requests, cpu_seconds=cpu_seconds() - cpu_began, latencies_us=latencies_us)


async def kill_and_ask(clique: Clique, load: CliqueLoad, phase: KillPhase) -> Report:
    """The time from kill -9 of a worker until another one answers for one of its keys."""
    cpu_began = cpu_seconds()
    number = 0
    while await _owner(clique, load, number) != phase.worker:
        number += 1
        if number == load.keys:
            return Report(
                messages=0, cpu_seconds=0.0, error=f"{phase.worker} owns none of {load.keys:,} keys"
            )
    os.kill(phase.pid, signal.SIGKILL)
    killed_ns = time.monotonic_ns()
    probes: set[asyncio.Task[str]] = set()
    while not (answered := {probe for probe in probes if probe.done()}):
        probes.add(asyncio.create_task(_owner(clique, load, number)))
        await asyncio.wait(probes, timeout=PROBE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    taken_us = (time.monotonic_ns() - killed_ns) // 1000
    error = next((str(problem) for probe in answered if (problem := probe.exception()) is not None), "")
    for probe in probes:
        probe.cancel()
    await asyncio.gather(*probes, return_exceptions=True)
    return Report(messages=1, cpu_seconds=cpu_seconds() - cpu_began, latencies_us=[taken_us], error=error)


if __name__ == "__main__":
    run_worker(main)
