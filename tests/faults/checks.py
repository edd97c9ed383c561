"""Claims that must hold after recovery from any faults.

1. Every acked record is stored, at the offset that its ack named, if it named one.
2. No record is stored twice, acked or not.
3. Each partition has the records of one producer in the order in which it sent them.
   Both hold within one epoch of the producer. librdkafka begins another one by itself when a leader, in a bad moment,
   refuses a sequence as out of order; it then sends all records again that were not acked yet, of all partitions, and
   duplicates them if they were stored (confluentinc/librdkafka#4953, with Apache Kafka as well).
4. All replicas hold the same bytes. For a compacted topic, whose replicas clean up each at its own pace: every replica
   holds the same last record of each key.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from penstock.batch import iter_headers, read_records
from tests.faults.clients import describe_partitions, settings, wait_in_sync
from tests.faults.load import Load, number_of, producer_of
from tests.faults.nodes import Cluster
from tests.faults.waiting import PATIENCE_SECONDS, eventually

Stored = dict[int, dict[int, bytes]]
"""Values by partition and offset."""

Logs = dict[int, dict[int, bytes]]
"""By partition and node: the concatenated bytes of the replica's segments."""


def assert_kept(cluster: Cluster, load: Load) -> None:
    """All claims, for a topic that is not compacted. All nodes run and the load has stopped."""
    assert_found(cluster, load)
    assert_replicas_equal(cluster, load.topic)
    assert cluster.bugs() == []


def assert_found(cluster: Cluster, load: Load) -> None:
    """Claims 1, 2 and 3, as a client sees it."""
    assert load.refused == []
    stored = read_all(cluster.bootstrap_servers, load.topic, load.partitions)
    promises = load.promises
    assert promises
    where = {(index, value): offset for index, rows in stored.items() for offset, value in rows.items()}
    found = [(each, where.get((each.partition, each.value))) for each in promises]
    lost = [(each, offset) for each, offset in found if offset is None or each.offset not in (offset, None)]
    assert lost == [], f"{len(lost)} of {len(promises)} acked records are not where their acks said"
    for partition, rows in stored.items():
        if _disorder((b"", value) for _, value in sorted(rows.items())):
            epochs = _epochs(cluster, load.topic, partition)
            wrong = _disorder((epochs[offset], value) for offset, value in sorted(rows.items()))
            assert not wrong, f"partition {partition}: twice or out of order at {wrong[:5]}"


def _disorder(rows: Iterable[tuple[object, bytes]]) -> list[tuple[bytes, int, int]]:
    """(Producer, number, the number behind it) where the numbers of a producer in one epoch do not grow."""
    numbers: dict[tuple[object, bytes], list[int]] = defaultdict(list)
    for epoch, value in rows:
        numbers[epoch, producer_of(value)].append(number_of(value))
    return [
        (producer, before, after)
        for (_, producer), found in numbers.items()
        for before, after in pairwise(found)
        if after <= before
    ]


def _epochs(cluster: Cluster, topic: str, partition: int) -> dict[int, int]:
    """The producer's epoch of each offset, from the files of a replica."""
    wait_in_sync(cluster, topic)
    log = next(iter(read_logs(cluster, topic)[partition].values()))
    return {
        offset: header.producer_epoch
        for _, header in iter_headers(log)
        for offset in range(header.base_offset, header.last_offset + 1)
    }


def read_all(bootstrap_servers: str, topic: str, partitions: int) -> Stored:
    reader = Consumer(settings(bootstrap_servers, group_id="checks", enable_auto_commit=False))
    try:
        ends = {index: _end_offset(reader, TopicPartition(topic, index)) for index in range(partitions)}
        stored: Stored = {index: {} for index in range(partitions)}
        reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        while any(max(stored[index], default=-1) + 1 < end for index, end in ends.items()):
            left = sum(end - len(stored[index]) for index, end in ends.items())
            batch = reader.consume(min(left, 5000), timeout=PATIENCE_SECONDS)
            assert batch, f"reading stopped at {[len(rows) for rows in stored.values()]} of {ends}"
            for message in batch:
                assert message.error() is None, message.error()
                rows = stored[message.partition() or 0]
                assert message.offset() not in rows
                rows[message.offset() or 0] = message.value() or b""
        return stored
    finally:
        reader.close()


def _end_offset(reader: Consumer, place: TopicPartition) -> int:
    """Asked again during a leader change: this is the one request that librdkafka does not retry by itself."""
    found: list[int] = []

    def answered() -> bool:
        with suppress(KafkaException):
            found.append(reader.get_watermark_offsets(place, timeout=PATIENCE_SECONDS)[1])
        return bool(found)

    eventually(answered, f"the end of {place}")
    return found[0]


# --- replicas


def assert_replicas_equal(cluster: Cluster, topic: str) -> None:
    """Claim 4. Reads the nodes' own files while they run: there are no more writes, so the files soon become equal."""
    wait_in_sync(cluster, topic)
    eventually(lambda: not differences(cluster, topic), f"the same bytes of {topic} everywhere")


def differences(cluster: Cluster, topic: str) -> list[str]:
    """Descriptions of all differences between replicas."""
    found = []
    for partition, copies in read_logs(cluster, topic).items():
        assert len(copies) >= 3, f"{topic}-{partition} is on {sorted(copies)} only"
        sizes = {node: len(data) for node, data in copies.items()}
        if len(set(copies.values())) > 1:
            found.append(f"{topic}-{partition}: {sizes} bytes")
    return found


def read_logs(cluster: Cluster, topic: str) -> Logs:
    return {
        partition: {
            node: read_segments(cluster[node].data_dir / "topics" / f"{topic}-{partition}")
            for node in one.replicas
        }
        for partition, one in describe_partitions(cluster, topic).items()
    }


def read_segments(folder: Path) -> bytes:
    return b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))


def last_records(log: bytes) -> dict[bytes, tuple[int, bytes | None]]:
    """The last record of each key: its offset and its value."""
    found: dict[bytes, tuple[int, bytes | None]] = {}
    for position, header in iter_headers(log):
        if header.last_offset >= header.base_offset:  # not a control entry
            for record in read_records(log, position):
                found[record.key or b""] = record.offset, record.value
    return found


def assert_last_records_equal(cluster: Cluster, load: Load) -> None:
    """Claim 4 for a compacted topic, and each key has its last acked value or one that was sent after it."""
    wait_in_sync(cluster, load.topic)
    found: dict[bytes, int] = {}

    def are_equal() -> bool:
        found.clear()
        try:
            logs = read_logs(cluster, load.topic)
            copies = [[last_records(log) for log in of_one.values()] for of_one in logs.values()]
        except (OSError, ValueError):
            return False  # compaction replaces files while they are read
        for one, *others in copies:
            if any(other != one for other in others):
                return False
            found.update((key, number_of(value or b"")) for key, (_, value) in one.items())
        return bool(copies)

    eventually(are_equal, "the same last records everywhere")
    assert load.last_by_key
    for key, number in load.last_by_key.items():
        assert found[key] >= number, f"{key!r}: {number} was acked, the last one there is {found[key]}"
