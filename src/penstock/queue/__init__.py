"""The cores of queues and subscriptions, sans-I/O: the state of one share group on one partition, its stored form, and
the order in which a subscriber is sent messages."""

from penstock.queue.lanes import LaneTable
from penstock.queue.partition import QueuePartition
from penstock.queue.settings import QueueSettings, RetryBackoffSettings
from penstock.queue.settlements import Settlement, decode_settlement, encode_settlement
from penstock.queue.state_records import (
    HEAD_SUFFIX,
    Head,
    StateKey,
    chunk_of,
    decode_head,
    decode_key,
    encode_head,
    encode_key,
    settlement_suffix,
)
from penstock.queue.state_store import (
    NO_FENCE,
    Claimed,
    Fence,
    Heads,
    Outcomes,
    QueueKey,
    QueueStateStore,
    StatePart,
)
from penstock.queue.states import State
from penstock.queue.stored_backlog import StoredBacklog
from penstock.queue.stored_parts import sort_parts, state_end
from penstock.queue.values import (
    AckKind,
    Acknowledgement,
    AckResult,
    AckResults,
    Acquired,
    Backlog,
    DeadLetter,
    DeadLetterReason,
    Run,
    ScanResult,
    Withdrawn,
)

__all__ = [
    "HEAD_SUFFIX",
    "NO_FENCE",
    "AckKind",
    "AckResult",
    "AckResults",
    "Acknowledgement",
    "Acquired",
    "Backlog",
    "Claimed",
    "DeadLetter",
    "DeadLetterReason",
    "Fence",
    "Head",
    "Heads",
    "LaneTable",
    "Outcomes",
    "QueueKey",
    "QueuePartition",
    "QueueSettings",
    "QueueStateStore",
    "RetryBackoffSettings",
    "Run",
    "ScanResult",
    "Settlement",
    "State",
    "StateKey",
    "StatePart",
    "StoredBacklog",
    "Withdrawn",
    "chunk_of",
    "decode_head",
    "decode_key",
    "decode_settlement",
    "encode_head",
    "encode_key",
    "encode_settlement",
    "settlement_suffix",
    "sort_parts",
    "state_end",
]
