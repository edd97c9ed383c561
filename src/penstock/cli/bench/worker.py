"""One load process: `python -m penstock.cli.bench.worker`, started by runner.py.

It reads a Load from stdin, connects, says `ready`, waits for `go`, and writes a Report. The loops are as bare
as Python allows, because at 100 bytes a message the client costs more than any broker: no callback per
message, payloads made beforehand, a thousand messages per call.
"""

import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from penstock.cli.bench.load import GO, PAYLOADS, READY, Load, Progress, Report, Workload
from penstock.client.errors import ClientError

CONSUME_CHUNK = 10_000
QUEUE_FULL_WAIT_S = 0.002
STALL_TIMEOUT_S = 60.0
"""No progress for this long is a failure."""
METADATA_TIMEOUT_S = 20.0
NO_SETTINGS: Mapping[str, int] = {}
READ_AHEAD: Mapping[str, int] = {"fetch.queue.backoff.ms": 1, "queued.min.messages": 1_000_000}
"""By default librdkafka sleeps a second whenever it has 100,000 messages in store: that would be the measurement."""
PROGRESS_EVERY_S = 0.5
WORDS = ("order", "user", "amount", "EUR", "created", "item", "true", "null", "status", "paid")


def main() -> None:
    load = msgspec.json.decode(sys.stdin.buffer.readline(), type=Load)
    report = ROLES[load.role](load)
    write(report)


def write(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def wait_for_go() -> None:
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    assert sys.stdin.buffer.readline() == GO


def payloads(size_bytes: int, count: int = PAYLOADS) -> list[bytes]:
    """Text that compresses about as well as JSON events do; always the same."""
    chance = random.Random(42)
    made = []
    for _ in range(count):
        parts: list[str] = []
        length = 0
        while length < size_bytes:
            part = f"{chance.choice(WORDS)}:{chance.getrandbits(32):x},"
            parts.append(part)
            length += len(part)
        made.append("".join(parts)[:size_bytes].encode())
    return made


class Stopwatch:
    """Wall time and this process' CPU time since `start`, and progress now and then."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._cpu_began = cpu_seconds()
        self._said = self._began

    def say(self, done: int) -> None:
        now = time.perf_counter()
        if now - self._said > PROGRESS_EVERY_S:
            self._said = now
            write(Progress(done=done))

    def report(self, load: Workload, messages: int, **rest: Any) -> Report:
        return Report(
            messages=messages,
            bytes=messages * load.size_bytes,
            seconds=time.perf_counter() - self._began,
            cpu_seconds=cpu_seconds() - self._cpu_began,
            **rest,
        )


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Failures:
    """Delivery errors: how many, and the first in words."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or error.str()


def client_config(load: Load) -> dict[str, Any]:
    return {"bootstrap.servers": load.bootstrap, "log_level": 2, **load.settings}


# --- throughput


def produce(load: Load) -> Report:
    failures = Failures()
    config = {**client_config(load), "delivery.report.only.error": True, "on_delivery": failures.note}
    producer = Producer(config)
    producer.list_topics(load.topic, METADATA_TIMEOUT_S)
    chunk: list[Any] = [{"value": payload} for payload in payloads(load.size_bytes)]
    wait_for_go()
    watch = Stopwatch()
    _send_all(producer, load, chunk, watch)
    unsent = producer.flush(STALL_TIMEOUT_S)
    failures.count += unsent
    failures.first = failures.first or (f"{unsent} were not acknowledged in time" if unsent else "")
    return watch.report(load, load.messages, errors=failures.count, error=failures.first)


def _send_all(producer: Producer, load: Load, chunk: list[Any], watch: Stopwatch) -> None:
    left = load.messages
    while left > 0:
        batch = chunk if left >= len(chunk) else chunk[:left]
        queued = producer.produce_batch(load.topic, batch)
        left -= queued
        if queued < len(batch):
            producer.poll(QUEUE_FULL_WAIT_S)
            watch.say(load.messages - left)


def consume(load: Load) -> Report:
    consumer = _assigned_consumer(load, READ_AHEAD)
    wait_for_go()
    watch = Stopwatch()
    consumer.assign([TopicPartition(load.topic, number, 0) for number in range(load.partitions)])
    got = 0
    last_arrival = time.perf_counter()
    error = ""
    while got < load.messages and not error:
        messages = consumer.consume(min(CONSUME_CHUNK, load.messages - got), 1.0)
        got += len(messages)
        if messages:
            error = error_in(messages[-1])
            last_arrival = time.perf_counter()
            watch.say(got)
        elif time.perf_counter() - last_arrival > STALL_TIMEOUT_S:
            error = f"only {got} of {load.messages} arrived"
    report = watch.report(load, got, errors=load.messages - got, error=error)
    consumer.close()
    return report


def _assigned_consumer(load: Load, settings: Mapping[str, int] = NO_SETTINGS) -> Consumer:
    identity = {"group.id": "penstock-bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, **client_config(load), **identity})
    consumer.list_topics(load.topic, METADATA_TIMEOUT_S)
    return consumer


def error_in(message: Message) -> str:
    error = message.error()
    return error.str() if error is not None else ""


# --- latency


def send_paced(load: Load) -> Report:
    """Sends at a steady rate; librdkafka itself measures from produce() to the acknowledgement."""
    latencies_us: list[int] = []
    failures = Failures()

    def delivered(error: KafkaError | None, message: Message) -> None:
        failures.note(error, message)
        latencies_us.append(round((message.latency() or 0.0) * 1_000_000))

    producer = Producer(client_config(load))
    producer.list_topics(load.topic, METADATA_TIMEOUT_S)
    padding = payloads(load.size_bytes, 1)[0][8:]
    done = threading.Event()
    poller = threading.Thread(target=_poll_until, args=(producer, done))
    wait_for_go()
    watch = Stopwatch()
    poller.start()
    due = time.monotonic_ns()
    for number in range(load.messages):
        due += 1_000_000_000 // load.rate_per_second
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        producer.produce(load.topic, time.monotonic_ns().to_bytes(8) + padding, on_delivery=delivered)
        watch.say(number)
    producer.flush(STALL_TIMEOUT_S)
    done.set()
    poller.join()
    return watch.report(
        load, load.messages, errors=failures.count, error=failures.first, latencies_us=latencies_us
    )


def _poll_until(producer: Producer, done: threading.Event) -> None:
    while not done.is_set():
        producer.poll(0.1)


def receive_paced(load: Load) -> Report:
    """Measures from the time that a message carries to its arrival: the same clock, another process."""
    consumer = _assigned_consumer(load)
    consumer.assign([TopicPartition(load.topic, number, 0) for number in range(load.partitions)])
    consumer.poll(0.5)  # connects and sends the first, empty, fetch
    wait_for_go()
    watch = Stopwatch()
    latencies_us: list[int] = []
    last_arrival = time.perf_counter()
    error = ""
    while len(latencies_us) < load.messages and not error:
        message = consumer.poll(1.0)
        now_ns = time.monotonic_ns()
        if message is not None:
            error = error_in(message)
            sent_ns = int.from_bytes(bytes(message.value() or b"")[:8])
            latencies_us.append((now_ns - sent_ns) // 1000)
            last_arrival = time.perf_counter()
        elif time.perf_counter() - last_arrival > STALL_TIMEOUT_S:
            error = f"only {len(latencies_us)} of {load.messages} arrived"
    consumer.close()
    missing = load.messages - len(latencies_us)
    return watch.report(load, len(latencies_us), errors=missing, error=error, latencies_us=latencies_us)


ROLES: dict[str, Callable[[Load], Report]] = {
    "produce": produce,
    "consume": consume,
    "send_paced": send_paced,
    "receive_paced": receive_paced,
}


def run_worker(main: Callable[[], None]) -> None:
    """The process' exit: the parent shows the last line of stderr."""
    try:
        main()
    except (ClientError, KafkaException) as failure:
        reason = failure.args[0].str() if isinstance(failure, KafkaException) else failure
        sys.exit(f"load process: {reason}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run_worker(main)
