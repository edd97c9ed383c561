"""Fills a queue and consumes it, in load processes: a new topic and group for each run."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from penstock.cli.bench.figures import Cost, QueueRun, latency
from penstock.cli.bench.load import QueueLoad, QueueStats, Via
from penstock.cli.bench.runner import (
    WARM_UP_SECONDS,
    LoadProcess,
    Say,
    Shape,
    Step,
    Target,
    fresh_topic,
    load_process,
    measured,
)
from penstock.cli.problem import Problem
from penstock.client import Client, ClientError

WORKER = "penstock.cli.bench.queue_worker"


class QueueShape(msgspec.Struct, frozen=True, kw_only=True):
    """The load, the same for every client."""

    messages: int = 50_000
    size_bytes: int = 100
    partitions: int = 1
    consumers: int = 1
    prefetch: int = 1000
    """The most messages that one consumer of Penstock's client has at once."""
    rate_per_second: int = 1000
    seconds: int = 10

    def of_sender(self) -> Shape:
        """The load that the sender makes in the part at a steady rate."""
        return Shape(
            size_bytes=self.size_bytes,
            partitions=self.partitions,
            rate_per_second=self.rate_per_second,
            seconds=self.seconds,
            linger_ms=0.0,
            idempotent=True,
        )


class QueueBench:
    """One queue with its topic, through one client."""

    def __init__(
        self, target: Target, shape: QueueShape, via: Via, topic: str, group: str, tally: Path
    ) -> None:
        self._target = target
        self._shape = shape
        self._consumer = QueueLoad(
            role="work_off",
            via=via,
            bootstrap=target.bootstrap,
            topic=topic,
            group=group,
            messages=shape.messages,
            size_bytes=shape.size_bytes,
            prefetch=shape.prefetch,
            tally=str(tally),
        )

    def throughput(self, step: Step) -> tuple[Cost, Cost]:
        """The cost of filling the queue, and of working it off."""
        shape = self._shape
        with ExitStack() as stack:
            consumers = self._consumers(stack, self._consumer)
            publisher = msgspec.structs.replace(self._consumer, role="publish")
            publishing = [stack.enter_context(load_process(publisher, WORKER))]
            filled, _ = measured(self._target, publishing, step("publishing", shape.messages))
            say = step("working off", shape.messages // len(consumers))
            worked_off, _ = measured(self._target, consumers, say)
        self._check_empty()
        return filled, worked_off

    def _consumers(self, stack: ExitStack, load: QueueLoad) -> list[LoadProcess]:
        loads = [msgspec.structs.replace(load, number=number) for number in range(self._shape.consumers)]
        return [stack.enter_context(load_process(each, WORKER)) for each in loads]

    def _check_empty(self) -> None:
        """Checks that the broker counts the same messages as done."""
        with Client(self._target.bootstrap) as client:
            undone = client.admin.queue(self._consumer.group).undone
        if undone:
            raise Problem(
                f"{self._target.name}: {undone:,} messages were acknowledged and are still in the queue"
            )

    def steady(self, say: Say) -> list[int]:
        """A trickle from one process to the consumers, in microseconds from publishing to delivery."""
        sender = self._shape.of_sender()
        send = sender.load(self._target, self._consumer.topic, "send_paced", sender.paced)
        receive = msgspec.structs.replace(
            self._consumer,
            messages=sender.paced,
            is_paced=True,
            warm_up_seconds=float(WARM_UP_SECONDS),
        )
        with ExitStack() as stack:
            processes = [*self._consumers(stack, receive), stack.enter_context(load_process(send))]
            _, (_, *received) = measured(self._target, processes, say)
        return [sample for report in received for sample in report.latencies_us]


def run_queue(target: Target, shape: QueueShape, via: Via, step: Step) -> QueueRun:
    with _fresh_queue(target, shape, via) as bench:
        filled, worked_off = bench.throughput(step)
    with _fresh_queue(target, shape, via) as bench:
        samples_us = bench.steady(step("steady rate", shape.of_sender().paced))
    return QueueRun(
        via=via,
        consumers=shape.consumers,
        published_per_second=filled.messages_per_second,
        acknowledged_per_second=worked_off.messages_per_second,
        publish_broker_us=filled.broker_us_per_message,
        acknowledge_broker_us=worked_off.broker_us_per_message,
        acknowledge_client_us=worked_off.client_us_per_message,
        delivered=latency(samples_us),
    )


@contextmanager
def _fresh_queue(target: Target, shape: QueueShape, via: Via) -> Iterator[QueueBench]:
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
            client.admin.create_queue(group, topic=topic)
        except ClientError as failure:
            raise Problem(f"{target.name} does not create a queue: {failure}") from None
        try:
            yield QueueBench(target, shape, via, topic, group, tally)
        finally:
            with suppress(ClientError):  # a broker that is gone has none
                client.admin.delete_group(group, missing_ok=True)
