"""A topic's settings. `definitions.py` maps Kafka's names and rules onto these fields."""

import msgspec


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings, complete and valid. The defaults are Kafka's; -1 means without limit."""

    acked_min_age_ms: int = 60_000
    """The age that a record must have before `cleanup_acked` deletes it."""
    cleanup_acked: bool = False
    """Records that all readers have acked are deleted (see `penstock.queue.acked`)."""
    cleanup_compact: bool = False
    cleanup_delete: bool = True
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    dedup_window_ms: int = 0
    """For how long a message id is remembered (see `penstock.node.dedup.index`); 0: no deduplication."""
    delete_retention_ms: int = 86_400_000
    errors_deadletterqueue_group_enable: bool = False
    """Share groups may have their dead letters written here (KIP-1191)."""
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = 2**63 - 1
    max_decompressed_message_bytes: int = 2**31 - 1
    """The largest record of a compressed batch, unpacked. The default is no limit: no record is larger."""
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = 2**63 - 1
    message_timestamp_log_append: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    exclusive_producer: bool = False
    """One producer at a time (`penstock.producer.exclusive`)."""
    keep_undone: bool = False
    """Retention does not pass the first unsettled message of any queue (`penstock.retention.keep.undone`)."""
    memory: bool = False
    """Stored only in memory (`penstock.storage=memory`): fast, and lost when the node stops."""

    table: bool = False
    """The node that leads its first partition writes its records to a Delta table (`penstock.table=delta`)."""

    @property
    def may_delete_undone(self) -> bool:
        """Whether retention may delete messages that a queue has not settled."""
        has_limit = self.retention_ms >= 0 or self.retention_bytes >= 0
        return has_limit and self.cleanup_delete and not self.keep_undone
