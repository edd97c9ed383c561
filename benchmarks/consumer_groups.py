"""One consumer group of KIP-848 with many members, on Penstock and on Apache Kafka: `make bench-groups`.

    joining      all members join at once, until every partition has one owner
    heartbeats   members that have no news, as many requests at a time as there are connections in use: per second, p99
    leaving      a tenth of the members leave, until the others have their partitions
    coming       they join again, until all have their share

The client speaks the protocol itself, with one connection per member, and sends each member's next heartbeat
HEARTBEAT_S after the answer before: real clients wait for seconds, which would hide the brokers. Every member confirms
an assignment with its next heartbeat. A topic has two partitions per member. Both brokers compute an assignment without
a pause (`consumer.assignment.interval.ms=0`; Kafka 4.2 has no such pause). Penstock flushes every change of the group
before it answers; Kafka with its own defaults flushes nothing. Every figure is the median of the runs. Results go to
.cache/bench/ as Markdown.

    python benchmarks/consumer_groups.py --members 100 --members 1000 --runs 3 [--no-kafka] [--publish]
"""

import argparse
import asyncio
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import page
import uvloop
from kafka_launcher import CACHE, VERSION, Kafka, Unavailable, fetch
from penstock_launcher import Penstock

import penstock
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey, Message, decode_response, encode_request, join
from penstock.kafka.wire.messages import consumer_group_heartbeat as heartbeats
from penstock.kafka.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.kafka.wire.messages.find_coordinator import FindCoordinatorRequest

HEARTBEAT_S = 0.1
PARTITIONS_PER_MEMBER = 2
REBALANCE_TIMEOUT_MS = 60_000
PATIENCE_S = 120.0
HEARTBEATS_S = 5.0
AT_A_TIME = 32
JOIN, LEAVE = 0, -1
RETRIABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
Owned = frozenset[tuple[UUID, int]]


class Figures(NamedTuple):
    joining_s: float
    heartbeats_per_second: float
    heartbeat_p99_ms: float
    leaving_s: float
    coming_s: float


class Connection:
    """One request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._correlation = 0

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def call(self, key: ApiKey, version: int, request: Message) -> Any:
        self._correlation += 1
        self._writer.write(join(encode_request(key, version, self._correlation, "bench", request)))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(size)
        return decode_response(key, version, memoryview(frame))[1]

    def close(self) -> None:
        self._writer.close()


class Member:
    """A consumer that takes over every assignment at once."""

    def __init__(self, connection: Connection, group: str, topic: str) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.member_id = str(uuid4())
        self.epoch = JOIN
        self.owned: Owned = frozenset()
        self._is_confirmed = True

    async def heartbeat(self) -> None:
        request = heartbeats.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch
        )
        if self.epoch == JOIN:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names, request.topic_partitions = [self.topic], []
        elif not self._is_confirmed:
            request.topic_partitions = _topics(self.owned)
        answer = await self.connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        if answer.error_code in RETRIABLE:
            return
        assert answer.error_code == ErrorCode.NONE, (answer.error_code, answer.error_message)
        self.epoch, self._is_confirmed = answer.member_epoch, True
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            self.owned = frozenset((row.topic_id, index) for row in rows for index in row.partitions)
            self._is_confirmed = False

    async def leave(self) -> None:
        request = heartbeats.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=LEAVE
        )
        await self.connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
        self.epoch, self.owned, self._is_confirmed = JOIN, frozenset(), True


def _topics(owned: Owned) -> list[heartbeats.TopicPartitions]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in owned:
        topics.setdefault(topic_id, []).append(index)
    return [heartbeats.TopicPartitions(topic_id=each, partitions=rows) for each, rows in topics.items()]


class Group:
    """All members of one group."""

    def __init__(self, members: list[Member], partitions: int) -> None:
        self.members = members
        self.partitions = partitions

    async def settle(self, members: list[Member]) -> float:
        """Seconds until these members have all partitions, evenly."""
        started = time.perf_counter()
        tasks = [asyncio.create_task(self._report(member)) for member in members]
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not self._is_settled(members):
                    await asyncio.sleep(0.01)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return time.perf_counter() - started

    async def _report(self, member: Member) -> None:
        while True:
            # A cancelled request would leave its answer on the connection.
            await asyncio.shield(member.heartbeat())
            await asyncio.sleep(HEARTBEAT_S)

    def _is_settled(self, members: list[Member]) -> bool:
        sizes = [len(member.owned) for member in members]
        return sum(sizes) == self.partitions and max(sizes) - min(sizes) <= 1

    async def rest(self) -> None:
        """Requests that were under way end."""
        await asyncio.sleep(2 * HEARTBEAT_S)

    async def heartbeats(self) -> tuple[float, float]:
        """Per second, and the 99th percentile in milliseconds."""
        took: list[float] = []
        end = time.perf_counter() + HEARTBEATS_S
        waiting = list(self.members)

        async def worker() -> None:
            while (now := time.perf_counter()) < end:
                member = waiting.pop()
                await member.heartbeat()
                took.append(time.perf_counter() - now)
                waiting.insert(0, member)

        await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))
        return len(took) / HEARTBEATS_S, quantiles(took, n=100)[98] * 1000


async def measure(port: int, members: int) -> Figures:
    connections = [await Connection.open(port) for _ in range(members)]
    topic, group_id = f"bench-{uuid4()}", f"bench-{uuid4()}"
    partitions = members * PARTITIONS_PER_MEMBER
    await _prepare(connections[0], topic, partitions, group_id)
    group = Group([Member(each, group_id, topic) for each in connections], partitions)
    joining_s = await group.settle(group.members)
    await group.rest()
    per_second, p99_ms = await group.heartbeats()
    leavers, stayers = group.members[: members // 10], group.members[members // 10 :]
    leaving_s = await _timed(lambda: _leave(leavers), lambda: group.settle(stayers))
    await group.rest()
    coming_s = await group.settle(group.members)
    await group.rest()
    await _leave(group.members)
    for connection in connections:
        connection.close()
    return Figures(joining_s, per_second, p99_ms, leaving_s, coming_s)


async def _timed(*steps: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    for step in steps:
        await step()
    return time.perf_counter() - started


async def _leave(members: list[Member]) -> None:
    await asyncio.gather(*(member.leave() for member in members))


async def _prepare(connection: Connection, topic: str, partitions: int, group_id: str) -> None:
    wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=60_000)
    created = await connection.call(ApiKey.CREATE_TOPICS, 7, request)
    assert created.topics[0].error_code == ErrorCode.NONE, created.topics[0].error_message
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
    while (await connection.call(ApiKey.FIND_COORDINATOR, 4, find)).coordinators[0].error_code:
        await asyncio.sleep(0.1)


@contextmanager
def running(target: str, folder: Path) -> Iterator[int]:
    os.environ["PENSTOCK_GROUPS_CONSUMER_ASSIGNMENT_INTERVAL_MS"] = "0"
    broker = Kafka(fetch(), folder) if target == "kafka" else Penstock(folder)
    broker.start()
    try:
        yield broker.port
    finally:
        broker.stop()


def run(target: str, members: int, runs: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder, running(target, Path(folder)) as port:
        found = [uvloop.run(measure(port, members)) for _ in range(runs)]
    return Figures(*(median(column) for column in zip(*found, strict=True)))


def table(results: dict[tuple[str, int], Figures]) -> str:
    lines = [
        f"Penstock {penstock.__version__}, Apache Kafka {VERSION}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores, which the members share with the broker; two partitions per member.",
        "",
        "| members | broker | all join | heartbeats/s | p99 | a tenth leaves | they come back |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for (target, members), each in results.items():
        lines.append(
            f"| {members:,} | {target.capitalize()} | {each.joining_s:.2f} s | {each.heartbeats_per_second:,.0f} "
            f"| {each.heartbeat_p99_ms:.1f} ms | {each.leaving_s:.2f} s | {each.coming_s:.2f} s |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, action="append")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    asked = parser.parse_args()
    results: dict[tuple[str, int], Figures] = {}
    for members in asked.members or [100, 1000]:
        for target in ("penstock", "kafka"):
            if target == "kafka" and asked.no_kafka:
                continue
            try:
                results[target, members] = run(target, members, asked.runs)
            except Unavailable as missing:
                print(f"without Kafka: {missing}")
    text = table(results)
    print(text)
    (CACHE / "bench").mkdir(parents=True, exist_ok=True)
    (CACHE / "bench" / "consumer-groups.md").write_text(text)
    if asked.publish:
        page.publish("bench-groups", text)


if __name__ == "__main__":
    main()
