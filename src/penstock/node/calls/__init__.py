"""One way to ask another node: targets (roles that nodes have), methods, and one retry policy."""

from penstock.node.calls.calls import BROKER, Calls
from penstock.node.calls.each_node import ask_each, rows_of_each
from penstock.node.calls.retry import ClusterChanges
from penstock.node.calls.targets import (
    CONTROLLER,
    AtNode,
    CoordinatorOf,
    Directory,
    LeaderOf,
    Target,
    TransactionCoordinatorOf,
)

__all__ = [
    "BROKER",
    "CONTROLLER",
    "AtNode",
    "Calls",
    "ClusterChanges",
    "CoordinatorOf",
    "Directory",
    "LeaderOf",
    "Target",
    "TransactionCoordinatorOf",
    "ask_each",
    "rows_of_each",
]
