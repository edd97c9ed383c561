"""The position of a stream that works off a queue, as Spark stores it in its checkpoint: the jobs of one micro-batch.

    {"version": 1, "queue": "packers", "consumer": "spark-...", "batch": 7,
     "jobs": {"orders": {"0": [[120, 149], [151, 151]]}}, "ids": {"orders": "..."}, "lease_ms": 60000,
     "receipts": "..."}

`jobs`       ranges of offsets, the last one included. A micro-batch that is replayed has the same rows for this reason,
             even if other workers have received its jobs meanwhile. Sinks depend on that: a sink that has the
             micro-batch already skips a replay, so other jobs in it would be accepted though nothing was done with
             them.
`ids`        of the topics: one that was created again has other records at these offsets.
`receipts`   those of the jobs, compressed, so that the driver that takes over can renew their leases and accept them.
`consumer`   the name under which the queue knows the stream. It survives restarts, so that a stream that holds an
             exclusive queue still does so after one.
"""

import base64
import binascii
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client.jobs_over_http import LeasedJob
from penstock.errors import ConfigError
from penstock.types import TopicPartition

VERSION: Final = 1

Ranges = Mapping[TopicPartition, list[tuple[int, int]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueOffset:
    queue: str
    consumer: str
    batch: int = 0
    jobs: Ranges = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    lease_ms: int = 0
    receipts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        nested: dict[str, dict[str, Any]] = defaultdict(dict)
        for tp, ranges in sorted(self.jobs.items()):
            nested[tp.topic][str(tp.partition)] = [list(each) for each in ranges]
        return {
            "version": VERSION,
            "queue": self.queue,
            "consumer": self.consumer,
            "batch": self.batch,
            "jobs": dict(nested),
            "ids": dict(sorted(self.topic_ids.items())),
            "lease_ms": self.lease_ms,
            "receipts": _packed(self.receipts),
        }


def from_json(value: Any, queue: str) -> QueueOffset:
    """ConfigError for a checkpoint of anything else than this queue."""
    found = value if isinstance(value, dict) else {}
    if found.get("version") != VERSION or found.get("queue") != queue:
        raise _not_ours(value, queue)
    try:
        return QueueOffset(
            queue=queue,
            consumer=str(found["consumer"]),
            batch=int(found["batch"]),
            jobs={
                TopicPartition(topic, int(number)): [(int(first), int(last)) for first, last in ranges]
                for topic, numbers in found["jobs"].items()
                for number, ranges in numbers.items()
            },
            topic_ids=found["ids"],
            lease_ms=int(found["lease_ms"]),
            receipts=_unpacked(found["receipts"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError, zlib.error, binascii.Error):
        raise _not_ours(value, queue) from None


def ranges_of(jobs: Iterable[LeasedJob]) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Offsets that follow each other as one range."""
    offsets: dict[TopicPartition, list[int]] = defaultdict(list)
    for job in jobs:
        offsets[job.tp].append(job.offset)
    found: dict[TopicPartition, list[tuple[int, int]]] = {}
    for tp, numbers in offsets.items():
        ranges = found.setdefault(tp, [])
        for number in sorted(set(numbers)):
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1] = ranges[-1][0], number
            else:
                ranges.append((number, number))
    return found


def _packed(receipts: Iterable[str]) -> str:
    """Receipts of one consumer begin alike."""
    return base64.b64encode(zlib.compress("\n".join(receipts).encode())).decode()


def _unpacked(text: str) -> tuple[str, ...]:
    return tuple(filter(None, zlib.decompress(base64.b64decode(text)).decode().split("\n")))


def _not_ours(value: Any, queue: str) -> ConfigError:
    return ConfigError(
        "checkpointLocation",
        str(value)[:200],
        f"a checkpoint of a stream that works off queue {queue!r}. Start with a new checkpoint: the queue knows what "
        "is done",
    )
