"""Three nodes of Penstock beside three of Apache Kafka: `make bench-cluster`.

    throughput   6 partitions of 3 replicas, acks=all, 100 B and 1 KB; the CPU of all three brokers per message
    failover     kill -9 of a partition's leader: until the other nodes name another one
    copying      a node that lost its disk gets a partition of --gb GB again, beside copying and flushing its files
    idle         1,000 partitions of 3 replicas without clients: the CPU of each node
    elections    --seconds of producers at full speed beside a busy process per core: elections in that time
    cores        6 partitions of one copy on one, two and three nodes of this machine, with two producers

Throughput runs alternate between the two; Kafka does not flush what it acknowledges, Penstock does, on a majority.
Results go to .cache/bench/ as JSON and as Markdown.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import msgspec
import page
from cluster_launcher import Brokers, KafkaBrokers, PenstockBrokers, copy_and_flush, size_of
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_launcher import CACHE, Unavailable, fetch

from penstock.cli.bench import procfs
from penstock.cli.bench.runner import Shape, Target, fresh_topic, run_produce
from penstock.cli.connection import Connection
from penstock.cli.http_api import find_urls
from penstock.cli.output import note

PARTITIONS = 6
BYTES_PER_RUN = 100_000_000
MESSAGES_MOST = 500_000
FAILOVERS = 7
IDLE_PARTITIONS = 1000
IDLE_SECONDS = 20.0
SETTLE_SECONDS = 10.0
PATIENCE_SECONDS = 300.0
QUIET = {"log_level": "0"}
NO_LEADER = -1
BUSY = "while True: pass"
ELECTIONS_WON = re.compile(r"^penstock_elections_won_total\S* (\d+)", re.MULTILINE)


class Throughput(msgspec.Struct, kw_only=True):
    size_bytes: int
    penstock_per_second: float
    penstock_us: float
    """CPU of all three brokers, microseconds per message."""
    kafka_per_second: float | None = None
    kafka_us: float | None = None


class Figures(msgspec.Struct, kw_only=True):
    rounds: int
    warm_up_s: float
    throughput: list[Throughput] = []
    failover_seconds: list[float] = []
    copied_mb_per_second: float = 0.0
    file_copy_mb_per_second: float = 0.0
    idle_cores: list[float] = []
    loaded_seconds: float = 0.0
    elections_under_load: int = 0
    messages_under_load: int = 0
    per_second_by_nodes: dict[str, float] = {}


def main() -> None:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-cluster-"))
    figures = Figures(rounds=options.rounds, warm_up_s=options.warm_up)
    try:
        if "throughput" in options.parts:
            figures.throughput = _throughput(folder / "throughput", options.rounds, options.warm_up)
        if "failover" in options.parts:
            figures.failover_seconds = _failover(folder / "failover")
        if "copying" in options.parts:
            _copying(folder / "copying", options.gb, figures)
        if "idle" in options.parts:
            figures.idle_cores = _idle(folder / "idle")
        if "elections" in options.parts:
            _elections(folder / "elections", options.seconds, figures)
        if "cores" in options.parts:
            figures.per_second_by_nodes = _cores(folder / "cores")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report = _render(figures)
    print(report)
    target = CACHE / "bench"
    target.mkdir(parents=True, exist_ok=True)
    (target / "against-kafka-cluster.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    (target / "against-kafka-cluster.md").write_text(report)
    if options.publish:
        page.publish("bench-cluster", report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    everything = ["throughput", "failover", "copying", "idle", "elections", "cores"]
    parser.add_argument(
        "parts", nargs="*", default=everything, help=f"of {', '.join(everything)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--gb", type=float, default=1.0, help="size of the partition that is copied")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long `elections` lasts")
    parser.add_argument(
        "--warm-up", type=float, default=60.0, help="seconds of load before `throughput` is measured"
    )
    return parser.parse_args()


# --- throughput


def _throughput(folder: Path, rounds: int, warm_up_s: float) -> list[Throughput]:
    clusters: list[Brokers] = [PenstockBrokers(folder / "penstock")]
    try:
        clusters.append(KafkaBrokers(folder / "kafka", fetch()))
    except Unavailable as reason:
        note(f"without Kafka: {reason}")
    runs: dict[tuple[str, int], list[tuple[float, float]]] = {}
    sizes = (100, 1024)
    shapes = [
        Shape(
            messages=min(MESSAGES_MOST, BYTES_PER_RUN // size),
            size_bytes=size,
            partitions=PARTITIONS,
            acks="all",
        )
        for size in sizes
    ]
    for number in range(rounds):
        for cluster in clusters:
            with cluster:
                _warm_up(cluster, shapes, warm_up_s)
                for shape in shapes:
                    found = _run(cluster, shape)
                    runs.setdefault((cluster.name, shape.size_bytes), []).append(found)
                    note(
                        f"round {number + 1}: {cluster.name}, {shape.size_bytes} B: "
                        f"{found[0]:,.0f}/s, {found[1]:.1f} us"
                    )
    rows = []
    for size in sizes:
        ours, theirs = runs[("Penstock", size)], runs.get(("Kafka", size))
        row = Throughput(
            size_bytes=size,
            penstock_per_second=median(rate for rate, _ in ours),
            penstock_us=median(cost for _, cost in ours),
        )
        if theirs:
            row.kafka_per_second = median(rate for rate, _ in theirs)
            row.kafka_us = median(cost for _, cost in theirs)
        rows.append(row)
    return rows


def _warm_up(cluster: Brokers, shapes: list[Shape], seconds: float) -> None:
    """The same load beforehand: a JVM compiles its code while it runs."""
    target = Target(name=cluster.name, bootstrap=cluster.bootstrap)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for shape in shapes:
            with fresh_topic(target, shape.partitions) as topic:
                _wait_for_leaders(cluster, topic)
                run_produce(target, shape, topic, lambda _: None)


def _run(cluster: Brokers, shape: Shape) -> tuple[float, float]:
    """Messages a second and the brokers' CPU, microseconds a message."""
    target = Target(name=cluster.name, bootstrap=cluster.bootstrap)
    with fresh_topic(target, shape.partitions) as topic:
        _wait_for_leaders(cluster, topic)
        run_produce(
            target, msgspec.structs.replace(shape, messages=shape.messages // 5), topic, lambda _: None
        )
        before = _cpu_seconds(cluster)
        run = run_produce(target, shape, topic, lambda _: None)
        spent = _cpu_seconds(cluster) - before
    return run.messages_per_second, spent / run.messages * 1e6


def _cpu_seconds(cluster: Brokers) -> float:
    found = [procfs.usage(pid) for pid in cluster.pids]
    return sum(one.cpu_seconds for one in found if one is not None)


def _wait_for_leaders(cluster: Brokers, topic: str, in_sync: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            partitions = list(admin.list_topics(topic, timeout=10).topics[topic].partitions.values())
        except KafkaException:  # on a busy machine, a node that creates many files may be slow to answer
            partitions = []
        if partitions and all(one.leader >= 0 and len(one.isrs) >= in_sync for one in partitions):
            return
        time.sleep(0.1)  # metadata has to be asked for
    sys.exit(f"error: {cluster.name}: {topic} has not all its replicas after {PATIENCE_SECONDS:.0f} s")


# --- failover


def _failover(folder: Path) -> list[float]:
    """Seconds without a leader, of several kills."""
    seconds = []
    with PenstockBrokers(folder) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(30)
        for number in range(FAILOVERS):
            _wait_for_leaders(cluster, "t")
            time.sleep(1.0)  # the last node that came back has caught up; let it settle
            while (leader := _leader(admin)) < 0:  # a preferred leader takes over
                time.sleep(0.1)
            taken = _seconds_without(cluster, leader)
            note(f"failover {number + 1}: {taken:.2f} s")
            seconds.append(taken)
            cluster.start_node(leader)
            cluster.wait_for_nodes(3)
    return seconds


def _seconds_without(cluster: Brokers, leader: int) -> float:
    """Until a node that is left names another leader, which it does when that one has confirmed its term. Clients need
    up to a second more: librdkafka looks for a new leader about once a second."""
    left = [port for node, port in enumerate(cluster.ports, 1) if node != leader]
    admin = AdminClient({"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in left), **QUIET})
    admin.list_topics("t", timeout=10)
    cluster.kill_node(leader)
    killed = time.perf_counter()
    while _leader(admin) in (leader, NO_LEADER):
        time.sleep(0.01)  # metadata has to be asked for
    return time.perf_counter() - killed


def _leader(admin: AdminClient) -> int:
    try:
        return admin.list_topics("t", timeout=2).topics["t"].partitions[0].leader
    except KafkaException:  # the client may have asked the node that was killed
        return NO_LEADER


# --- copying


def _copying(folder: Path, gigabytes: float, figures: Figures) -> None:
    with PenstockBrokers(folder) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic("big", 1, 3)])["big"].result(30)
        _wait_for_leaders(cluster, "big")
        shape = Shape(messages=int(gigabytes * 1e9 / 1000), size_bytes=1000, partitions=1, acks="all")
        run_produce(Target(name="Penstock", bootstrap=cluster.bootstrap), shape, "big", lambda _: None)
        leader = admin.list_topics("big", timeout=10).topics["big"].partitions[0].leader
        follower = next(node for node in (1, 2, 3) if node != leader)
        source = cluster.data_dir(leader) / "topics" / "big-0"
        size = size_of(source)
        seconds = copy_and_flush(source, folder / "copy")
        figures.file_copy_mb_per_second = size / seconds / 1e6
        cluster.kill_node(follower)
        cluster.wipe(follower)
        began = time.perf_counter()
        cluster.start_node(follower)
        copy = cluster.data_dir(follower) / "topics" / "big-0"
        first = 0.0
        while (there := size_of(copy)) < size:
            if there and not first:
                first = time.perf_counter()
            if time.perf_counter() - began > PATIENCE_SECONDS:
                sys.exit(f"error: {there} of {size} bytes are there after {PATIENCE_SECONDS:.0f} s")
            time.sleep(0.02)  # a file has to be looked at
        figures.copied_mb_per_second = size / (time.perf_counter() - first) / 1e6
        note(
            f"copied at {figures.copied_mb_per_second:.0f} MB/s, files {figures.file_copy_mb_per_second:.0f}"
        )


# --- idle


def _idle(folder: Path) -> list[float]:
    with PenstockBrokers(folder) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic("many", IDLE_PARTITIONS, 3)], request_timeout=60)["many"].result(60)
        _wait_for_leaders(cluster, "many")
        time.sleep(SETTLE_SECONDS)
        before = [procfs.usage(pid) for pid in cluster.pids]
        began = time.perf_counter()
        time.sleep(IDLE_SECONDS)
        seconds = time.perf_counter() - began
        after = [procfs.usage(pid) for pid in cluster.pids]
    return [
        (later.cpu_seconds - earlier.cpu_seconds) / seconds
        for earlier, later in zip(before, after, strict=True)
        if earlier is not None and later is not None
    ]


# --- elections


def _elections(folder: Path, seconds: float, figures: Figures) -> None:
    with PenstockBrokers(folder) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(30)
        _wait_for_leaders(cluster, "t")
        time.sleep(SETTLE_SECONDS)  # preferred leaders take over within that time
        urls = find_urls(Connection(bootstrap=cluster.bootstrap))
        target = Target(name="Penstock", bootstrap=cluster.bootstrap)
        shape = Shape(messages=MESSAGES_MOST // 2, size_bytes=100, partitions=PARTITIONS, acks="all")
        before, began = _elections_won(urls), time.perf_counter()
        with _busy_cores():
            while time.perf_counter() - began < seconds:
                figures.messages_under_load += run_produce(target, shape, "t", lambda _: None).messages
        figures.loaded_seconds = time.perf_counter() - began
        figures.elections_under_load = _elections_won(urls) - before


def _elections_won(urls: list[str]) -> int:
    pages = []
    for url in urls:
        with urlopen(f"{url}/metrics", timeout=30) as answer:
            pages.append(answer.read().decode())
    return sum(int(number) for page in pages for number in ELECTIONS_WON.findall(page))


@contextmanager
def _busy_cores() -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# --- cores


def _cores(folder: Path) -> dict[str, float]:
    """Messages a second of two producers together, by the number of nodes."""
    found: dict[str, float] = {}
    for nodes in (1, 2, 3):
        with PenstockBrokers(folder / str(nodes), nodes) as cluster:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
            admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(30)
            _wait_for_leaders(cluster, "t", in_sync=1)
            target = Target(name="Penstock", bootstrap=cluster.bootstrap)
            shape = Shape(messages=MESSAGES_MOST // 2, size_bytes=100, partitions=PARTITIONS, acks="all")
            run_produce(target, msgspec.structs.replace(shape, messages=50_000), "t", lambda _: None)
            with ThreadPoolExecutor(2) as pool:
                started = [pool.submit(run_produce, target, shape, "t", lambda _: None) for _ in range(2)]
                runs = [run.result() for run in started]
        found[str(nodes)] = sum(run.messages for run in runs) / max(run.seconds for run in runs)
        note(f"{nodes} nodes: {found[str(nodes)]:,.0f}/s")
    return found


# --- report


def _render(figures: Figures) -> str:
    lines: list[str] = []
    if figures.throughput:
        lines += [
            "| acks=all, 3 replicas, 6 partitions | Penstock | Kafka | ratio | Penstock CPU | Kafka CPU |"
        ]
        lines += ["|---|---:|---:|---:|---:|---:|"]
        lines += [_row(row) for row in figures.throughput]
        lines += [
            "",
            f"Medians of {figures.rounds} in turns on the cores that the producers use, too; each cluster had the same "
            f"load for {figures.warm_up_s:.0f} s beforehand, so that Kafka's JVMs were warm.",
            "",
        ]
    if figures.failover_seconds:
        middle, worst = median(figures.failover_seconds), max(figures.failover_seconds)
        lines += [
            f"Without a leader after kill -9: median **{middle:.2f} s**, longest {worst:.2f} s of "
            f"{len(figures.failover_seconds)} (goal: median of 1 s at most).",
            "",
        ]
    if figures.copied_mb_per_second:
        copied, files = figures.copied_mb_per_second, figures.file_copy_mb_per_second
        lines += [
            f"A replica that lost its disk is copied at **{copied:.0f} MB/s**, the files themselves at {files:.0f} "
            f"MB/s: ratio **{copied / files:.2f}** (goal 0.5).",
            "",
        ]
    if figures.idle_cores:
        shown = ", ".join(f"{cores:.3f}" for cores in figures.idle_cores)
        lines += [f"1,000 idle partitions of 3 replicas: {shown} cores per node (goal: 0.05 at most).", ""]
    if figures.loaded_seconds:
        lines += [
            f"{figures.loaded_seconds:.0f} s of a producer at full speed ({figures.messages_under_load:,} messages, "
            f"acks=all, 3 replicas) beside a busy process per core: **{figures.elections_under_load}** elections "
            "(goal: none).",
            "",
        ]
    if figures.per_second_by_nodes:
        shown = ", ".join(f"{nodes}: {rate:,.0f}/s" for nodes, rate in figures.per_second_by_nodes.items())
        lines += [f"One copy, acks=all, 100 B, two producers, by nodes on this machine: {shown}.", ""]
    return "\n".join(lines)


def _row(row: Throughput) -> str:
    if row.kafka_per_second is None or row.kafka_us is None:
        return f"| {row.size_bytes} B | {row.penstock_per_second:,.0f}/s | - | - | {row.penstock_us:.1f} us | - |"
    ratio = row.penstock_per_second / row.kafka_per_second
    return (
        f"| {row.size_bytes} B | {row.penstock_per_second:,.0f}/s | {row.kafka_per_second:,.0f}/s | **{ratio:.2f}** "
        f"| {row.penstock_us:.1f} us | {row.kafka_us:.1f} us |"
    )


if __name__ == "__main__":
    main()
