"""Options of a stream that works off a queue."""

from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError
from penstock.spark.option_values import Reader

QUEUE_ONLY: Final = ("maxJobsPerTrigger", "httpUrl")
NOT_WITH_QUEUE: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "kafka.group.id",
    "queryName",
)
"""They say which records of topics are read, and where progress is shown: the queue knows both."""

MAX_JOBS_PER_TRIGGER: Final = 1_000
MOST_JOBS_PER_TRIGGER: Final = 50_000
"""Receipts of a micro-batch are in Spark's checkpoint, about 20 bytes each."""
MAX_QUEUE_NAME_CHARS: Final = 249


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueOptions:
    name: str
    max_jobs_per_trigger: int
    http_urls: tuple[str, ...]


def queue_options(reader: Reader, *, streaming: bool) -> QueueOptions:
    name = reader.text("queue") or ""
    if not 0 < len(name) <= MAX_QUEUE_NAME_CHARS:
        raise ConfigError(
            "queue", name[:MAX_QUEUE_NAME_CHARS], f"a name of 1 to {MAX_QUEUE_NAME_CHARS} characters"
        )
    if not streaming:
        raise ConfigError("queue", name, "a stream (readStream): jobs are done when a micro-batch is")
    for other in NOT_WITH_QUEUE:
        if reader.has(other):
            raise ConfigError(other, reader.text(other), "no such option beside queue")
    most = reader.number("maxJobsPerTrigger", least=1) or MAX_JOBS_PER_TRIGGER
    if most > MOST_JOBS_PER_TRIGGER:
        raise ConfigError("maxJobsPerTrigger", most, f"at most {MOST_JOBS_PER_TRIGGER}")
    urls = tuple(filter(None, (reader.text("httpUrl") or "").replace(" ", "").split(",")))
    return QueueOptions(name=name, max_jobs_per_trigger=most, http_urls=urls)
