"""A topic in the cluster metadata, and the rules for its name."""

import re
import struct
from uuid import UUID

import msgspec

from penstock.cluster.assignments import Assignment
from penstock.config import TopicConfig
from penstock.errors import ErrorCode, KafkaError

METADATA_TOPIC = "__cluster_metadata"
OFFSETS_TOPIC = "__consumer_offsets"
STATE_TOPIC = "__share_group_state"
CLIQUES_TOPIC = "__clique_state"
TRANSACTIONS_TOPIC = "__transaction_state"

INTERNAL_CONFIGS: dict[str, dict[str, str]] = {
    # Kafka's own choices: compacted, so that the last record of each key stays, and in segments small enough to be
    # compacted often.
    OFFSETS_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    },
    TRANSACTIONS_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
    },
    STATE_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "16777216",
        "min.cleanable.dirty.ratio": "0.3",
    },
    # One record for each clique, which every change writes again.
    CLIQUES_TOPIC: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "16777216",
        "min.cleanable.dirty.ratio": "0.3",
    },
}
INTERNAL_TOPICS = frozenset({METADATA_TOPIC, OFFSETS_TOPIC, STATE_TOPIC, CLIQUES_TOPIC, TRANSACTIONS_TOPIC})
"""Names that only the broker itself may create, change or delete."""

NAME_LENGTH_MAX = 249
"""Kafka's: a folder is called TOPIC-PARTITION, and file systems limit a name to 255 bytes."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. `configs` are the values set for it, `config` the resulting settings on this node."""

    name: str
    topic_id: UUID
    assignments: tuple[Assignment, ...]
    configs: dict[str, str]
    config: TopicConfig
    internal: bool

    @property
    def partitions(self) -> int:
        return len(self.assignments)

    @property
    def replication_factor(self) -> int:
        return len(self.assignments[0].replicas)


def check_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless Kafka accepts the name, too."""
    if not name:
        problem = "is empty"
    elif name in (".", ".."):
        problem = "is a folder, not a name"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"is {len(name)} characters long, at most {NAME_LENGTH_MAX} are allowed"
    elif not _LEGAL.fullmatch(name):
        problem = "has other characters than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    shown = name if len(name) <= NAME_LENGTH_MAX else name[:NAME_LENGTH_MAX] + "..."
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {shown!r} {problem}")


def collision_key(name: str) -> str:
    """Names with equal keys collide: Kafka's metric names do not distinguish '.' and '_'."""
    return name.replace(".", "_")


def offsets_partition(name: str, partitions: int) -> int:
    """The partition of an internal topic, of so many, with the coordinator of a group, a transactional id or a clique:
    as Kafka and its tools compute it."""
    code = 0
    utf16 = name.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", utf16):
        code = (31 * code + unit) & 0xFFFFFFFF
    # Java's abs of the smallest int is negative, and Kafka makes it 0.
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partitions
