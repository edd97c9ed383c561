"""The harness of all benchmarks: brokers, fresh topics, load processes, the broker's CPU before and after, and rounds
in turns with a progress bar. Then the loads of a topic: produce, consume, latency."""

import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from penstock.cli.bench import load as messages
from penstock.cli.bench import procfs
from penstock.cli.bench.figures import Cost, Run, cost_of, latency
from penstock.cli.bench.load import GO, READY, Kind, Load, Report, Role, Workload
from penstock.cli.broker_process import BrokerProcess
from penstock.cli.connection import REQUEST_TIMEOUT_S, Connection
from penstock.cli.output import console
from penstock.cli.problem import Problem

WARM_UP_SECONDS = 1
"""The start of a latency run: connections are made and, on a JVM, code is compiled. Not counted."""
WORKER = "penstock.cli.bench.worker"
NO_HTTP = ("--http", "none")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

T = TypeVar("T")
V = TypeVar("V")
Say = Callable[[int], None]
"""Called with the number of messages that are done, now and then."""
Step = Callable[[str, int], Say]
"""Announces the next step and its number of messages; returns the function that reports its progress."""


# --- brokers


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A broker under load. Without a pid its CPU and memory stay unknown."""

    name: str
    bootstrap: str
    pid: int | None = None


@contextmanager
def own_broker(
    *, memory: bool, data_dir: str | None = None, flags: Sequence[str] = NO_HTTP
) -> Iterator[Target]:
    """A broker for this benchmark alone; its data goes away with it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=data_dir))
    storage = ["--memory"] if memory else ["--data-dir", str(folder / "data")]
    try:
        broker = BrokerProcess(folder, *storage, *flags, "--log-level", "warning")
        try:
            yield Target(name="penstock", bootstrap=broker.bootstrap, pid=broker.pid)
        finally:
            broker.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that a person named, or the kind to start."""

    bootstrap: str | None
    broker_pid: int | None
    memory: bool
    data_dir: str | None


@contextmanager
def broker_for(where: Where, flags: Sequence[str] = NO_HTTP) -> Iterator[Target]:
    if where.bootstrap is not None:
        yield outside_broker(where.bootstrap, where.broker_pid)
        return
    with own_broker(memory=where.memory, data_dir=where.data_dir, flags=flags) as target:
        yield target


def outside_broker(bootstrap: str, pid: int | None = None) -> Target:
    """A broker that runs already; its process is looked for when it is on this machine."""
    Connection(bootstrap=bootstrap).check_reachable()
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    if pid is None and host in LOOPBACK:
        pid = procfs.listener_pid(int(port))
    return Target(name=bootstrap, bootstrap=bootstrap, pid=pid)


@contextmanager
def fresh_topic(target: Target, partitions: int) -> Iterator[str]:
    """A topic for one run, deleted afterwards."""
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


# --- load processes


class LoadProcess:
    """One load process. `go` starts the load; `report` waits for the result."""

    def __init__(self, work: Workload, module: str = WORKER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self.tell(work)
        if self._out.readline() != READY:
            raise self._failure()

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        self._send(GO)

    def tell(self, message: msgspec.Struct) -> None:
        self._send(msgspec.json.encode(message) + b"\n")

    def _send(self, line: bytes) -> None:
        self._in.write(line)
        self._in.flush()

    def report(self, target: Target, say: Say) -> Report:
        """Its next report, however long that takes. Problem if it saw an error."""
        for line in self._out:
            message = msgspec.json.decode(line)
            if "done" in message:
                say(msgspec.convert(message, messages.Progress).done)
                continue
            report = msgspec.convert(message, Report)
            if report.errors or report.error:
                failed = f"{report.errors:,} messages failed: " if report.errors > 1 else ""
                raise Problem(f"{target.name}: {failed}{report.error}")
            return report
        raise self._failure()

    def leave(self) -> None:
        """It gets no more work: it tidies up and ends."""
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
def load_process(work: Workload, module: str = WORKER) -> Iterator[LoadProcess]:
    process = LoadProcess(work, module)
    try:
        yield process
    finally:
        process.end()


def measured(target: Target, processes: Sequence[LoadProcess], say: Say) -> tuple[Cost, list[Report]]:
    """Lets them go together, and waits for all."""
    before = procfs.usage(target.pid)
    for process in processes:
        process.go()
    reports = [process.report(target, say) for process in reversed(processes)]
    return cost_of(reports, before, procfs.usage(target.pid)), reports


# --- rounds


def in_turns(
    variants: Sequence[V],
    count: int,
    run: Callable[[V, Step], T],
    label: Callable[[V], str],
    *,
    warm_up: bool = False,
) -> list[T]:
    """Runs each variant `count` times, alternating, so that whatever else the machine does hits all of them alike. A
    first round that warms everything up is not counted."""
    skipped = len(variants) if warm_up else 0
    plan = [variant for _ in range(count) for variant in variants]
    found: list[T] = []
    with progress(len(plan) + skipped) as step:
        for index, variant in enumerate([*variants[:skipped], *plan]):
            turn = "warming up" if index < skipped else f"run {index - skipped + 1} of {len(plan)}"
            found.append(run(variant, step(f"{label(variant)}: {turn}")))
    return found[skipped:]


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], Step]]:
    """A progress bar on stderr; nothing where that is not a terminal."""
    out = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bars:
        overall = bars.add_task("all", total=total)
        current = bars.add_task("")
        started = 0

        def next_run(label: str) -> Step:
            nonlocal started
            bars.update(overall, completed=started)
            started += 1

            def step(what: str, messages: int) -> Say:
                bars.reset(current, total=messages, description=f"{label}, {what}")
                return lambda done: bars.update(current, completed=done)

            return step

        yield next_run


# --- loads of a topic


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The load, the same for every broker."""

    messages: int = 1_000_000
    size_bytes: int = 100
    partitions: int = 1
    acks: str = "all"
    compression: str = "none"
    linger_ms: float = 5.0
    idempotent: bool = False
    rate_per_second: int = 1000
    seconds: int = 10
    """The length of a latency run."""
    settings: dict[str, str] = {}

    @property
    def paced(self) -> int:
        """Messages of a latency run, with those of the warm-up."""
        return self.rate_per_second * (self.seconds + WARM_UP_SECONDS)

    def load(self, target: Target, topic: str, role: Role, messages: int) -> Load:
        """The work of one process."""
        is_producer = role in ("produce", "send_paced")
        return Load(
            role=role,
            bootstrap=target.bootstrap,
            topic=topic,
            partitions=self.partitions,
            messages=messages,
            size_bytes=self.size_bytes,
            rate_per_second=self.rate_per_second,
            settings=self._producer_settings() if is_producer else self.settings,
        )

    def _producer_settings(self) -> dict[str, str]:
        return {
            "acks": self.acks,
            "compression.type": self.compression,
            "linger.ms": str(self.linger_ms),
            "enable.idempotence": str(self.idempotent).lower(),
            "queue.buffering.max.messages": "200000",
            **self.settings,
        }


def run_throughput(kind: Kind, target: Target, shape: Shape, topic: str, say: Say) -> Run:
    """Produces, or consumes what was produced to the topic before."""
    assert kind != "latency"
    with load_process(shape.load(target, topic, kind, shape.messages)) as worker:
        cost, _ = measured(target, [worker], say)
    return Run(kind=kind, target=target.name, **msgspec.structs.asdict(cost))


def run_produce(target: Target, shape: Shape, topic: str, say: Say) -> Run:
    return run_throughput("produce", target, shape, topic, say)


def run_latency(target: Target, shape: Shape, topic: str, say: Say) -> Run:
    """A steady trickle from one process to another; the first second is not counted."""
    loads = [shape.load(target, topic, role, shape.paced) for role in ("receive_paced", "send_paced")]
    with load_process(loads[0]) as receiver, load_process(loads[1]) as sender:
        cost, (sent, received) = measured(target, [receiver, sender], say)
    skipped = shape.rate_per_second * WARM_UP_SECONDS
    figures = {
        **msgspec.structs.asdict(cost),
        "messages": sent.messages,
        "bytes": sent.bytes,
        "seconds": sent.seconds,
    }
    return Run(
        kind="latency",
        target=target.name,
        acknowledged=latency(sent.latencies_us[skipped:]),
        delivered=latency(received.latencies_us[skipped:]),
        **figures,
    )


def one_round(kinds: Sequence[Kind], target: Target, shape: Shape, step: Step) -> list[Run]:
    """The asked kinds of load, once. Consuming needs something to consume, so it produces first."""
    found: list[Run] = []
    if "produce" in kinds or "consume" in kinds:
        with fresh_topic(target, shape.partitions) as topic:
            found.append(run_produce(target, shape, topic, step("producing", shape.messages)))
            if "consume" in kinds:
                found.append(
                    run_throughput("consume", target, shape, topic, step("consuming", shape.messages))
                )
    if "latency" in kinds:
        with fresh_topic(target, shape.partitions) as topic:
            found.append(run_latency(target, shape, topic, step("latency", shape.paced)))
    return [run for run in found if run.kind in kinds]
