"""Cluster metadata, sans-I/O: topics, their placement and configs, as records and the state they add up to."""

from penstock.cluster import alterations, decisions
from penstock.cluster.alterations import AlterOperation, ConfigChange
from penstock.cluster.decisions import TopicWish
from penstock.cluster.placement import PlacementRules
from penstock.cluster.records import (
    MetadataRecord,
    NodeConfigsChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    Snapshot,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from penstock.cluster.state import ClusterState
from penstock.cluster.topics import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    Assignment,
    Topic,
    check_name,
)

__all__ = [
    "INTERNAL_TOPICS",
    "METADATA_TOPIC",
    "OFFSETS_TOPIC",
    "AlterOperation",
    "Assignment",
    "ClusterState",
    "ConfigChange",
    "MetadataRecord",
    "NodeConfigsChanged",
    "PartitionsAdded",
    "PlacementRules",
    "ProducerIdsReserved",
    "Snapshot",
    "Topic",
    "TopicConfigsChanged",
    "TopicCreated",
    "TopicDeleted",
    "TopicWish",
    "alterations",
    "check_name",
    "decisions",
    "decode_record",
    "encode_record",
]
