"""Transactions on Penstock and on Apache Kafka, in turns: `make bench-transactions`.

    committing   one producer, one partition, 100 B; 1, 10, 100 and 1,000 records a transaction: committed messages per
                 second, and how long commit_transaction takes once all records are acknowledged
    consuming    a topic of committed transactions, read with read_uncommitted and with read_committed

The client is librdkafka each time, with its own defaults. Penstock flushes the coordinator's decision, the records and
the markers before it answers; Kafka with its own defaults flushes nothing. Every figure is the median of runs that
alternate between the brokers, on one disk. Results go to .cache/bench/ as Markdown.
"""

import argparse
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple
from uuid import uuid4

import page
from against_kafka import both_brokers
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_launcher import CACHE, VERSION, Unavailable, fetch

import penstock
from penstock.cli.bench.figures import latency
from penstock.cli.bench.runner import Target, fresh_topic
from penstock.cli.output import note
from penstock.cli.problem import Problem

SIZE_BYTES = 100
RECORDS = (1, 10, 100, 1000)
CONSUMED_RECORDS_OF_A_TRANSACTION = 100
CONSUMED_MESSAGES = 500_000
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
PATIENCE_SECONDS = 60.0
WARM_UP_SECONDS = 3.0
TARGETS = ("penstock", "kafka")


class Committing(NamedTuple):
    messages_per_second: float
    commit_p50_ms: float
    commit_p99_ms: float


class Key(NamedTuple):
    """Penstock or Kafka, and records a transaction."""

    target: str
    records: int


CommitFigures = dict[Key, list[Committing]]
ReadFigures = dict[tuple[str, str], list[float]]
"""Messages per second by broker and isolation level."""


# --- committing


def new_producer(target: Target) -> Producer:
    producer = Producer(
        {"bootstrap.servers": target.bootstrap, "transactional.id": f"bench-{uuid4().hex}", "log_level": 3}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def commit_one(producer: Producer, topic: str, records: int) -> int:
    """One transaction; the microseconds of its commit."""
    value = b"x" * SIZE_BYTES
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    began = time.perf_counter_ns()
    producer.commit_transaction(PATIENCE_SECONDS)
    return (time.perf_counter_ns() - began) // 1000


def commit_for(target: Target, records: int, seconds: float) -> Committing:
    """Transactions one after the other for this long."""
    with fresh_topic(target, 1) as topic:
        producer = new_producer(target)
        commit_one(producer, topic, records)
        commits_us = []
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            commits_us.append(commit_one(producer, topic, records))
        taken = latency(commits_us)
        return Committing(len(commits_us) * records / elapsed, taken.p50_ms, taken.p99_ms)


def committing(targets: list[Target], rounds: int, seconds: float) -> CommitFigures:
    figures: CommitFigures = defaultdict(list)
    for target in targets:  # a JVM compiles what it runs often: let it, before anything counts
        commit_for(target, 1, WARM_UP_SECONDS)
        commit_for(target, 1000, WARM_UP_SECONDS)
    for records in RECORDS:
        for _ in range(rounds):
            for target in targets:
                found = commit_for(target, records, seconds)
                note(f"  {records:>5} a transaction, {target.name:<8} {found.messages_per_second:>9,.0f} /s")
                figures[Key(target.name, records)].append(found)
    return figures


# --- consuming


def consume_all(target: Target, topic: str, isolation: str, messages: int) -> float:
    """Messages per second, from the first message that arrives to the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = len(consumer.consume(1, PATIENCE_SECONDS))
        began = time.perf_counter()
        while seen < messages:
            found = consumer.consume(min(10_000, messages - seen), PATIENCE_SECONDS)
            assert found
            assert not any(one.error() for one in found)
            seen += len(found)
        return messages / (time.perf_counter() - began)
    finally:
        consumer.close()


def consuming(targets: list[Target], rounds: int, messages: int) -> ReadFigures:
    figures: ReadFigures = defaultdict(list)
    for target in targets:
        with fresh_topic(target, 1) as topic:
            producer = new_producer(target)
            for _ in range(messages // CONSUMED_RECORDS_OF_A_TRANSACTION):
                commit_one(producer, topic, CONSUMED_RECORDS_OF_A_TRANSACTION)
            consume_all(
                target, topic, "read_committed", messages
            )  # the last marker is there, the cache is warm
            for _ in range(rounds):
                for isolation in ISOLATION_LEVELS:
                    speed = consume_all(target, topic, isolation, messages)
                    note(f"  {isolation:<16} {target.name:<8} {speed:>9,.0f} /s")
                    figures[target.name, isolation].append(speed)
    return figures


# --- the tables


def commit_table(figures: CommitFigures) -> Iterator[str]:
    yield "| records a transaction | Penstock, messages/s | Kafka | ratio | commit p50 | p99 | Kafka p50 | p99 |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for records in RECORDS:
        ours, theirs = (_medians(figures[Key(name, records)]) for name in TARGETS)
        ratio = ours.messages_per_second / theirs.messages_per_second
        commits = " | ".join(
            f"{ms:.1f} ms" for one in (ours, theirs) for ms in (one.commit_p50_ms, one.commit_p99_ms)
        )
        speeds = f"{ours.messages_per_second:,.0f} | {theirs.messages_per_second:,.0f}"
        yield f"| {records:,} | {speeds} | {ratio:.2f} | {commits} |"


def _medians(found: list[Committing]) -> Committing:
    return Committing(*(median(each) for each in zip(*found, strict=True)))


def read_table(figures: ReadFigures) -> Iterator[str]:
    yield "| consuming | read_uncommitted, messages/s | read_committed, messages/s | ratio |"
    yield "|---|---:|---:|---:|"
    for name in TARGETS:
        every, committed = (median(figures[name, level]) for level in ISOLATION_LEVELS)
        yield f"| {name.capitalize()} | {every:,.0f} | {committed:,.0f} | {committed / every:.2f} |"


def measure(libs: Path, options: argparse.Namespace) -> str:
    with both_brokers(libs) as (ours, theirs):
        ours.start()
        theirs.start()
        targets = [
            Target(name="penstock", bootstrap=ours.bootstrap, pid=ours.pid),
            Target(name="kafka", bootstrap=theirs.bootstrap, pid=theirs.pid),
        ]
        commits = committing(targets, options.rounds, options.seconds)
        reads = consuming(targets, options.rounds, options.messages)
    intro = (
        f"Penstock {penstock.__version__} and Apache Kafka {options.kafka_version} on {platform.machine()}: one "
        f"producer, one partition, {SIZE_BYTES} B, medians of {options.rounds} runs of {options.seconds:g} s in "
        "turns. Penstock flushes decisions, records and markers to the disk, Kafka does not."
    )
    consumed = f"Consuming {options.messages:,} messages, {CONSUMED_RECORDS_OF_A_TRANSACTION} a transaction:"
    return "\n".join([intro, "", *commit_table(commits), "", consumed, "", *read_table(reads)]) + "\n"


def main() -> None:
    options = _options()
    try:
        text = measure(fetch(options.kafka_version), options)
    except (Unavailable, Problem) as failure:
        sys.exit(f"bench-transactions: {failure}")
    CACHE.joinpath("bench").mkdir(parents=True, exist_ok=True)
    CACHE.joinpath("bench", "transactions.md").write_text(text)
    if options.publish:
        page.publish("bench-transactions", text)
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each run commits")
    parser.add_argument("--messages", type=int, default=CONSUMED_MESSAGES, help="of the topic that is read")
    parser.add_argument("--kafka-version", default=VERSION)
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
