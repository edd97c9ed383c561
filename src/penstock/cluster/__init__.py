"""Cluster metadata, sans-I/O: records of topics, nodes, placement and configs, the state that results from them, and
the controller's decisions."""

from penstock.cluster import access_decisions, alterations, decisions, quota_decisions, role_decisions
from penstock.cluster.alterations import AlterOperation, ConfigChange
from penstock.cluster.assignments import Assignment
from penstock.cluster.damage import report_damaged, why_not_rebuilt
from penstock.cluster.decisions import NewTopic
from penstock.cluster.leaders import check_unclean, elect_preferred, plan_leaders
from penstock.cluster.membership import (
    NodeTimeouts,
    Sightings,
    decommission_node,
    gone_nodes,
    register_node,
    remove_empty_nodes,
    watch_nodes,
)
from penstock.cluster.moves import Move, MoveLimits, MoveReason, report_moved, start_moves, still_possible
from penstock.cluster.nodes import NodeInfo
from penstock.cluster.placement import PlacementRules
from penstock.cluster.planning import next_moves, plan_rebalance
from penstock.cluster.quorum import metadata_voters
from penstock.cluster.reassignment import Reassignment, list_reassignments, reassign
from penstock.cluster.records import (
    AclsChanged,
    Endpoint,
    GroupConfigsChanged,
    MetadataRecord,
    MetadataVoters,
    NodeConfigsChanged,
    NodeDecommissioning,
    NodeFenced,
    NodeRegistered,
    NodeRemoved,
    NodeUnfenced,
    PartitionMoveCancelled,
    PartitionMoved,
    PartitionMoveStarted,
    PartitionsAdded,
    ProducerIdsReserved,
    ReplicaDamaged,
    Snapshot,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    UserChanged,
    decode_record,
    encode_record,
)
from penstock.cluster.state import ClusterState
from penstock.cluster.topics import (
    CLIQUES_TOPIC,
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    STATE_TOPIC,
    Topic,
)

__all__ = [
    "CLIQUES_TOPIC",
    "INTERNAL_TOPICS",
    "METADATA_TOPIC",
    "OFFSETS_TOPIC",
    "STATE_TOPIC",
    "AclsChanged",
    "AlterOperation",
    "Assignment",
    "ClusterState",
    "ConfigChange",
    "Endpoint",
    "GroupConfigsChanged",
    "MetadataRecord",
    "MetadataVoters",
    "Move",
    "MoveLimits",
    "MoveReason",
    "NewTopic",
    "NodeConfigsChanged",
    "NodeDecommissioning",
    "NodeFenced",
    "NodeInfo",
    "NodeRegistered",
    "NodeRemoved",
    "NodeTimeouts",
    "NodeUnfenced",
    "PartitionMoveCancelled",
    "PartitionMoveStarted",
    "PartitionMoved",
    "PartitionsAdded",
    "PlacementRules",
    "ProducerIdsReserved",
    "Reassignment",
    "ReplicaDamaged",
    "Sightings",
    "Snapshot",
    "Topic",
    "TopicConfigsChanged",
    "TopicCreated",
    "TopicDeleted",
    "UserChanged",
    "access_decisions",
    "alterations",
    "check_unclean",
    "decisions",
    "decode_record",
    "decommission_node",
    "elect_preferred",
    "encode_record",
    "gone_nodes",
    "list_reassignments",
    "metadata_voters",
    "next_moves",
    "plan_leaders",
    "plan_rebalance",
    "quota_decisions",
    "reassign",
    "register_node",
    "remove_empty_nodes",
    "report_damaged",
    "report_moved",
    "role_decisions",
    "start_moves",
    "still_possible",
    "watch_nodes",
    "why_not_rebuilt",
]
