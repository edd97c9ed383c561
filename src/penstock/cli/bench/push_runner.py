"""Subscribers in a few processes, a publisher in another: a burst, and then a steady rate over the same connections."""

import os
import resource
import time
import uuid
from contextlib import ExitStack

import msgspec

from penstock.cli.bench import procfs
from penstock.cli.bench.figures import Cost, PushRun, cost_of, latency
from penstock.cli.bench.load import Phase, PushLoad, Role
from penstock.cli.bench.runner import WARM_UP_SECONDS, Say, Shape, Step, Target, fresh_topic, load_process
from penstock.cli.connection import Connection
from penstock.cli.http_api import find_urls
from penstock.cli.problem import Problem

WORKER = "penstock.cli.bench.push_worker"
PROCESSES_MOST = 4
BURST_DELIVERIES = 200_000
BURST_MESSAGES_MOST = 50_000
STEADY_DELIVERIES_PER_SECOND = 2_000
"""The default, well below a broker's capacity. Each delivery needs its own frame and ack, a few hundred microseconds of
CPU, and a rate above the capacity would measure the length of a queue."""
STEADY_MESSAGES_MOST = 500
FILES_SHARE = 8
"""A broker gives an eighth of its files to HTTP connections."""
SPARE_CONNECTIONS = 64
"""Connections that are kept free for other clients of the broker."""
HTTP_CONNECTIONS_DEFAULT = 4_096


class PushShape(msgspec.Struct, frozen=True, kw_only=True):
    """The load. None for a value that depends on the number of subscribers, so that a run has enough deliveries."""

    messages: int | None = None
    size_bytes: int = 100
    partitions: int = 1
    processes: int | None = None
    credit: int = 1000
    rate_per_second: int | None = None
    seconds: int = 10

    def burst(self, subscribers: int) -> int:
        return self.messages or max(1, min(BURST_MESSAGES_MOST, BURST_DELIVERIES // subscribers))

    def rate(self, subscribers: int) -> int:
        usual = max(1, min(STEADY_MESSAGES_MOST, STEADY_DELIVERIES_PER_SECOND // subscribers))
        return self.rate_per_second or usual

    def paced(self, subscribers: int) -> int:
        """Messages of the steady phase, with its warm-up."""
        return self.rate(subscribers) * (self.seconds + WARM_UP_SECONDS)

    def spread(self, subscribers: int) -> list[int]:
        """How many subscribers each process has."""
        usual = min(PROCESSES_MOST, os.cpu_count() or 1)
        processes = min(subscribers, self.processes or usual)
        each, more = divmod(subscribers, processes)
        return [each + (number < more) for number in range(processes)]


def broker_flags(subscribers: int) -> list[str]:
    """Flags of a broker for so many subscribers. Problem if this machine does not allow a process that many files."""
    connections = subscribers + SPARE_CONNECTIONS
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard // FILES_SHARE < connections:
        needed = connections * FILES_SHARE
        raise Problem(
            f"{subscribers:,} subscribers need a process that may open {needed:,} files; here it is {hard:,}",
            f"ulimit -Hn {needed} as root, or fewer --subscribers",
        )
    most = max(HTTP_CONNECTIONS_DEFAULT, connections)
    return ["--http", "127.0.0.1:0", "--set", f"limits.max_http_connections={most}"]


def run_push(target: Target, shape: PushShape, subscribers: int, step: Step) -> PushRun:
    with fresh_topic(target, shape.partitions) as topic, ExitStack() as stack:
        bench = PushBench(target, shape, subscribers, topic, stack)
        burst, _ = bench.burst(step("burst", shape.burst(subscribers)))
        steady, samples_us = bench.steady(step("steady rate", shape.paced(subscribers)))
        bench.leave()
    return PushRun(
        subscribers=subscribers,
        burst_messages=shape.burst(subscribers),
        deliveries_per_second=burst.messages_per_second,
        broker_us_per_delivery=burst.broker_us_per_message,
        client_us_per_delivery=burst.client_us_per_message,
        rate_per_second=shape.rate(subscribers),
        steady_broker_us_per_delivery=steady.broker_us_per_message,
        delivered=latency(samples_us),
    )


class PushBench:
    """A topic, its subscribers in processes, and their publisher."""

    def __init__(
        self, target: Target, shape: PushShape, subscribers: int, topic: str, stack: ExitStack
    ) -> None:
        self._target = target
        self._shape = shape
        self._subscribers = subscribers
        self._topic = topic
        url = find_urls(Connection(bootstrap=target.bootstrap))[0]  # any node: it redirects subscribers
        self._processes = [
            stack.enter_context(load_process(self._load(url, count), WORKER))
            for count in shape.spread(subscribers)
        ]

    def _load(self, url: str, count: int) -> PushLoad:
        return PushLoad(
            bootstrap=self._target.bootstrap,
            topic=self._topic,
            url=url,
            names=[f"{self._topic}-{uuid.uuid4().hex[:12]}" for _ in range(count)],
            credit=self._shape.credit,
        )

    def burst(self, say: Say) -> tuple[Cost, list[int]]:
        messages = self._shape.burst(self._subscribers)
        return self._phase("produce", Phase(messages=messages), linger_ms=5.0, say=say)

    def steady(self, say: Say) -> tuple[Cost, list[int]]:
        messages = self._shape.paced(self._subscribers)
        phase = Phase(messages=messages, is_paced=True, warm_up_seconds=float(WARM_UP_SECONDS))
        return self._phase("send_paced", phase, linger_ms=0.0, say=say)

    def leave(self) -> None:
        for process in self._processes:
            process.leave()

    def _phase(self, role: Role, phase: Phase, *, linger_ms: float, say: Say) -> tuple[Cost, list[int]]:
        """The cost per delivery, and the latencies in microseconds."""
        shape = Shape(
            size_bytes=self._shape.size_bytes,
            partitions=self._shape.partitions,
            linger_ms=linger_ms,
            rate_per_second=self._shape.rate(self._subscribers),
        )
        with load_process(shape.load(self._target, self._topic, role, phase.messages)) as sender:
            for process in self._processes:
                process.tell(phase)
            before = procfs.usage(self._target.pid)
            began_ns = time.monotonic_ns()
            sender.go()
            reports = [process.report(self._target, say) for process in self._processes]
            sender.report(self._target, say)
        cost = cost_of(reports, before, procfs.usage(self._target.pid))
        seconds = (max(report.last_arrival_ns for report in reports) - began_ns) / 1e9
        samples_us = [sample for report in reports for sample in report.latencies_us]
        return msgspec.structs.replace(cost, seconds=seconds), samples_us
