"""One load process of `penstock bench queue`: `python -m penstock.cli.bench.queue_worker`, started by queue_runner.py.

As worker.py: it reads its load from stdin, says `ready`, waits for `go`, and writes a Report. The clock of a consumer
stops when the broker has confirmed its last acknowledgement.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any, Final, Protocol

import confluent_kafka
import msgspec
from confluent_kafka import KafkaException, Producer

from penstock.cli.bench.load import QueueLoad, QueueStats, Report
from penstock.cli.bench.worker import (
    QUEUE_FULL_WAIT_S,
    STALL_TIMEOUT_S,
    Failures,
    Stopwatch,
    error_in,
    payloads,
    run_worker,
    wait_for_go,
    write,
)
from penstock.client import Client, ClientError

LOOK_SECONDS: Final = 0.005
"""How often a consumer without messages checks whether the others have received all: at most this is added to a run."""
SHARE_LOOK_SECONDS: Final = 0.05
"""The same for a share consumer, whose every poll is a request."""
JOIN_SECONDS: Final = 1.0
"""Time for a share consumer to join its group and to send a first request, before there are messages: some 100 ms."""


class Stalled(Exception):
    """Nothing came for so long that nothing will."""


def main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.readline(), type=QueueLoad)
    write(publish(load) if load.role == "publish" else work_off(load))


# --- the publisher
#
# The first message makes the connections and is not counted: an idempotent producer needs half a second for that.


def publish(load: QueueLoad) -> Report:
    return _publish_by_client(load) if load.via == "client" else _publish_by_producer(load)


def _publish_by_client(load: QueueLoad) -> Report:
    bodies = payloads(load.size_bytes)
    with Client(load.bootstrap) as client:
        client.publish(load.topic, bodies[0])
        wait_for_go()
        watch = Stopwatch()
        sent = []
        for number in range(1, load.messages):
            sent.append(client.publish_soon(load.topic, bodies[number % len(bodies)]))
            watch.say(number)
        client.flush(STALL_TIMEOUT_S)
        done = watch.report(load, len(sent))
        failed = [problem for future in sent if (problem := future.exception()) is not None]
    return msgspec.structs.replace(done, errors=len(failed), error=str(failed[0]) if failed else "")


def _publish_by_producer(load: QueueLoad) -> Report:
    bodies = payloads(load.size_bytes)
    failures = Failures()
    producer = Producer(
        {"bootstrap.servers": load.bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
    )
    producer.produce(load.topic, bodies[0], on_delivery=failures.note)
    producer.flush(STALL_TIMEOUT_S)
    wait_for_go()
    watch = Stopwatch()
    for number in range(1, load.messages):
        while True:
            try:
                producer.produce(load.topic, bodies[number % len(bodies)], on_delivery=failures.note)
                break
            except BufferError:  # as much under way as librdkafka takes
                producer.poll(QUEUE_FULL_WAIT_S)
        producer.poll(0)
        watch.say(number)
    unsent = producer.flush(STALL_TIMEOUT_S)
    error = failures.first or (f"{unsent} were not acknowledged in time" if unsent else "")
    return watch.report(load, load.messages - 1, errors=failures.count + unsent, error=error)


# --- consumers


class Taker(Protocol):
    """A consumer that acknowledges whatever it takes."""

    def take(self, progress: "SharedProgress") -> Iterator[bytes]:
        """Messages, until all consumers together have all; then waits until the acknowledgements are durable."""

    def close(self) -> str:
        """The error, if there was one."""


class SharedProgress:
    """How far all consumers are together. Raises Stalled when they get no further."""

    def __init__(self, load: QueueLoad) -> None:
        self._tally = QueueStats(load.tally, load.number)
        self._wanted = load.messages
        self._seen = 0
        self._seen_at = time.perf_counter()

    def took(self, count: int) -> None:
        self._tally.add(count)

    @property
    def is_done(self) -> bool:
        return self._tally.total >= self._wanted

    def check(self) -> None:
        """Raises if the run has failed; called when nothing came."""
        total, now = self._tally.total, time.perf_counter()
        if total != self._seen:
            self._seen, self._seen_at = total, now
        elif now - self._seen_at > STALL_TIMEOUT_S:
            raise Stalled(f"only {total} of {self._wanted} arrived")


class ClientTaker:
    """Penstock's client. Its queue is opened by the first `take`, because it fetches ahead as soon as it is open."""

    def __init__(self, load: QueueLoad) -> None:
        self._client = Client(load.bootstrap)
        self._load = load
        self._lost = 0

    def take(self, progress: SharedProgress) -> Iterator[bytes]:
        load = self._load
        queue = self._client.queue(load.topic, group=load.group, prefetch=load.prefetch)
        while not progress.is_done:
            job = queue.receive(LOOK_SECONDS)
            if job is None:
                progress.check()
                continue
            job.ack()
            progress.took(1)
            yield job.value or b""
        queue.flush(STALL_TIMEOUT_S)
        self._lost = queue.lost_leases

    def close(self) -> str:
        self._client.close()
        return f"{self._lost} acknowledgements came too late" if self._lost else ""


class ShareTaker:
    """confluent-kafka's share consumer, with an explicit acknowledgement of each message. It asks for messages only
    while it is polled, so it can join before there are any."""

    def __init__(self, load: QueueLoad) -> None:
        make: Any = confluent_kafka.ShareConsumer
        self._consumer = make(
            {
                "bootstrap.servers": load.bootstrap,
                "group.id": load.group,
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        self._consumer.subscribe([load.topic])
        self._consumer.poll(JOIN_SECONDS)
        self._error = ""

    def take(self, progress: SharedProgress) -> Iterator[bytes]:
        while not progress.is_done:
            messages = self._consumer.poll(SHARE_LOOK_SECONDS)
            for message in messages:
                if problem := error_in(message):
                    raise Stalled(problem)
                self._consumer.acknowledge(message)
                yield message.value() or b""
            progress.took(len(messages))
            if not len(messages):
                progress.check()
        for problem in self._consumer.commit_sync(STALL_TIMEOUT_S).values():
            self._error = str(problem) if problem is not None else self._error

    def close(self) -> str:
        self._consumer.close()
        return self._error


def work_off(load: QueueLoad) -> Report:
    taker: Taker = ClientTaker(load) if load.via == "client" else ShareTaker(load)
    progress = SharedProgress(load)
    latencies_us: list[int] = []
    taken, error = 0, ""
    wait_for_go()
    watch = Stopwatch()
    counted_from_ns = time.monotonic_ns() + round(load.warm_up_seconds * 1e9)
    try:
        for body in taker.take(progress):
            taken += 1
            if load.is_paced and (sent_ns := int.from_bytes(body[:8])) >= counted_from_ns:
                latencies_us.append((time.monotonic_ns() - sent_ns) // 1000)
            watch.say(taken)
    except (Stalled, ClientError, KafkaException) as problem:
        error = str(problem)
    done = watch.report(load, taken, latencies_us=latencies_us)
    error = taker.close() or error
    return msgspec.structs.replace(done, errors=1 if error else 0, error=error)


if __name__ == "__main__":
    run_worker(main)
