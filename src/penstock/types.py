"""Types that all packages use."""

from enum import IntEnum
from typing import NamedTuple, NewType, Protocol
from uuid import UUID

import msgspec

Offset = NewType("Offset", int)
"""A record's position in its partition, as Kafka clients count it: from 0, consecutive."""

Term = NewType("Term", int)
"""The period of one leader. Raft's term and Kafka's leader epoch are the same number."""

Index = NewType("Index", int)
"""A position between two entries of a partition's log, as Raft counts: a batch counts as many as it has offsets, a
control entry counts one. The end of a log of n such units is n."""

NodeId = NewType("NodeId", int)
TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since 1970 by the wall clock, as records carry them."""

NO_TIMESTAMP = TimestampMs(-1)
NO_TERM = Term(-1)


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Producer(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class Isolation(IntEnum):
    """Which records a reader may see, with Kafka's numbers. `Partition.end_for` gives the offset that bounds each."""

    READ_UNCOMMITTED = 0
    """Everything below the high watermark."""
    READ_COMMITTED = 1
    """Nothing from the first open transaction on."""

    @classmethod
    def from_wire(cls, level: int) -> "Isolation":
        """A level that Kafka does not define reads no more than the strictest one."""
        return cls.READ_COMMITTED if level else cls.READ_UNCOMMITTED


class GroupId(NamedTuple):
    """One Raft group: the replicas of one partition. A topic of the same name that comes later is another group."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


INCARNATION_BITS = 63
LIFE_SHIFT = 47
"""An incarnation's upper 16 bits count the lives of one replica: two that differ in nothing else are of one folder. Of
two incarnations that were drawn by chance, one in 10**14 pairs looks so."""


class Replica(NamedTuple):
    """One member of a Raft group. The incarnation is made with the data folder: a node that lost its folder comes back
    as another replica, because it no longer knows what it voted and acknowledged. So does a single replica of a node
    whose files were lost or damaged: it begins another *life*, counted from the incarnation of its node."""

    node: NodeId
    incarnation: int

    def in_life(self, life: int) -> "Replica":
        """The replica that a node is in this life. Life 0 is the node itself."""
        moved = self.incarnation + (life << LIFE_SHIFT)
        return Replica(self.node, moved % (1 << INCARNATION_BITS)) if life else self

    def life_of(self, home: "Replica") -> int | None:
        """Which life of that node's folder this is; None if it is none."""
        if self.node != home.node:
            return None
        life, rest = divmod((self.incarnation - home.incarnation) % (1 << INCARNATION_BITS), 1 << LIFE_SHIFT)
        return None if rest else life

    def __str__(self) -> str:
        return str(self.node)


ANONYMOUS_PRINCIPAL = "User:ANONYMOUS"
"""The principal of every client until it has authenticated itself, by Kafka's name for it."""


class Caller(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The client on whose behalf something is done. Every request carries one, on every interface and between nodes."""

    principal: str = ANONYMOUS_PRINCIPAL
    host: str = ""
    """The client's address, without its port."""
    client_id: str = ""
    groups: tuple[str, ...] = ()
    """Principals such as Group:ops, whose permissions the caller has, too: from the claim of a token."""


ANONYMOUS = Caller()

BROKER_PRINCIPAL = "Broker:penstock"
"""The nodes of the cluster, for what they do by themselves. It is of a type that no client can log in as."""


class Operation(IntEnum):
    """Kafka's ACL operations, with its numbers."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's ACL resource types, with its numbers. A queue is a share group: its type is GROUP."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of type CLUSTER, as in Kafka."""


class EventSink(Protocol):
    """Receives events of the broker (`node/status/status_log.py`). It never waits, raises or answers, so the code that
    reports an event goes on as if no sink were there."""

    def tell(self, kind: str, /, **facts: object) -> None: ...


class NoEvents:
    """Drops all events."""

    def tell(self, kind: str, /, **facts: object) -> None:
        return


NO_EVENTS = NoEvents()
