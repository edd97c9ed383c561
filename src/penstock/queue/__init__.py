"""Queues: what one share group knows of one partition, and how it is stored. Sans-I/O."""

from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings, RetryBackoff
from penstock.queue.state_store import (
    NO_FENCE,
    Claimed,
    Fence,
    Heads,
    Part,
    QueueKey,
    QueueStateStore,
)
from penstock.queue.states import State
from penstock.queue.storage import (
    FENCE_SUFFIX,
    HEAD_SUFFIX,
    Head,
    StateKey,
    chunk_of,
    decode_head,
    decode_key,
    encode_head,
    encode_key,
    reach,
)
from penstock.queue.values import (
    NO_NOTES,
    AckKind,
    AckResult,
    Acquired,
    Changes,
    DeadLetter,
    DeathReason,
    Description,
    Notes,
    Run,
)

__all__ = [
    "FENCE_SUFFIX",
    "HEAD_SUFFIX",
    "NO_FENCE",
    "NO_NOTES",
    "AckKind",
    "AckResult",
    "Acquired",
    "Changes",
    "Claimed",
    "DeadLetter",
    "DeathReason",
    "Description",
    "Fence",
    "Head",
    "Heads",
    "Notes",
    "Part",
    "QueueKey",
    "QueuePartition",
    "QueueSettings",
    "QueueStateStore",
    "RetryBackoff",
    "Run",
    "State",
    "StateKey",
    "chunk_of",
    "decode_head",
    "decode_key",
    "encode_head",
    "encode_key",
    "reach",
]
