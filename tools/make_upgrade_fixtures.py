"""Makes the data folders that tests/upgrade opens with every later version.

Run it by hand, with the version whose folders are to be kept:  python tools/make_upgrade_fixtures.py v1

For each of one_node, one_node_killed, three_nodes, secured (tools/secured_fixture.py) and transactions
(tools/transactions_fixture.py), or for those that are named behind the version, it starts `penstock serve`, fills it
through clients, ends it (SIGTERM; the second and the last with kill -9), and writes NAME.tar.xz and NAME.json into
tests/upgrade/fixtures/VERSION. The JSON file says what clients saw before the end. A folder of fixtures that exists is
not overwritten: old ones stay as they are, since they stand for the disks of people who upgrade.

Fixtures do not age: retention is unlimited, windows are 50 years, schedules end in 2100. Penstock itself bounds three
times: a retry delay (7 days; the test expects such jobs to be available once they are due), the memory of an idempotent
producer (a day; the test sends its batch before the node looks at the clock) and the TTL of a subscription (10 years).
"""

import json
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from confluent_kafka import AcknowledgeType, Consumer, Message, Producer, ShareConsumer, TopicPartition  # noqa: E402
from confluent_kafka.admin import (  # noqa: E402
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from penstock.client import Client  # noqa: E402
from tests.faults.waiting import PATIENCE_SECONDS, eventually  # noqa: E402
from tests.kafka.raw import RawClient  # noqa: E402
from tests.upgrade import idempotence, visible  # noqa: E402
from tests.upgrade.brokers import YEAR_MS, Brokers, HttpNode  # noqa: E402
from tests.upgrade.secured import SECURED, SecuredBroker  # noqa: E402
from tests.upgrade.transactions import TRANSACTIONS  # noqa: E402
from tools import secured_fixture, transactions_fixture  # noqa: E402

FIXTURES = ROOT / "tests" / "upgrade" / "fixtures"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIME_MS = 1_700_000_000_000
YEAR_2100_MS = 4_102_444_800_000
WINDOW_MS = 50 * YEAR_MS
LONGEST_TTL_SECONDS = 10 * YEAR_MS // 1000
LONGEST_LEASE_MS = 3_600_000
LONGEST_DELAY_MS = 604_800_000
DELIVERIES = 5
SUPERSEDED = b"superseded"
KEPT = {"retention.ms": "-1"}
FEW_COORDINATORS = ("--set", "transactions.topic_partitions=2")

Json = dict[str, Any]
Jobs = list[Json]


class Filling:
    """A cluster that is being filled, and what the test has to know besides what clients can see."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.client = Client(brokers.servers)
        self.facts: Json = {"times": [], "message_ids": [], "handed_out_in_order": []}

    def topic(self, name: str, partitions: int = 1, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.client.admin.create_topic(name, partitions=partitions, configs=KEPT | named)
        self.brokers.wait_healthy()

    def produce(self, topic: str, records: list[Json], **settings: Any) -> list[Message]:
        """As one batch for each partition, if the settings do not say otherwise. The delivery reports."""
        reports: list[Message] = []
        base = {"bootstrap.servers": self.brokers.servers, "linger.ms": 100, "partitioner": "murmur2_random"}
        producer = Producer(base | {name.replace("_", "."): value for name, value in settings.items()})

        def delivered(problem: object, message: Message) -> None:
            assert problem is None, problem
            reports.append(message)

        for record in records:
            producer.produce(topic, on_delivery=delivered, **record)
        assert producer.flush(PATIENCE_SECONDS) == 0
        return reports

    def publish(self, topic: str, *records: Json) -> None:
        self.brokers.ask("POST", f"/v1/topics/{topic}/records", {"records": list(records)})

    def receive(self, queue: str, count: int) -> Jobs:
        jobs: Jobs = []
        while len(jobs) < count:
            body = {"max": count - len(jobs), "wait_ms": 10_000, "consumer": "maker"}
            got = self.brokers.queue(queue, "/receive", body)["jobs"]
            assert got, f"{queue} hands out {len(jobs)} of {count}"
            jobs += got
        return jobs

    def settle(self, queue: str, **verdicts: list[Any]) -> None:
        answer = self.brokers.queue(queue, "/settle", verdicts)
        assert not answer["refused"], answer

    def start_offset(self, topic: str) -> int:
        return int(self.brokers.partitions(f"/v1/topics/{topic}")[0]["earliest_offset"])


# Topics


def fill_plain(filling: Filling) -> None:
    """Every codec, keys, headers and null values, on three partitions and in two batches for each codec."""
    filling.topic("plain", partitions=3)
    for index, codec in enumerate(CODECS):
        for half in range(2):
            filling.produce(
                "plain", _rows_of(codec, TIME_MS + 10_000 * index + 5_000 * half), compression_type=codec
            )
    for partition in range(3):
        for timestamp_ms in (TIME_MS, TIME_MS + 12_345, TIME_MS + 30_000):
            offset = visible.offset_at(filling.brokers, "plain", partition, timestamp_ms)
            filling.facts["times"].append(["plain", partition, timestamp_ms, offset])


def _rows_of(codec: str, timestamp_ms: int) -> list[Json]:
    rows: list[Json] = [
        {
            "key": f"{codec}-{number}",
            "value": f"{codec} {number} " * 8,
            "partition": number % 3,
            "timestamp": timestamp_ms + number,
            "headers": [("codec", codec.encode()), ("number", str(number).encode()), ("number", b"again")],
        }
        for number in range(9)
    ]
    rows += [
        {"key": None, "value": f"no key, {codec}", "partition": 0, "timestamp": timestamp_ms + 20},
        {"key": codec, "value": None, "partition": 1, "timestamp": timestamp_ms + 20},
        {
            "key": b"\xff\x00",
            "value": b"",
            "partition": 2,
            "timestamp": timestamp_ms + 20,
            "headers": [("empty", b""), ("none", None), ("bytes", b"\xfe\x01")],
        },
    ]
    return rows


def fill_configured(filling: Filling) -> None:
    """Timestamps and codecs of the broker's own; changed configs; more partitions; a name that was used before."""
    filling.topic("stamped", message_timestamp_type="LogAppendTime")
    filling.topic("recoded", compression_type="zstd", index_interval_bytes="64")
    for topic in ("stamped", "recoded"):
        for codec in ("none", "lz4"):
            rows = [{"value": f"{topic} {number} " * 8} for number in range(5)]
            filling.produce(topic, rows, compression_type=codec)
    filling.client.admin.alter_topic(
        "recoded", {"max.message.bytes": "54321", "segment.ms": str(YEAR_MS), "index.interval.bytes": None}
    )

    filling.topic("grown")
    filling.publish("grown", {"value": "before"})
    filling.brokers.ask("POST", "/v1/topics/grown/partitions", {"count": 3})
    filling.brokers.wait_healthy()
    for partition in range(3):
        filling.publish("grown", {"value": "after", "partition": partition})

    filling.topic("reborn", partitions=2)
    filling.publish("reborn", {"value": "of the first topic of this name", "partition": 1})
    filling.client.admin.delete_topic("reborn")
    filling.topic("reborn")
    filling.publish("reborn", {"value": "of the second"})


def fill_compacted(filling: Filling) -> None:
    """Keys that were overwritten or deleted, compacted on every node; then a tail that is not compacted."""
    forever = str(WINDOW_MS)
    filling.topic(
        "compacted",
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms=forever,
    )
    for turn in range(4):
        value = SUPERSEDED + b" %d" % turn if turn < 3 else b"the last one"
        rows: list[Json] = [{"key": f"key-{number}", "value": value} for number in range(6)]
        filling.produce("compacted", rows, compression_type="none")
        time.sleep(0.06)  # until the segment is old enough for the next one to begin
    filling.produce("compacted", [{"key": "key-1", "value": None}, {"key": "key-2", "value": None}])
    time.sleep(0.06)
    filling.produce("compacted", [{"key": "end", "value": "1"}])

    def is_compacted() -> bool:
        logs = [
            path
            for node in filling.brokers.nodes.values()
            for path in node.data_dir.glob("topics/compacted-*/*.log")
        ]
        return bool(logs) and not any(SUPERSEDED in path.read_bytes() for path in logs)

    eventually(is_compacted, "compaction on every node")
    later = {"min.compaction.lag.ms": forever, "min.cleanable.dirty.ratio": "1.0", "segment.ms": None}
    filling.client.admin.alter_topic("compacted", later)
    tail: list[Json] = [{"key": "key-3", "value": "tail"}, {"key": "key-4", "value": None}]
    filling.produce("compacted", tail + tail)


def fill_trimmed(filling: Filling) -> None:
    """Logs that do not begin at 0: by retention, and by DeleteRecords within a segment."""
    filling.topic("trimmed", segment_ms="50")
    for number in range(4):
        filling.produce("trimmed", [{"value": f"old {number}", "timestamp": TIME_MS}])
        time.sleep(0.06)
    filling.client.admin.alter_topic("trimmed", {"retention.ms": "1000"})
    eventually(lambda: filling.start_offset("trimmed") == 4, "retention")
    filling.client.admin.alter_topic("trimmed", {"retention.ms": "-1"})
    filling.produce("trimmed", [{"value": f"kept {number}", "timestamp": TIME_MS} for number in range(3)])

    filling.topic("cut")
    filling.produce("cut", [{"value": f"{number}", "timestamp": TIME_MS + number} for number in range(10)])
    admin = AdminClient({"bootstrap.servers": filling.brokers.servers})
    for done in admin.delete_records([TopicPartition("cut", 0, 6)]).values():
        done.result(PATIENCE_SECONDS)


def fill_idempotent(filling: Filling) -> None:
    """A producer whose last batch and next batch are kept, and whose id the broker has to remember."""
    filling.topic("idempotent")
    filling.produce("idempotent", [{"value": f"librdkafka {n}"} for n in range(5)], enable_idempotence=True)
    told = filling.brokers.partitions("/v1/topics/idempotent")[0]
    address = str(told["leader_address"])
    producer = idempotence.new_producer_id(address)
    batches = [
        idempotence.batch(producer, sequence, TIME_MS, [b"by hand %d" % (sequence + n) for n in range(3)])
        for sequence in (0, 3, 6)
    ]
    offsets = [idempotence.produce(address, "idempotent", 0, one) for one in batches[:2]]
    assert offsets == [(0, 5), (0, 8)], offsets
    filling.facts["producer"] = {
        "topic": "idempotent",
        "producer_id": producer.id,
        "last_batch": batches[1].hex(),
        "last_offset": offsets[1].offset,
        "next_batch": batches[2].hex(),
        "next_offset": offsets[1].offset + 3,
    }


def fill_deduplicated(filling: Filling) -> None:
    filling.topic("once", partitions=3, dedup_window_ms=str(WINDOW_MS))
    for turn in range(2):
        for number in range(8):
            stored = filling.client.publish("once", f"turn {turn}", message_id=f"id-{number}")
            if turn == 0:
                filling.facts["message_ids"].append(["once", stored.partition, f"id-{number}", stored.offset])
            else:
                known = ["once", stored.partition, f"id-{number}", stored.offset]
                assert known in filling.facts["message_ids"], known


# Groups


def fill_groups(filling: Filling) -> None:
    """A group that had members, one whose offsets were only set, and one that was deleted."""
    servers = filling.brokers.servers
    member = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    member.subscribe(["plain", "cut"])
    while len(member.assignment()) < 4:
        member.consume(1, timeout=0.2)
    places = [TopicPartition("plain", index, 4 + index, f"worker {index}") for index in range(3)]
    member.commit(offsets=[*places, TopicPartition("cut", 0, 7)], asynchronous=False)
    member.commit(offsets=[TopicPartition("plain", 0, 9, "moved on")], asynchronous=False)
    member.close()
    for group in ("set-by-hand", "deleted"):
        filling.brokers.ask(
            "POST", f"/v1/groups/{group}/offsets", {"topic": "plain", "to": 5, "partitions": [0, 2]}
        )
    filling.brokers.ask("DELETE", "/v1/groups/deleted")


def fill_subscription(filling: Filling) -> None:
    """A scheduled message stays in front of those that are acked, so the position has ranges behind it."""
    filling.topic("events", partitions=2)
    for number in range(7):
        later = {"deliver_at_ms": YEAR_2100_MS} if number == 2 else {}
        filling.publish("events", {"value": number, "partition": 0, **later})
    filling.publish("events", *({"value": number, "partition": 1} for number in range(4)))
    with filling.client.subscribe(
        "events", name="ledger", read_old=True, ttl=LONGEST_TTL_SECONDS
    ) as following:
        messages = [following.receive(timeout=PATIENCE_SECONDS) for _ in range(10)]
        acked = {0: 4, 1: 1}
        for message in messages:
            assert message is not None
            if message.offset == acked[message.partition]:
                message.ack().wait()
    filling.facts["pushed_next"] = [["events", 0, 5], ["events", 0, 6], ["events", 1, 2], ["events", 1, 3]]


# Queues


def begin_queues(filling: Filling) -> None:
    for topic in ("jobs", "jobs.dlq", "shared"):
        filling.topic(topic, partitions=1 if topic == "jobs.dlq" else 2)
    filling.topic("keyed")
    filling.brokers.ask(
        "POST",
        "/v1/queues",
        {"queue": "workers", "topic": "jobs", "lease_ms": LONGEST_LEASE_MS, "delivery_limit": DELIVERIES},
    )
    filling.brokers.ask(
        "POST",
        "/v1/queues",
        {"queue": "by-key", "topic": "keyed", "lease_ms": LONGEST_LEASE_MS, "order": "key"},
    )
    filling.brokers.ask("POST", "/v1/queues", {"queue": "payments", "point_to_point": True})
    filling.client.admin.alter_topic("payments", KEPT)
    filling.client.admin.create_queue("shared-workers", topic="shared")
    filling.client.admin.alter_queue(
        "shared-workers",
        {
            "share.session.timeout.ms": "60000",
            "share.delivery.count.limit": "200",
            "penstock.retry.backoff.ms": "10",
        },
    )
    filling.brokers.wait_healthy()


def fill_jobs(filling: Filling) -> None:
    """Done, given back, rejected, delivered too often, sent back, expired, scheduled."""
    for partition in range(2):
        rows = [{"value": f"job {number}", "partition": partition} for number in range(12)]
        filling.publish("jobs", *rows)
        filling.publish(
            "jobs",
            {"value": "expired", "partition": partition, "timestamp_ms": TIME_MS, "ttl_ms": 1},
            {"value": "in time", "partition": partition, "ttl_ms": WINDOW_MS},
            {"value": "in 2100", "partition": partition, "deliver_at_ms": YEAR_2100_MS},
            {"value": "was due", "partition": partition, "deliver_at_ms": TIME_MS},
        )
    first = {(one["partition"], one["offset"]): one["receipt"] for one in filling.receive("workers", 28)}

    def pick(*offsets: int) -> list[str]:
        return [first[partition, offset] for partition in range(2) for offset in offsets]

    retry = [{"receipt": one} for one in pick(7)]
    resting = [{"receipt": one, "delay_ms": LONGEST_DELAY_MS} for one in pick(8)]
    filling.settle("workers", accept=pick(0, 1, 3, 11, 13), reject=pick(2, 5), retry=[*retry, *resting])
    for _ in range(DELIVERIES - 1):
        again = filling.receive("workers", 2)
        assert {one["offset"] for one in again} == {7}
        filling.settle("workers", retry=[{"receipt": one["receipt"]} for one in again])
    eventually(lambda: len(_dead(filling)) == 6, "six dead letters")
    back = next(one for one in _dead(filling) if (one["from_partition"], one["from_offset"]) == (1, 2))
    letters = [{name: back[name] for name in ("topic", "partition", "offset")}]
    filling.brokers.queue("workers", "/dead-letters/send-back", {"letters": letters})
    filling.settle("workers", retry=[{"receipt": one} for one in pick(4)])


def _dead(filling: Filling) -> Jobs:
    letters: Jobs = filling.brokers.queue("workers", "/dead-letters")["dead_letters"]
    return letters


def fill_ordered(filling: Filling) -> None:
    """A queue in the order of keys, and one for a single consumer."""
    filling.publish("keyed", *({"key": f"k{number % 3}", "value": number} for number in range(12)))
    for _ in range(2):
        jobs = filling.receive("by-key", 3)
        assert len({one["key"] for one in jobs}) == 3
        filling.settle("by-key", accept=[one["receipt"] for one in jobs])
    filling.publish("payments", *({"value": number} for number in range(8)))
    for _ in range(3):
        (job,) = filling.receive("payments", 1)
        filling.settle("payments", accept=[job["receipt"]])
    filling.facts["handed_out_in_order"] = ["by-key", "payments"]


def fill_shared(filling: Filling) -> None:
    """A queue whose consumer speaks Kafka's share protocol."""
    values = [{"value": f"{number}", "partition": number % 2} for number in range(10)]
    filling.produce("shared", values)
    settings = {
        "bootstrap.servers": filling.brokers.servers,
        "group.id": "shared-workers",
        "share.acknowledgement.mode": "explicit",
    }
    consumer = ShareConsumer(settings)
    consumer.subscribe(["shared"])
    accepted = 0
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while accepted < 6:
            assert time.monotonic() < deadline, "the share consumer got too little"
            for message in consumer.poll(0.2):
                assert message.error() is None, message.error()
                is_done = (message.offset() or 0) < 3
                consumer.acknowledge(message, AcknowledgeType.ACCEPT if is_done else AcknowledgeType.RELEASE)
                accepted += is_done
            consumer.commit_sync(PATIENCE_SECONDS)
    finally:
        consumer.close()


def leave_jobs_in_hand(filling: Filling) -> None:
    """Leases that run when the nodes end. A queue stores the delivery counts of leased jobs when another job of the
    partition is settled, so the last job of each partition is accepted."""
    filling.publish("jobs", {"value": "new", "partition": 0}, {"value": "new", "partition": 1})
    last = {one["partition"]: one["receipt"] for one in sorted(_all(filling, "workers"), key=_offset)}
    filling.settle("workers", accept=list(last.values()))
    (*_, last_key) = filling.receive("by-key", 3)
    filling.settle("by-key", accept=[last_key["receipt"]])
    (first, _) = filling.receive("payments", 2)
    filling.settle("payments", accept=[first["receipt"]])


def _all(filling: Filling, queue: str) -> Jobs:
    jobs: Jobs = []
    while got := filling.brokers.queue(queue, "/receive", {"max": 100, "wait_ms": 500})["jobs"]:
        jobs += got
    return jobs


def _offset(job: Json) -> int:
    return int(job["offset"])


# Nodes


def change_leaders(filling: Filling, end: Callable[[Brokers, int], object]) -> None:
    """Ends the node that leads plain-0, writes meanwhile, and starts it again."""
    if len(filling.brokers.nodes) == 1:
        return
    before = _leader(filling)
    assert before is not None
    end(filling.brokers, before)
    eventually(lambda: _leader(filling) not in (before, None), "another leader of plain-0")
    filling.produce("plain", [{"value": f"while node {before} was away", "partition": n} for n in range(3)])
    filling.brokers.nodes[before].start()
    filling.brokers.nodes[before].wait_ready()
    filling.brokers.wait_healthy()


def _leader(filling: Filling) -> int | None:
    found: int | None = filling.brokers.ask("GET", "/v1/topics/plain")["partitions"][0]["leader"]
    return found


def keep_status(filling: Filling) -> None:
    """The nodes make the topic of the status log by themselves, soon after they are ready."""
    admin = filling.client.admin
    eventually(lambda: visible.STATUS_TOPIC in [one.name for one in admin.topics()], visible.STATUS_TOPIC)
    admin.alter_topic(visible.STATUS_TOPIC, KEPT)


def grow_metadata(brokers: Brokers, **login: str) -> None:
    """More than a thousand changes, so that a snapshot of the metadata replaces the beginning of its log."""
    settings = {name.replace("_", "."): value for name, value in login.items()}
    admin = AdminClient({"bootstrap.servers": brokers.servers, **settings})
    for value in ("8", "9", None, "8", None):
        operation = AlterConfigOpType.SET if value else AlterConfigOpType.DELETE
        entry = ConfigEntry("share.delivery.count.limit", value, incremental_operation=operation)
        changes = [
            ConfigResource(ResourceType.GROUP, f"unused-{number}", incremental_configs=[entry])
            for number in range(300)
        ]
        for done in admin.incremental_alter_configs(changes).values():
            done.result(PATIENCE_SECONDS)
    eventually(lambda: all(map(_has_snapshot, brokers.nodes.values())), "a snapshot on every node")


def _has_snapshot(node: HttpNode) -> bool:
    """Whether the checkpoint says that the metadata log begins behind offset 0; it has two slots of 512 bytes."""
    checkpoint = (node.data_dir / "topics" / "__cluster_metadata-0" / "checkpoint").read_bytes()
    starts: list[int] = [
        struct.unpack_from(">q", checkpoint, slot + 16)[0] for slot in range(0, len(checkpoint), 512)
    ]
    return max(starts) > 0


def fill(brokers: Brokers) -> Json:
    filling = Filling(brokers)
    with filling.client:
        keep_status(filling)
        grow_metadata(filling.brokers)
        fill_plain(filling)
        change_leaders(filling, lambda nodes, node_id: nodes.nodes[node_id].stop())
        fill_configured(filling)
        fill_compacted(filling)
        fill_trimmed(filling)
        fill_deduplicated(filling)
        fill_groups(filling)
        fill_subscription(filling)
        begin_queues(filling)
        fill_jobs(filling)
        fill_ordered(filling)
        fill_shared(filling)
        change_leaders(filling, lambda nodes, node_id: nodes.nodes[node_id].kill())
        fill_idempotent(filling)
        leave_jobs_in_hand(filling)
    return filling.facts


def expected(brokers: Brokers, facts: Json) -> Json:
    topics = visible.topics(brokers)
    status = topics.pop(visible.STATUS_TOPIC)
    return {
        "nodes": len(brokers.nodes),
        "made_at_ms": int(time.time() * 1000),
        "cluster_id": visible.cluster_id(brokers),
        "topics": topics,
        "status": visible.digest(status, len(status["partitions"]["0"]["records"])),
        "groups": visible.groups(brokers),
        "subscriptions": visible.subscriptions(brokers),
        "queues": visible.queues(brokers),
        **facts,
    }


def check(seen: Json) -> None:
    """The fixture has what it is for."""
    topics = seen["topics"]
    assert [topics[name]["partitions"]["0"]["start"] for name in ("trimmed", "cut")] == [4, 6]
    rows = topics["compacted"]["partitions"]["0"]["records"]
    assert [row["offset"] for row in rows] != list(range(len(rows))), "nothing was compacted"
    assert any(row["value"] is None for row in rows), "no tombstones"
    if seen["nodes"] > 1:
        assert topics["plain"]["partitions"]["0"]["records"][-1]["term"] >= 2, "too few leader changes"


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:xz") as tar:
        for path in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(folder)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            if entry.isfile():
                with path.open("rb") as data:
                    tar.addfile(entry, data)
            else:
                tar.addfile(entry)


def make(target: Path, name: str, count: int, *, killed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with Brokers(Path(folder), count) as brokers:
            seen = expected(brokers, fill(brokers))
            check(seen)
            if killed:
                brokers.kill()
            else:
                brokers.stop()
        keep(target, name, Path(folder), seen)


def make_secured(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with SecuredBroker(Path(folder)) as broker:
            seen = secured_fixture.fill(broker)
            grow_metadata(broker, **broker.librdkafka())
            seen |= secured_fixture.fill_behind_snapshot(broker)
            seen |= broker.everything()
            broker.stop()
        keep(target, SECURED, Path(folder), seen)


def make_transactions(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        brokers = Brokers(Path(folder), 1)
        brokers.nodes[1].flags = FEW_COORDINATORS
        with brokers:
            with RawClient(brokers.nodes[1]) as client:
                seen = transactions_fixture.fill(client)
            brokers.kill()
        keep(target, TRANSACTIONS, Path(folder), seen)


def keep(target: Path, name: str, folder: Path, seen: Json) -> None:
    pack(folder, target / f"{name}.tar.xz")
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in seen.items()]
    (target / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{name}: {(target / f'{name}.tar.xz').stat().st_size:,} bytes")


MAKERS: dict[str, Callable[[Path], None]] = {
    "one_node": lambda target: make(target, "one_node", 1, killed=False),
    "one_node_killed": lambda target: make(target, "one_node_killed", 1, killed=True),
    "three_nodes": lambda target: make(target, "three_nodes", 3, killed=False),
    SECURED: make_secured,
    TRANSACTIONS: make_transactions,
}


def main() -> None:
    version, *names = sys.argv[1:] or [""]
    if not version or not set(names) <= set(MAKERS):
        sys.exit(f"usage: python tools/make_upgrade_fixtures.py VERSION [{'|'.join(MAKERS)} ...]")
    target = FIXTURES / version
    if target.exists():
        sys.exit(f"{target} exists; fixtures of earlier versions stay as they are: choose another name")
    target.mkdir(parents=True)
    for name in names or MAKERS:
        MAKERS[name](target)
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "tests/upgrade"], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
