"""Every topic config that Kafka 4.4 has, and ours: `dedup.window.ms` and those that begin with `penstock.`.

Each is honoured or refused; none is silently ignored. A definition with a `refused` sentence accepts only
its default, because the default asks for nothing that Penstock does not do; any other value is refused with
INVALID_CONFIG and that sentence. Ranges and defaults are Kafka's. The docs are ours; DescribeConfigs returns them to a
client that asks for documentation.

`synonym` is the broker config that supplies a topic's default. `local.retention.*` and `remote.copy.lag.*` have one in
Kafka too; the other configs that are refused have none.
"""

import msgspec

from penstock.config.kinds import (
    INT_MAX,
    LONG_MAX,
    Kind,
    boolean,
    choice,
    choices,
    double,
    integer,
    long,
    words,
)

MEBIBYTE = 1024 * 1024
DEAD_LETTERS_ALLOWED = "errors.deadletterqueue.group.enable"


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One config: its rule, its default as text, and `refused`, the reason if Penstock accepts only the default."""

    name: str
    kind: Kind
    default: str
    doc: str
    refused: str = ""
    synonym: str = ""
    """Of a topic config: the broker config with its default. Of a broker config: the topic config that it serves."""
    hidden: bool = False
    """Settable but not listed, as Kafka treats its own internal configs."""
    dynamic: bool = True
    """Whether a running broker takes a new value. Every topic config is dynamic, most broker configs are not."""


_NO_REMOTE_STORAGE = (
    "Penstock has no tiered storage: every record stays on the node's own disk until retention.ms or "
    "retention.bytes removes it. Leave this config out"
)
_NO_THROTTLE = "Penstock does not throttle replication. Leave this config out or set it to an empty list"


_DEFINITIONS = (
    Definition(
        name="cleanup.policy",
        kind=choices("compact", "delete", "acked"),
        default="delete",
        synonym="log.cleanup.policy",
        doc="What happens to old segments: delete drops them by age and size, compact keeps the last record "
        "of each key, acked deletes records that every queue, subscription and group on the topic has acked; delete "
        "may be combined with either of the others, and an empty list keeps everything for ever.",
    ),
    Definition(
        name="compression.gzip.level",
        # Level 0 stores without compressing, so Kafka does not count it; -1 is the codec's own default.
        kind=integer(-1, 9, but_not=0),
        default="-1",
        synonym="compression.gzip.level",
        doc="The level of gzip when compression.type is gzip and a batch has to be compressed again.",
    ),
    Definition(
        name="compression.lz4.level",
        kind=integer(1, 17),
        default="9",
        synonym="compression.lz4.level",
        doc="The level of lz4 when compression.type is lz4 and a batch has to be compressed again.",
    ),
    Definition(
        name="compression.type",
        kind=choice("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        default="producer",
        synonym="compression.type",
        doc="How batches are stored: producer keeps them as they came; with any other value the broker "
        "recompresses batches that have another codec, which costs CPU.",
    ),
    Definition(
        name="compression.zstd.level",
        kind=integer(-131072, 22),
        default="3",
        synonym="compression.zstd.level",
        doc="The level of zstd when compression.type is zstd and a batch has to be compressed again.",
    ),
    Definition(
        name="dedup.window.ms",
        kind=long(0),
        default="0",
        synonym="dedup.window.ms",
        doc="For how long a record's penstock-message-id header is remembered in its partition: a record with the "
        "same id is not stored again, and its producer gets the offset of the first one. 0 for no deduplication.",
    ),
    Definition(
        name="delete.retention.ms",
        kind=long(0),
        default="86400000",
        synonym="log.cleaner.delete.retention.ms",
        doc="How long compaction keeps a tombstone, so that a reader that started before it still learns of "
        "the deletion.",
    ),
    Definition(
        name=DEAD_LETTERS_ALLOWED,
        kind=boolean(),
        default="false",
        doc="Whether share groups may name this topic in errors.deadletterqueue.topic.name, so that the broker writes "
        "their dead letters to it.",
    ),
    Definition(
        name="file.delete.delay.ms",
        kind=long(0),
        default="60000",
        synonym="log.segment.delete.delay.ms",
        doc="How long the file of a dropped segment may stay. Penstock deletes it within seconds whatever the value: a "
        "reader that has it open can go on reading, and Kafka waits only for such readers.",
    ),
    Definition(
        name="flush.messages",
        kind=long(1),
        default=str(LONG_MAX),
        synonym="log.flush.interval.messages",
        doc="The most records that may be unflushed. Always kept, whatever the number: Penstock flushes "
        "before it acknowledges.",
    ),
    Definition(
        name="flush.ms",
        kind=long(0),
        default=str(LONG_MAX),
        synonym="log.flush.interval.ms",
        doc="The longest that a record may be unflushed. Always kept, whatever the number: Penstock flushes "
        "before it acknowledges.",
    ),
    Definition(
        name="follower.replication.throttled.replicas",
        kind=words(),
        default="",
        refused=_NO_THROTTLE,
        doc="Replicas whose catching up is throttled on the follower. Only an empty list is accepted.",
    ),
    Definition(
        name="index.interval.bytes",
        kind=integer(0),
        default="4096",
        synonym="log.index.interval.bytes",
        doc="How many bytes of log lie between two entries of the offset index.",
    ),
    Definition(
        name="internal.segment.bytes",
        kind=integer(1),
        default="1073741824",
        synonym="internal.segment.bytes",
        hidden=True,
        doc="Overrides segment.bytes without its lower bound. For tests of rolling and retention only.",
    ),
    Definition(
        name="leader.replication.throttled.replicas",
        kind=words(),
        default="",
        refused=_NO_THROTTLE,
        doc="Replicas whose catching up is throttled on the leader. Only an empty list is accepted.",
    ),
    Definition(
        name="local.retention.bytes",
        kind=long(-2),
        default="-2",
        synonym="log.local.retention.bytes",
        refused=_NO_REMOTE_STORAGE,
        doc="The size that tiered storage keeps on the local disk. Only -2, which means retention.bytes, is "
        "accepted.",
    ),
    Definition(
        name="local.retention.ms",
        kind=long(-2),
        default="-2",
        synonym="log.local.retention.ms",
        refused=_NO_REMOTE_STORAGE,
        doc="The age that tiered storage keeps on the local disk. Only -2, which means retention.ms, is "
        "accepted.",
    ),
    Definition(
        name="max.compaction.lag.ms",
        kind=long(1),
        default=str(LONG_MAX),
        synonym="log.cleaner.max.compaction.lag.ms",
        doc="The longest that a record may wait for compaction, however clean the rest of the log is.",
    ),
    Definition(
        name="max.decompressed.message.bytes",
        kind=integer(0),
        default=str(INT_MAX),
        synonym="max.decompressed.message.bytes",
        doc="The largest record of a compressed batch that a producer may send, as it is when it is unpacked. A lower "
        "value than the default makes the broker unpack every compressed batch. Records that are stored already may "
        "be larger.",
    ),
    Definition(
        name="max.message.bytes",
        kind=integer(0),
        default="1048588",
        synonym="message.max.bytes",
        doc="The largest record batch that a producer may send, as it is on the wire (compressed).",
    ),
    Definition(
        name="message.timestamp.after.max.ms",
        kind=long(0),
        default="3600000",
        synonym="log.message.timestamp.after.max.ms",
        doc="How far ahead of the broker's clock a record's timestamp may be when message.timestamp.type is "
        "CreateTime.",
    ),
    Definition(
        name="message.timestamp.before.max.ms",
        kind=long(0),
        default=str(LONG_MAX),
        synonym="log.message.timestamp.before.max.ms",
        doc="How far behind the broker's clock a record's timestamp may be when message.timestamp.type is "
        "CreateTime.",
    ),
    Definition(
        name="message.timestamp.type",
        kind=choice("CreateTime", "LogAppendTime"),
        default="CreateTime",
        synonym="log.message.timestamp.type",
        doc="The clock of the records' timestamps: the producer's (CreateTime) or the broker's (LogAppendTime).",
    ),
    Definition(
        name="min.cleanable.dirty.ratio",
        kind=double(0, 1),
        default="0.5",
        synonym="log.cleaner.min.cleanable.ratio",
        doc="How much of the log has to be new since the last compaction before it is compacted again.",
    ),
    Definition(
        name="min.compaction.lag.ms",
        kind=long(0),
        default="0",
        synonym="log.cleaner.min.compaction.lag.ms",
        doc="How long every record stays readable before compaction may remove it.",
    ),
    Definition(
        name="min.insync.replicas",
        kind=integer(1),
        default="1",
        synonym="min.insync.replicas",
        doc="How many replicas must be in sync for a produce with acks=all to be accepted. A partition with "
        "fewer replicas than this refuses such writes.",
    ),
    Definition(
        name="penstock.acked.min.age.ms",
        kind=long(0),
        default="60000",
        synonym="penstock.acked.min.age.ms",
        doc="How old a record must be, by its timestamp, before cleanup.policy=acked deletes it, however soon "
        "all of its readers have acked it.",
    ),
    Definition(
        name="penstock.producer.exclusive",
        kind=boolean(),
        default="false",
        synonym="penstock.producer.exclusive",
        doc="Whether a partition takes records from one producer at a time: the first one that writes holds it until "
        "its connection ends, and others are refused meanwhile.",
    ),
    Definition(
        name="penstock.retention.keep.undone",
        kind=boolean(),
        default="false",
        synonym="penstock.retention.keep.undone",
        doc="Whether retention.ms and retention.bytes keep all messages from the first one on that a queue on the "
        "topic has not settled: available, leased, delayed, or waiting for a retry. Topics that are created "
        "together with a queue have it.",
    ),
    Definition(
        name="penstock.storage",
        kind=choice("disk", "memory"),
        default="disk",
        doc="Where the topic is stored: on disk, or only in memory, which is fast and lost when the node stops. "
        "Fixed when the topic is created.",
    ),
    Definition(
        name="penstock.table",
        kind=choice("none", "delta"),
        default="none",
        doc="With delta, nodes write the topic's records to a Delta table, in the background, below the folder that "
        "the setting lake.root of the nodes names; nodes without that setting write none. With none, there is no "
        "table.",
    ),
    Definition(
        name="preallocate",
        kind=boolean(),
        default="false",
        synonym="log.preallocate",
        refused="Penstock grows segment files as they are written, which Linux file systems do as fast. "
        "Leave this config out",
        doc="Whether a segment's file takes its full size when it is made. Only false is accepted.",
    ),
    Definition(
        name="remote.copy.lag.bytes",
        kind=long(-1),
        default="0",
        synonym="log.remote.copy.lag.bytes",
        refused=_NO_REMOTE_STORAGE,
        doc="The size that tiered storage waits for before it copies a segment. Only 0 is accepted.",
    ),
    Definition(
        name="remote.copy.lag.ms",
        kind=long(-1),
        default="0",
        synonym="log.remote.copy.lag.ms",
        refused=_NO_REMOTE_STORAGE,
        doc="The age that tiered storage waits for before it copies a segment. Only 0 is accepted.",
    ),
    Definition(
        name="remote.log.copy.disable",
        kind=boolean(),
        default="false",
        refused=_NO_REMOTE_STORAGE,
        doc="Whether tiered storage stops copying. Only false is accepted.",
    ),
    Definition(
        name="remote.log.delete.on.disable",
        kind=boolean(),
        default="false",
        refused=_NO_REMOTE_STORAGE,
        doc="Whether tiered data is deleted when tiering is switched off. Only false is accepted.",
    ),
    Definition(
        name="remote.storage.enable",
        kind=boolean(),
        default="false",
        refused=_NO_REMOTE_STORAGE,
        doc="Whether old segments move to remote storage. Only false is accepted.",
    ),
    Definition(
        name="retention.bytes",
        kind=long(-LONG_MAX - 1),
        default="-1",
        synonym="log.retention.bytes",
        doc="How large one partition may grow before its oldest segments are dropped; negative for no limit.",
    ),
    Definition(
        name="retention.ms",
        kind=long(-1),
        default="604800000",
        synonym="log.retention.ms",
        doc="How long a segment is kept after its newest record's timestamp; -1 for ever.",
    ),
    Definition(
        name="segment.bytes",
        kind=integer(MEBIBYTE),
        default="1073741824",
        synonym="log.segment.bytes",
        doc="The size at which a segment's file is closed and the next one is created. Retention drops whole segments.",
    ),
    Definition(
        name="segment.index.bytes",
        kind=integer(4),
        default="10485760",
        synonym="log.index.size.max.bytes",
        doc="The size of a segment's offset index at which the next segment is created.",
    ),
    Definition(
        name="segment.jitter.ms",
        kind=long(0),
        default="0",
        synonym="log.roll.jitter.ms",
        doc="The most by which a segment is rolled early, so that many partitions do not roll at once.",
    ),
    Definition(
        name="segment.ms",
        kind=long(1),
        default="604800000",
        synonym="log.roll.ms",
        doc="How long records go into one segment before the next one is created, even if it is not full.",
    ),
    Definition(
        name="unclean.leader.election.enable",
        kind=boolean(),
        default="false",
        synonym="unclean.leader.election.enable",
        refused="a leader that lacks acknowledged records would lose them, and Penstock loses nothing that "
        "it acknowledged. Leave this config out",
        doc="Whether a replica that lacks acknowledged records may lead. Only false is accepted.",
    ),
)

TOPIC_CONFIGS: dict[str, Definition] = {definition.name: definition for definition in _DEFINITIONS}
