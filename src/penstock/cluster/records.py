"""What happens to a cluster, as records: the only way that its state changes.

On disk a record is one msgpack array whose first element is the record's tag, followed by its fields in the
order in which the class declares them:

    [1, name, topic_id (16 bytes), assignments, configs, internal]     TopicCreated
    [2, name, topic_id, first, assignments]                            PartitionsAdded
    [3, name, topic_id]                                                TopicDeleted
    [4, name, topic_id, configs]                                       TopicConfigsChanged
    [5, node_id or nil, configs]                                       NodeConfigsChanged
    [6, node_id, first, end]                                           ProducerIdsReserved
    [7, topics, node_configs, next_producer_id]                        Snapshot

`assignments` holds one list of node ids per partition, the preferred leader first. A field may be added at
the end of a record, with a default; nothing else about a record may ever change. A tag that this version does
not know was written by a later one: decoding raises UnknownFormat rather than skip what it cannot understand.
"""

from uuid import UUID

import msgspec

from penstock.errors import UnknownFormat

Assignments = list[list[int]]


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=1):
    """A topic exists from here on, empty."""

    name: str
    topic_id: UUID
    assignments: Assignments
    configs: dict[str, str]
    internal: bool = False


class PartitionsAdded(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=2):
    """A topic has more partitions: `assignments` are those from number `first` on."""

    name: str
    topic_id: UUID
    first: int
    assignments: Assignments


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=3):
    """A topic is gone. A later topic of that name has another id."""

    name: str
    topic_id: UUID


class TopicConfigsChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=4):
    """A topic's own configs are these now, all of them."""

    name: str
    topic_id: UUID
    configs: dict[str, str]


class NodeConfigsChanged(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=5):
    """The configs set at run time are these now, all of them: of one node, or (None) of all nodes."""

    node_id: int | None
    configs: dict[str, str]


class ProducerIdsReserved(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=6):
    """A node may hand out the producer ids from `first` up to, not including, `end`.

    Nobody else ever will.
    """

    node_id: int
    first: int
    end: int


class NodeConfigs(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One entry of a snapshot's node configs: msgpack maps want text keys, and a node id is a number."""

    node_id: int | None
    configs: dict[str, str]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=7):
    """The whole state. Everything before it in the log is history."""

    topics: list[TopicCreated]
    node_configs: list[NodeConfigs]
    next_producer_id: int


MetadataRecord = (
    TopicCreated
    | PartitionsAdded
    | TopicDeleted
    | TopicConfigsChanged
    | NodeConfigsChanged
    | ProducerIdsReserved
    | Snapshot
)

_ENCODER = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: msgspec.msgpack.Decoder[MetadataRecord] = msgspec.msgpack.Decoder(MetadataRecord)


def encode_record(record: MetadataRecord) -> bytes:
    return _ENCODER.encode(record)


def decode_record(data: bytes | memoryview) -> MetadataRecord:
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as problem:
        message = f"a metadata record is not of this version ({problem}); start the version that wrote it"
        raise UnknownFormat(message) from None
