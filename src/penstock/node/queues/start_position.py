"""How a queue begins on a partition: its settings, its first offset, and whether stored state is still valid."""

from collections.abc import Mapping

from penstock.config import ShareGroupConfig
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.replication.partition import Partition
from penstock.node.scheduling.clock import Clock
from penstock.queue import QueueKey
from penstock.queue.settings import QueueSettings, RetryBackoffSettings
from penstock.queue.state_records import HEAD_SUFFIX, decode_head
from penstock.queue.stored_parts import state_end
from penstock.ring import SLOTS
from penstock.types import Term


def settings_of(config: ShareGroupConfig) -> QueueSettings:
    return QueueSettings(
        lease_ms=config.record_lock_duration_ms,
        delivery_limit=config.delivery_count_limit,
        max_leased=config.max_record_locks,
        key_ordered=config.key_ordered,
        strict=config.exclusive and not config.owner_ordered,
        lanes=SLOTS if config.owner_ordered else 0,
        dead_letters=config.dead_letters,
        retry_backoff=_backoff(config),
    )


def _backoff(config: ShareGroupConfig) -> RetryBackoffSettings | None:
    if config.retry_backoff_ms <= 0:
        return None
    return RetryBackoffSettings(
        first_ms=config.retry_backoff_ms,
        factor=config.retry_backoff_factor,
        max_ms=max(config.retry_backoff_ms, config.retry_backoff_max_ms),
    )


def is_of_another_log(partition: Partition, parts: Mapping[bytes, bytes]) -> bool:
    """Whether the stored state belongs to a log that no longer exists: a topic in memory starts at 0 again when its
    node restarts. Terms do not, and the head has the term of the leader that stored the state. The offsets that this
    leader knew lie before the start of the next term in the log; if the log has nothing of its term or an earlier one,
    that is the start of the log."""
    if not partition.config.memory or HEAD_SUFFIX not in parts:
        return False
    return is_beyond_term(partition, decode_head(parts[HEAD_SUFFIX]).term, state_end(parts))


def is_beyond_term(partition: Partition, term: Term, offset: int) -> bool:
    """Whether the offset lies behind everything that the log in memory has of this term and of earlier ones."""
    if not partition.config.memory:
        return False
    entries = partition.log.entries
    return offset > entries.offset_at(entries.end_of_term_index(term))


async def first_offset(
    key: QueueKey, partition: Partition, store: QueueStateClient, config: ShareGroupConfig, clock: Clock
) -> int:
    """Where a queue without stored state begins."""
    wanted = _by_settings(
        partition, config, clock
    )  # before any await: records that arrive from now on belong to the queue
    if config.auto_offset_reset == "earliest":
        return wanted
    if key.partition >= await store.first_partitions(key):
        # The partition was added after the queue began on the topic: all of it is new.
        return partition.start_offset
    return wanted


def _by_settings(partition: Partition, config: ShareGroupConfig, clock: Clock) -> int:
    reset, end = config.auto_offset_reset, partition.end_for(config.isolation)
    if reset == "earliest":
        return partition.start_offset
    if reset == "latest":
        return end
    since_ms = clock.wall_ms() - config.auto_offset_reset_ms
    found = partition.log.find_timestamp(since_ms, end)
    return end if found is None else found[1]
