"""Penstock and Apache Kafka under the same load, in turns: `make bench-kafka`.

    throughput   1 and 6 partitions; 100 B and 1 KB; plain and lz4; acks 1 and all; producing and consuming
    latency      1,000 messages a second, acks 1 and all; flushes of the disk alone
    start        from the process to the first answer, on a data folder that exists
    memory       resident, three seconds after the start, without clients
    partitions   the same load spread over 1, 100 and 1,000 partitions: cost per message
    log size     (--log-gb) the cost per message at the start and at the end of a log that grows

Every figure is the median of runs that alternate between the brokers, on one disk. Results go to .cache/bench/
as JSON and as Markdown.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean, median

import msgspec
import page
from kafka_launcher import CACHE, VERSION, Kafka, Unavailable, fetch
from markdown import render
from penstock_launcher import Penstock
from results import Cell, CellResult, LatencyResult, Results, ScalingResult

import penstock
from penstock.cli.bench import procfs
from penstock.cli.bench.figures import Latency, Run, latency
from penstock.cli.bench.load import Kind
from penstock.cli.bench.runner import Shape, Target, fresh_topic, one_round, progress, run_produce
from penstock.cli.output import note
from penstock.cli.problem import Problem

BYTES_PER_RUN = 200_000_000
MESSAGES_MOST = 1_000_000
QUICK_DIVISOR = 10
IDLE_AFTER_S = 3.0
LATENCY_RATE = 1000
LOG_CHUNK_MESSAGES = 200_000
CELLS = [
    Cell(partitions=partitions, size_bytes=size, compression=compression, acks=acks)
    for partitions in (1, 6)
    for size in (100, 1024)
    for compression in ("none", "lz4")
    for acks in ("1", "all")
]
SCALING_PARTITIONS = (1, 100, 1000)
SPREAD = {"sticky.partitioning.linger.ms": "0"}
"""Each message to a partition of its own choice, so that a thousand partitions really share the load."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    messages_most: int
    bytes_per_run: int
    latency_seconds: int
    log_gb: float

    def shape(self, cell: Cell) -> Shape:
        return Shape(
            messages=max(1, min(self.messages_most, self.bytes_per_run // cell.size_bytes)),
            size_bytes=cell.size_bytes,
            partitions=cell.partitions,
            compression=cell.compression,
            acks=cell.acks,
        )


def main() -> None:
    options = _options()
    try:
        libs = fetch(options.kafka_version)
        results = measure(libs, _plan(options), options.kafka_version)
    except (Unavailable, Problem) as failure:
        sys.exit(f"bench-kafka: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
    _write(results, Path(options.output), to_page=options.publish)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of a tenth: only to see that it works"
    )
    parser.add_argument("--rounds", type=int, help="runs per broker and cell (default 3; quick 1)")
    parser.add_argument("--log-gb", type=float, default=0.0, help="also grow a log to this size")
    parser.add_argument("--kafka-version", default=VERSION)
    parser.add_argument("--output", default=str(CACHE / "bench"), help="the folder for the results")
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Plan:
    divisor = QUICK_DIVISOR if options.quick else 1
    return Plan(
        rounds=options.rounds or (1 if options.quick else 3),
        messages_most=MESSAGES_MOST // divisor,
        bytes_per_run=BYTES_PER_RUN // divisor,
        latency_seconds=2 if options.quick else 10,
        log_gb=options.log_gb,
    )


# --- the brokers


Brokers = tuple[Penstock, Kafka]


@contextmanager
def both_brokers(libs: Path) -> Iterator[Brokers]:
    """Not started yet; stopped and forgotten afterwards, whatever happens."""
    CACHE.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=CACHE))
    ours = Penstock(folder / "penstock")
    theirs: Kafka | None = None
    try:
        theirs = Kafka(libs, folder / "kafka")
        yield ours, theirs
    finally:
        ours.stop()
        if theirs is not None:
            theirs.stop()
        shutil.rmtree(folder, ignore_errors=True)


# --- the measurements


def measure(libs: Path, plan: Plan, kafka_version: str) -> Results:
    with both_brokers(libs) as brokers:
        note("start and idle memory")
        starts, memories = _starts(brokers, plan)
        ours, theirs = brokers
        targets = [
            Target(name="penstock", bootstrap=ours.bootstrap, pid=ours.pid),
            Target(name="kafka", bootstrap=theirs.bootstrap, pid=theirs.pid),
        ]
        note("throughput")
        cells = _throughput(targets, plan)
        note("latency")
        latencies = [_latency(targets, plan, acks) for acks in ("1", "all")]
        flushes = _flushes(ours.folder, plan)
        note("partitions")
        scaling = [_scaling(targets, plan, partitions) for partitions in SCALING_PARTITIONS]
        log_costs = _growing_log(targets[0], plan) if plan.log_gb else []
    return Results(
        machine=f"{_cpu()}, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        penstock_version=penstock.__version__,
        kafka_version=kafka_version,
        rounds=plan.rounds,
        cells=cells,
        geometric_mean=geometric_mean([ratio for cell in cells for ratio in cell.ratios]),
        worst=min(ratio for cell in cells for ratio in cell.ratios),
        latencies=latencies,
        flushes=flushes,
        start_seconds=starts,
        idle_bytes=memories,
        scaling=scaling,
        log_gb=plan.log_gb,
        log_us_per_message=log_costs,
    )


def _cpu() -> str:
    names = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    count = len(os.sched_getaffinity(0))
    return f"{count} x {', '.join(sorted(names)) or 'CPU'}"


def _starts(brokers: Brokers, plan: Plan) -> tuple[list[float], list[int]]:
    """The medians of several starts; both run afterwards. The first makes the folder and is not counted."""
    seconds: list[list[float]] = [[], []]
    each: list[Penstock | Kafka] = list(brokers)
    for attempt in range(plan.rounds + 1):
        for index, broker in enumerate(each):
            broker.stop()
            took = broker.start()
            seconds[index] += [took] if attempt else []
    time.sleep(IDLE_AFTER_S)
    memories = [procfs.usage(broker.pid) for broker in each]
    return [median(found) for found in seconds], [usage.rss_bytes if usage else 0 for usage in memories]


def _alternate(targets: list[Target], kinds: list[Kind], shape: Shape, rounds: int, label: str) -> list[Run]:
    with progress(rounds * len(targets)) as step:
        return [
            run
            for number in range(rounds)
            for target in targets
            for run in one_round(
                kinds, target, shape, step(f"{label}, {target.name}, {number + 1} of {rounds}")
            )
        ]


def _throughput(targets: list[Target], plan: Plan) -> list[CellResult]:
    for cell in (CELLS[0], CELLS[-1]):  # a JVM compiles what it runs often: let it, before anything counts
        _alternate(targets, ["produce", "consume"], plan.shape(cell), 1, "warming up")
    found = []
    for cell in CELLS:
        runs = _alternate(targets, ["produce", "consume"], plan.shape(cell), plan.rounds, cell.label)
        result = CellResult.of(cell, runs)
        note(f"  {cell.label:<34} produce {result.ratios[0]:.2f}  consume {result.ratios[1]:.2f}")
        found.append(result)
    return found


def _latency(targets: list[Target], plan: Plan, acks: str) -> LatencyResult:
    shape = Shape(acks=acks, linger_ms=0.0, rate_per_second=LATENCY_RATE, seconds=plan.latency_seconds)
    _alternate(targets, ["latency"], msgspec.structs.replace(shape, seconds=2), 1, "warming up")
    runs = _alternate(targets, ["latency"], shape, plan.rounds, f"acks={acks}")
    return LatencyResult.of(acks, runs)


def _flushes(folder: Path, plan: Plan) -> Latency:
    """The time of the flush that Penstock waits for: a small append and fdatasync, at the same rate."""
    samples_us = []
    with (folder / "flushes").open("wb", buffering=0) as file:
        begin = time.perf_counter()
        for number in range(plan.latency_seconds * LATENCY_RATE):
            time.sleep(max(0.0, begin + number / LATENCY_RATE - time.perf_counter()))
            before = time.perf_counter_ns()
            file.write(bytes(200))
            os.fdatasync(file.fileno())
            samples_us.append((time.perf_counter_ns() - before) // 1000)
    return latency(samples_us)


def _scaling(targets: list[Target], plan: Plan, partitions: int) -> ScalingResult:
    shape = Shape(
        messages=plan.messages_most // 4, partitions=partitions, acks="1", linger_ms=50.0, settings=SPREAD
    )
    runs = _alternate(targets, ["produce"], shape, plan.rounds, f"{partitions} partitions")
    return ScalingResult.of(partitions, runs)


def _growing_log(target: Target, plan: Plan) -> list[float]:
    """The broker's cost per message for each stretch of a log that grows to `log_gb`."""
    shape = Shape(messages=LOG_CHUNK_MESSAGES, size_bytes=1024, acks="1")
    chunks = max(2, round(plan.log_gb * 1e9 / (LOG_CHUNK_MESSAGES * 1024)))
    note(f"log size: {chunks} stretches of {LOG_CHUNK_MESSAGES:,} messages")
    with fresh_topic(target, 1) as topic:
        runs = [run_produce(target, shape, topic, lambda done: None) for _ in range(chunks)]
    return [run.broker_us_per_message or 0.0 for run in runs]


def _write(results: Results, folder: Path, *, to_page: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "against_kafka.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    text = render(results)
    (folder / "against_kafka.md").write_text(text)
    if to_page:
        page.publish("bench", text)
    print(text)


if __name__ == "__main__":
    main()
