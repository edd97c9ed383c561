"""An honest producer and an honest consumer beside the attack, in a process of their own.

Every record is numbered. An idempotent producer with acks=all sends RECORDS_PER_SECOND of them in turn to the
partitions, and a consumer follows. A record that was acked and is not found, or is not in order, is the broker's fault.
"""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.clients import settings
from tools.hostile.setups import OPEN_ACCESS, Access

TOPIC = "canary"
"""Attackers do not name it: it is another client's."""
PARTITIONS = 3
RECORDS_PER_SECOND = 200
MESSAGE_TIMEOUT_MS = 60_000
CATCH_UP_SECONDS = 30.0
STOP_SECONDS = 90.0
POLL_SECONDS = 0.05


class CanaryReport(NamedTuple):
    """What the clients saw since `begin`; `lost` and `misplaced` count from the beginning of the canary."""

    acked: int
    lost: int
    misplaced: int
    """Found twice, or after a later one, or not at the offset of its ack."""
    refused: int
    ack_seconds: float
    """The longest that a record waited for its ack."""
    delivery_seconds: float
    """The longest from sending a record to consuming it."""


class Canary:
    """The process, as the harness sees it. Records flow from the constructor on."""

    def __init__(self, bootstrap_servers: str, access: Access = OPEN_ACCESS) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, bootstrap_servers, access), daemon=True)
        self._process.start()
        theirs.close()
        problem = self._pipe.recv()
        if problem:
            raise RuntimeError(f"the canary could not start: {problem}")

    def __enter__(self) -> "Canary":
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join(STOP_SECONDS)

    def begin(self) -> None:
        """Later latencies and counts are those since this moment."""
        self._pipe.send("begin")
        self._pipe.recv()

    def finish(self) -> CanaryReport:
        """Stops sending, waits for the last acks, and reads everything again from the beginning."""
        self._pipe.send("finish")
        report: CanaryReport = self._pipe.recv()
        return report


def _serve(pipe: Connection, bootstrap_servers: str, access: Access) -> None:
    """The process: does what the harness says until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness gets it, too, and ends this process
    try:
        clients = _Clients(_Settings(bootstrap_servers, access))
    except (KafkaException, TimeoutError) as problem:
        pipe.send(str(problem))
        return
    pipe.send("")
    try:
        while True:
            if pipe.recv() == "begin":
                clients.begin()
                pipe.send("begun")
            else:
                pipe.send(clients.finish())
    except (EOFError, OSError):
        return


class _Settings:
    """Settings of librdkafka for all clients."""

    def __init__(self, bootstrap_servers: str, access: Access) -> None:
        self._servers = bootstrap_servers
        self._access = access

    def __call__(self, **more: Any) -> dict[str, Any]:
        return {**settings(self._servers, **more), **self._access.settings}


class _Clients:
    def __init__(self, settings: _Settings) -> None:
        self._settings = settings
        admin = AdminClient(settings())
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, -1)])[TOPIC].result(CATCH_UP_SECONDS)
        self._sent_at: dict[int, float] = {}
        """By number, of records that are not consumed yet."""
        self._waiting: dict[int, float] = {}
        """By number, of records that are not acked yet."""
        self._acked: dict[int, tuple[int, int]] = {}
        """By number: partition and offset of the ack; offset -1 if the broker only said that it had the record."""
        self._consumed: set[int] = set()
        self._refused = self._acked_before = self._refused_before = 0
        self._ack_seconds = self._delivery_seconds = 0.0
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._threads = [self._thread(self._produce), self._thread(self._consume)]
        self._wait_until(lambda: len(self._consumed) > PARTITIONS)

    @staticmethod
    def _thread(target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _wait_until(claim: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + CATCH_UP_SECONDS
        while not claim() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return claim()

    # --- records out and in

    def _produce(self) -> None:
        producer = Producer(
            self._settings(
                enable_idempotence=True,
                acks="all",
                linger_ms=2,
                message_timeout_ms=MESSAGE_TIMEOUT_MS,
            )
        )
        number, due = 0, time.monotonic()
        while not self._stopping.is_set():
            now = time.monotonic()
            self._sent_at[number] = self._waiting[number] = now
            try:
                producer.produce(
                    TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
                )
            except (BufferError, KafkaException):  # librdkafka's queue is full, or it has given up
                self._forget(number)
                self._refused += 1
            number += 1
            due = max(due + 1 / RECORDS_PER_SECOND, now)  # after a pause no burst: the rate stays
            producer.poll(max(0.0, due - time.monotonic()))
        producer.flush(MESSAGE_TIMEOUT_MS / 1000)

    def _delivered(self, error: object, message: Message) -> None:
        number = int(message.value() or b"-1")
        waited = time.monotonic() - self._waiting.pop(number)
        self._ack_seconds = max(self._ack_seconds, waited)
        if error is None:
            offset = message.offset()
            self._acked[number] = (message.partition() or 0, -1 if offset is None else offset)
        else:
            self._forget(number)
            self._refused += 1

    def _forget(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._sent_at.pop(number, None)

    def _consume(self) -> None:
        consumer = Consumer(self._settings(group_id="canary", enable_auto_commit=False))
        consumer.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        while not self._finished.is_set():
            for message in consumer.consume(100, timeout=POLL_SECONDS):
                if message.error() is None:
                    self._found(int(message.value() or b"-1"))
        consumer.close()

    def _found(self, number: int) -> None:
        sent_at = self._sent_at.pop(number, None)
        if sent_at is not None:
            self._delivery_seconds = max(self._delivery_seconds, time.monotonic() - sent_at)
        self._consumed.add(number)

    # --- what the harness asks

    def begin(self) -> None:
        self._ack_seconds = self._delivery_seconds = 0.0
        self._acked_before, self._refused_before = len(self._acked), self._refused

    def finish(self) -> CanaryReport:
        self._stopping.set()
        self._threads[0].join(STOP_SECONDS)
        self._wait_until(lambda: self._acked.keys() <= self._consumed)
        self._finished.set()
        self._threads[1].join(STOP_SECONDS)
        now = time.monotonic()
        waiting = max((now - since for since in self._waiting.values()), default=0.0)
        lost, misplaced = self._compare()
        return CanaryReport(
            acked=len(self._acked) - self._acked_before,
            lost=lost,
            misplaced=misplaced,
            refused=self._refused - self._refused_before + len(self._waiting),
            ack_seconds=max(self._ack_seconds, waiting),
            delivery_seconds=self._delivery_seconds,
        )

    def _compare(self) -> tuple[int, int]:
        """How many acked records are lost, and how many are not where or in the order in which they should be."""
        stored = _read_all(self._settings)
        lost = misplaced = 0
        where = {int(value): (index, at) for index, rows in stored.items() for at, value in rows.items()}
        for number, (partition, offset) in self._acked.items():
            found = where.get(number)
            lost += found is None
            misplaced += found is not None and (found[0] != partition or offset not in (found[1], -1))
        for rows in stored.values():
            numbers = [int(value) for value in rows.values()]
            misplaced += sum(later <= earlier for earlier, later in pairwise(numbers))
        return lost, misplaced


def _read_all(settings: _Settings) -> dict[int, dict[int, bytes]]:
    """The values of each partition by their offsets, in the order in which they come: as much as can be read."""
    consumer = Consumer(settings(group_id="canary-check", enable_auto_commit=False))
    places = [TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(PARTITIONS)]
    stored: dict[int, dict[int, bytes]] = {index: {} for index in range(PARTITIONS)}
    ends: dict[int, int] = {}
    deadline = time.monotonic() + CATCH_UP_SECONDS
    consumer.assign(places)
    while time.monotonic() < deadline:
        if len(ends) < PARTITIONS:
            with suppress(KafkaException):
                ends = {one.partition: consumer.get_watermark_offsets(one, timeout=5)[1] for one in places}
        elif all(max(stored[index], default=-1) + 1 >= end for index, end in ends.items()):
            break
        for message in consumer.consume(1000, timeout=POLL_SECONDS):
            if message.error() is None:
                deadline = time.monotonic() + CATCH_UP_SECONDS
                stored[message.partition() or 0][message.offset() or 0] = message.value() or b"-1"
    consumer.close()
    return stored
