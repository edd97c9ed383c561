"""Fills a queue and works it off, in load processes: a fresh topic and group for each, the broker's CPU apart."""

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from penstock.cli.bench import procfs
from penstock.cli.bench.figures import latency
from penstock.cli.bench.load import Report
from penstock.cli.bench.queue_figures import QueueRun
from penstock.cli.bench.queue_load import QueueLoad, QueueStats, Via
from penstock.cli.bench.runner import (
    WARM_UP_SECONDS,
    LoadProcess,
    Say,
    Shape,
    Target,
    checked,
    fresh_topic,
    load_of,
    load_process,
)
from penstock.cli.bench.session import Step
from penstock.cli.problem import Problem
from penstock.client import Client, ClientError

WORKER = "penstock.cli.bench.queue_worker"


class QueueShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the load looks like, whichever client makes it."""

    messages: int = 50_000
    size_bytes: int = 100
    partitions: int = 1
    consumers: int = 1
    prefetch: int = 1000
    """The most messages that one consumer of Penstock's client has at once."""
    rate_per_second: int = 1000
    seconds: int = 10

    @property
    def paced(self) -> int:
        """Messages of the part at a steady rate, with those that are not counted."""
        return self.rate_per_second * (self.seconds + WARM_UP_SECONDS)

    def of_sender(self) -> Shape:
        return Shape(
            size_bytes=self.size_bytes,
            partitions=self.partitions,
            rate_per_second=self.rate_per_second,
            linger_ms=0.0,
            idempotent=True,
        )


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run happens."""

    target: Target
    topic: str
    group: str
    tally: Path


def run_queue(target: Target, shape: QueueShape, via: Via, step: Step) -> QueueRun:
    with _fresh_queue(target, shape) as place:
        filled, worked_off = _throughput(place, shape, via, step)
    with _fresh_queue(target, shape) as place:
        samples_us = _steady(place, shape, via, step("steady rate", shape.paced))
    return QueueRun(
        via=via,
        consumers=shape.consumers,
        published_per_second=filled.per_second,
        acknowledged_per_second=worked_off.per_second,
        publish_broker_us=filled.broker_us,
        acknowledge_broker_us=worked_off.broker_us,
        acknowledge_client_us=worked_off.client_us,
        delivered=latency(samples_us),
    )


class Part(msgspec.Struct, frozen=True):
    """What one part of a run cost."""

    messages: int
    seconds: float
    client_cpu_seconds: float
    broker_cpu_seconds: float | None

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def client_us(self) -> float:
        return self.client_cpu_seconds / self.messages * 1e6

    @property
    def broker_us(self) -> float | None:
        return None if self.broker_cpu_seconds is None else self.broker_cpu_seconds / self.messages * 1e6


@contextmanager
def _fresh_queue(target: Target, shape: QueueShape) -> Iterator[Place]:
    """A topic with a queue that reads it from its beginning; both gone afterwards."""
    group = f"bench-{uuid.uuid4().hex[:12]}"
    with (
        fresh_topic(target, shape.partitions) as topic,
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        Client(target.bootstrap) as client,
    ):
        tally = Path(folder) / "tally"
        QueueStats.create(tally, shape.consumers)
        try:
            client.admin.create_queue(group)
        except ClientError as failure:
            raise Problem(f"{target.name} does not create a queue: {failure}") from None
        try:
            yield Place(target=target, topic=topic, group=group, tally=tally)
        finally:
            with suppress(ClientError):  # a broker that is gone has none
                client.admin.delete_group(group, missing_ok=True)


def _throughput(place: Place, shape: QueueShape, via: Via, step: Step) -> tuple[Part, Part]:
    load = _consumer_load(place, shape, via, messages=shape.messages)
    with ExitStack() as stack:
        consumers = _consumers(stack, load, shape.consumers)
        filled = _publish(stack, place, shape, via, step("publishing", shape.messages))
        worked_off = _part(place.target, consumers, step("working off", shape.messages // len(consumers)))
    _check_empty(place)
    return filled, worked_off


def _consumer_load(place: Place, shape: QueueShape, via: Via, messages: int) -> QueueLoad:
    return QueueLoad(
        role="work_off",
        via=via,
        bootstrap=place.target.bootstrap,
        topic=place.topic,
        group=place.group,
        messages=messages,
        size_bytes=shape.size_bytes,
        prefetch=shape.prefetch,
        tally=str(place.tally),
    )


def _consumers(stack: ExitStack, load: QueueLoad, count: int) -> list[LoadProcess]:
    loads = [msgspec.structs.replace(load, number=number) for number in range(count)]
    return [stack.enter_context(load_process(each, WORKER)) for each in loads]


def _publish(stack: ExitStack, place: Place, shape: QueueShape, via: Via, say: Say) -> Part:
    load = QueueLoad(
        role="publish",
        via=via,
        bootstrap=place.target.bootstrap,
        topic=place.topic,
        messages=shape.messages,
        size_bytes=shape.size_bytes,
    )
    publisher = stack.enter_context(load_process(load, WORKER))
    return _part(place.target, [publisher], say)


def _part(target: Target, processes: Sequence[LoadProcess], say: Say) -> Part:
    """Lets them go together; the last one ends the time."""
    before = procfs.usage(target.pid)
    for process in processes:
        process.go()
    reports = [_checked(target, process.finish(say)) for process in processes]
    after = procfs.usage(target.pid)
    return Part(
        messages=sum(report.messages for report in reports),
        seconds=max(report.seconds for report in reports),
        client_cpu_seconds=sum(report.cpu_seconds for report in reports),
        broker_cpu_seconds=after.cpu_seconds - before.cpu_seconds if after and before else None,
    )


def _checked(target: Target, report: Report) -> Report:
    if report.error:
        raise Problem(f"{target.name}: {report.error}")
    return report


def _check_empty(place: Place) -> None:
    """What was counted as done is done for the broker, too."""
    with Client(place.target.bootstrap) as client:
        undone = client.admin.queue(place.group).undone
    if undone:
        raise Problem(
            f"{place.target.name}: {undone:,} messages were acknowledged and are still in the queue"
        )


def _steady(place: Place, shape: QueueShape, via: Via, say: Say) -> list[int]:
    """A trickle from one process to the consumers, in microseconds from publishing to delivery."""
    sender_shape = shape.of_sender()
    settings = sender_shape.producer_settings()
    send = load_of(place.target, sender_shape, place.topic, "send_paced", shape.paced, settings)
    receive = msgspec.structs.replace(
        _consumer_load(place, shape, via, messages=shape.paced),
        is_paced=True,
        warm_up_seconds=float(WARM_UP_SECONDS),
    )
    with ExitStack() as stack:
        consumers = _consumers(stack, receive, shape.consumers)
        sender = stack.enter_context(load_process(send))
        for process in (*consumers, sender):
            process.go()
        checked(place.target, sender.finish(say))
        reports: list[Report] = [_checked(place.target, each.finish(say)) for each in consumers]
    return [sample for report in reports for sample in report.latencies_us]
