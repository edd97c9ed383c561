"""Runs a load against a broker: a fresh topic, load processes, the broker's CPU before and after."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.bench import procfs
from penstock.cli.bench.figures import Run, latency
from penstock.cli.bench.load import GO, READY, Kind, Load, Progress, Report, Role, Work
from penstock.cli.connection import REQUEST_TIMEOUT_S, Connection
from penstock.cli.problem import Problem

WARM_UP_SECONDS = 1
"""Of a latency run: connections are made and, on a JVM, code is compiled. Not counted."""

WORKER = "penstock.cli.bench.worker"
Told = TypeVar("Told", bound=msgspec.Struct)

Say = Callable[[int], None]
"""Told how many messages are done, now and then."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A broker under load. Without a pid its CPU and memory stay unknown."""

    name: str
    bootstrap: str
    pid: int | None = None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a load looks like, whichever broker gets it."""

    messages: int = 1_000_000
    size_bytes: int = 100
    partitions: int = 1
    acks: str = "all"
    compression: str = "none"
    linger_ms: float = 5.0
    idempotent: bool = False
    rate_per_second: int = 1000
    seconds: int = 10
    """Of a latency run."""
    settings: dict[str, str] = {}

    def producer_settings(self) -> dict[str, str]:
        return {
            "acks": self.acks,
            "compression.type": self.compression,
            "linger.ms": str(self.linger_ms),
            "enable.idempotence": str(self.idempotent).lower(),
            "queue.buffering.max.messages": "200000",
            **self.settings,
        }


class LoadProcess:
    """One worker. `go` starts it; `finish` waits for its report."""

    def __init__(self, load: Work, module: str = WORKER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.tell(load)
        if self._out.readline() != READY:
            raise self._failure()

    def go(self) -> None:
        self._in.write(GO)
        self._in.flush()

    def tell(self, message: msgspec.Struct) -> None:
        self._in.write(msgspec.json.encode(message) + b"\n")
        self._in.flush()

    def hear(self, say: Say, kind: type[Told]) -> Told:
        """What it answers, however long that takes."""
        for line in self._out:
            message = msgspec.json.decode(line)
            if "done" not in message:
                return msgspec.convert(message, kind)
            say(msgspec.convert(message, Progress).done)
        raise self._failure()

    def finish(self, say: Say) -> Report:
        report = self.hear(say, Report)
        self._process.wait()
        return report

    def leave(self) -> None:
        """Nothing more is asked of it: it tidies up and ends."""
        self._in.close()
        self._process.wait()

    def end(self) -> None:
        """Whatever happened, nothing of it is left."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pipe in (self._in, self._out, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _failure(self) -> Problem:
        said = self._process.communicate()[1].decode(errors="replace").strip().splitlines()
        return Problem(f"a load process failed: {said[-1] if said else 'it said nothing'}")


@contextmanager
def load_process(load: Work, module: str = WORKER) -> Iterator[LoadProcess]:
    process = LoadProcess(load, module)
    try:
        yield process
    finally:
        process.end()


@contextmanager
def fresh_topic(target: Target, partitions: int) -> Iterator[str]:
    """A topic for one run, gone afterwards."""
    admin = AdminClient(Connection(bootstrap=target.bootstrap).config())
    name = f"bench-{uuid.uuid4().hex[:12]}"
    try:
        [future] = admin.create_topics([NewTopic(name, num_partitions=partitions)]).values()
        future.result(REQUEST_TIMEOUT_S)
    except (KafkaException, TimeoutError) as failure:
        raise Problem(f"{target.name} does not create a topic: {failure}") from None
    try:
        yield name
    finally:
        with suppress(KafkaException, TimeoutError):  # a broker that is gone has no topics
            [future] = admin.delete_topics([name]).values()
            future.result(REQUEST_TIMEOUT_S)


def run_produce(target: Target, shape: Shape, topic: str, say: Say) -> Run:
    load = load_of(target, shape, topic, "produce", shape.messages, shape.producer_settings())
    return _measured("produce", target, load, say)


def run_consume(target: Target, shape: Shape, topic: str, say: Say) -> Run:
    """Reads what `run_produce` left in the topic."""
    load = load_of(target, shape, topic, "consume", shape.messages, shape.settings)
    return _measured("consume", target, load, say)


def load_of(
    target: Target, shape: Shape, topic: str, role: Role, messages: int, settings: dict[str, str]
) -> Load:
    return Load(
        role=role,
        bootstrap=target.bootstrap,
        topic=topic,
        partitions=shape.partitions,
        messages=messages,
        size_bytes=shape.size_bytes,
        rate_per_second=shape.rate_per_second,
        settings=settings,
    )


def _measured(kind: Kind, target: Target, load: Load, say: Say) -> Run:
    with load_process(load) as worker:
        before = procfs.usage(target.pid)
        worker.go()
        report = checked(target, worker.finish(say))
        after = procfs.usage(target.pid)
    return _run(kind, target, report, report.cpu_seconds, before, after)


def run_latency(target: Target, shape: Shape, topic: str, say: Say) -> Run:
    """A steady trickle from one process to another; the first second is not counted."""
    skipped = shape.rate_per_second * WARM_UP_SECONDS
    messages = shape.rate_per_second * shape.seconds + skipped
    receive = load_of(target, shape, topic, "receive_paced", messages, shape.settings)
    send = load_of(target, shape, topic, "send_paced", messages, shape.producer_settings())
    with load_process(receive) as receiver, load_process(send) as sender:
        before = procfs.usage(target.pid)
        receiver.go()
        sender.go()
        sent = checked(target, sender.finish(say))
        received = checked(target, receiver.finish(say))
        after = procfs.usage(target.pid)
    run = _run("latency", target, sent, sent.cpu_seconds + received.cpu_seconds, before, after)
    return msgspec.structs.replace(
        run,
        acknowledged=latency(sent.latencies_us[skipped:]),
        delivered=latency(received.latencies_us[skipped:]),
    )


def checked(target: Target, report: Report) -> Report:
    if report.errors:
        raise Problem(f"{target.name}: {report.errors:,} messages failed: {report.error}")
    return report


def _run(
    kind: Kind,
    target: Target,
    report: Report,
    client_cpu_seconds: float,
    before: procfs.Usage | None,
    after: procfs.Usage | None,
) -> Run:
    known = before is not None and after is not None
    return Run(
        kind=kind,
        target=target.name,
        messages=report.messages,
        bytes=report.bytes,
        seconds=report.seconds,
        client_cpu_seconds=client_cpu_seconds,
        broker_cpu_seconds=after.cpu_seconds - before.cpu_seconds if known and after and before else None,
        broker_rss_bytes=after.rss_bytes if after else None,
        broker_peak_rss_bytes=after.peak_rss_bytes if after else None,
    )
