"""How a queue begins on a partition: with which settings, at which offset, and whether what is stored still holds."""

from collections.abc import Mapping

from penstock.config import ShareGroupConfig
from penstock.node.clock import Clock
from penstock.node.queues.state_client import QueueStateClient
from penstock.node.replication.partition import Partition
from penstock.queue import HEAD_SUFFIX, QueueKey, QueueSettings, RetryBackoffSettings, decode_head, state_end


def settings_of(config: ShareGroupConfig) -> QueueSettings:
    return QueueSettings(
        lease_ms=config.record_lock_duration_ms,
        delivery_limit=config.delivery_count_limit,
        max_leased=config.max_record_locks,
        key_ordered=config.key_ordered,
        strict=config.exclusive,
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
    """Whether this was stored of a log that is gone: a topic in memory begins at 0 again when its node does. Terms
    do not, and the head names that of who stored the state. What such a leader knew of lies before where the terms
    after its own begin: in a log that has nothing of its term or an earlier one, at the start."""
    if not partition.config.memory or HEAD_SUFFIX not in parts:
        return False
    stored = partition.log
    end = stored.entries.offset_at(stored.entries.end_of_term_index(decode_head(parts[HEAD_SUFFIX]).term))
    return state_end(parts) > end


async def first_offset(
    key: QueueKey, partition: Partition, store: QueueStateClient, config: ShareGroupConfig, clock: Clock
) -> int:
    """Where a queue begins of which nothing is stored."""
    wanted = _by_settings(
        partition, config, clock
    )  # before anything is waited for: what comes from now on is wanted
    if config.auto_offset_reset == "earliest":
        return wanted
    if key.partition >= await store.first_partitions(key):
        # The topic has got this partition since the queue is on it: all of it is new.
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
