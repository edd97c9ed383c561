"""The cores of queues and subscriptions, sans-I/O: the state of one share group on one partition, its stored form, and
the order in which a subscriber is sent messages."""

from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings, RetryBackoffSettings
from penstock.queue.state_records import (
    HEAD_SUFFIX,
    Head,
    StateKey,
    chunk_of,
    decode_head,
    decode_key,
    encode_head,
    encode_key,
    state_end,
)
from penstock.queue.state_store import NO_FENCE, Claimed, Fence, Heads, QueueKey, QueueStateStore, StatePart
from penstock.queue.states import State
from penstock.queue.values import AckKind, AckResult, Acquired, DeadLetter, DeadLetterReason, Run, ScanResult

__all__ = [
    "HEAD_SUFFIX",
    "NO_FENCE",
    "AckKind",
    "AckResult",
    "Acquired",
    "Claimed",
    "DeadLetter",
    "DeadLetterReason",
    "Fence",
    "Head",
    "Heads",
    "QueueKey",
    "QueuePartition",
    "QueueSettings",
    "QueueStateStore",
    "RetryBackoffSettings",
    "Run",
    "ScanResult",
    "State",
    "StateKey",
    "StatePart",
    "chunk_of",
    "decode_head",
    "decode_key",
    "encode_head",
    "encode_key",
    "state_end",
]
