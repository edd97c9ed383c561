"""Workers in processes that handle keyed messages, as a clique or as a plain consumer group; requests to their keys;
and kill -9 of one of them. A new topic and clique for each run."""

import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.cli.bench import procfs
from penstock.cli.bench.figures import CliqueRun, Cost, Latency, cost_of, latency
from penstock.cli.bench.load import AskPhase, CliqueLoad, HandledMessages, KillPhase, Phase, System
from penstock.cli.bench.runner import (
    WARM_UP_SECONDS,
    LoadProcess,
    Say,
    Step,
    Target,
    fresh_topic,
    load_process,
)
from penstock.client import Client, ClientError

WORKER = "penstock.cli.bench.clique_worker"


class CliqueShape(msgspec.Struct, frozen=True, kw_only=True):
    """The load, the same for every system."""

    messages: int = 50_000
    size_bytes: int = 100
    partitions: int = 8
    keys: int = 1_000
    handler_us: int = 0
    rate_per_second: int = 100
    """Requests."""
    seconds: int = 5
    lease_ms: int = 8_000

    @property
    def asked(self) -> AskPhase:
        return AskPhase(
            requests=self.rate_per_second * (self.seconds + WARM_UP_SECONDS),
            rate_per_second=self.rate_per_second,
            warm_up_seconds=float(WARM_UP_SECONDS),
        )


class Variant(NamedTuple):
    system: System
    workers: int


def run_clique(
    targets: Mapping[System, Target], shape: CliqueShape, variant: Variant, step: Step
) -> CliqueRun:
    with _fresh_bench(targets[variant.system], shape, variant) as bench:
        cost = bench.throughput(step("messages", shape.messages))
        is_clique = variant.system != "group"
        asked = bench.ask(step("requests", shape.asked.requests)) if is_clique else None
        failover_s = bench.kill_one(step("kill -9", 1)) if is_clique and variant.workers > 1 else None
        bench.leave()
    return CliqueRun(
        system=variant.system,
        workers=variant.workers,
        messages_per_second=cost.messages_per_second,
        worker_us_per_message=cost.client_us_per_message,
        broker_us_per_message=cost.broker_us_per_message,
        asked=asked,
        failover_seconds=failover_s,
    )


class CliqueBench:
    """Workers that have joined, and the processes that publish and ask."""

    def __init__(
        self, target: Target, shape: CliqueShape, variant: Variant, load: CliqueLoad, stack: ExitStack
    ) -> None:
        self._target = target
        self._shape = shape
        self._load = load
        self._stack = stack
        self._workers: dict[str, LoadProcess] = {}
        role = "consume" if variant.system == "group" else "work"
        for number in range(
            variant.workers
        ):  # one after the other: the last one says `ready` when all have their keys
            name = f"worker-{number}"
            self._workers[name] = self._start(role=role, worker=name)
        self._asker = self._start(role="ask") if role == "work" else None

    def _start(self, **changes: str) -> LoadProcess:
        load = msgspec.structs.replace(self._load, **changes)
        return self._stack.enter_context(load_process(load, WORKER))

    def throughput(self, say: Say) -> Cost:
        """Publishes and handles at the same time: NATS keeps nothing for later."""
        publisher = self._start(role="publish")
        for worker in self._workers.values():
            worker.tell(Phase(messages=self._shape.messages))
        before = procfs.usage(self._target.pid)
        began_ns = time.monotonic_ns()
        publisher.go()
        reports = [worker.report(self._target, say) for worker in self._workers.values()]
        publisher.report(self._target, say)
        cost = cost_of(reports, before, procfs.usage(self._target.pid))
        seconds = (max(report.last_arrival_ns for report in reports) - began_ns) / 1e9
        return msgspec.structs.replace(cost, messages=self._shape.messages, seconds=seconds)

    def ask(self, say: Say) -> Latency:
        assert self._asker is not None
        self._asker.tell(self._shape.asked)
        return latency(self._asker.report(self._target, say).latencies_us)

    def kill_one(self, say: Say) -> float:
        """Seconds until one of its keys is served again."""
        assert self._asker is not None
        name, worker = self._workers.popitem()
        self._asker.tell(KillPhase(worker=name, pid=worker.pid))
        [taken_us] = self._asker.report(self._target, say).latencies_us
        return taken_us / 1e6

    def leave(self) -> None:
        for process in (self._asker, *self._workers.values()):
            if process is not None:
                process.leave()


@contextmanager
def _fresh_bench(target: Target, shape: CliqueShape, variant: Variant) -> Iterator[CliqueBench]:
    name = f"bench-{uuid.uuid4().hex[:12]}"
    carrier = f"penstock://{target.bootstrap}" if variant.system == "penstock" else target.bootstrap
    topic = nullcontext(name) if variant.system == "nats" else fresh_topic(target, shape.partitions)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, topic as stream:
        handled = Path(folder) / "handled"
        HandledMessages.create(handled, shape.messages)
        load = CliqueLoad(
            role="work",
            bootstrap=target.bootstrap,
            carrier=carrier,
            topic=stream,
            group=name,
            questions=f"{name}-questions",
            messages=shape.messages,
            size_bytes=shape.size_bytes,
            keys=shape.keys,
            handler_us=shape.handler_us,
            lease_ms=shape.lease_ms,
            handled=str(handled),
        )
        try:
            with ExitStack() as stack:
                yield CliqueBench(target, shape, variant, load, stack)
        finally:
            if variant.system != "nats":
                _clear(target, name)


def _clear(target: Target, name: str) -> None:
    """The groups and topics of a run, on a broker that goes on."""
    with suppress(ClientError), Client(target.bootstrap) as client:
        client.admin.delete_group(name, missing_ok=True)
        for topic in client.admin.topics():
            if topic.name.startswith(name):
                client.admin.delete_topic(topic.name)
