"""The events of the status log: one JSON object per event, in one record.

Every event has `time` (RFC 3339, UTC, milliseconds), `kind` and `node_id`, the node that reports it; KINDS says which
other fields each kind may have. A field that does not apply is left out. Kinds and fields may be added; existing ones
keep their meaning.
"""

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

MAX_TEXT = 1_000
"""Characters of any one text: an error message may carry what a client sent."""


class PendingEvent(NamedTuple):
    """An event that waits to be written."""

    wall_ms: int
    kind: str
    facts: dict[str, object]


class StatusEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The schema. docs/status-log.md says the same to people."""

    time: str
    kind: str
    node_id: int
    topic: str | None = None
    topics: list[str] | None = None
    partition: int | None = None
    partitions: int | None = None
    replication_factor: int | None = None
    replicas: list[int] | None = None
    group: str | None = None
    subscription: str | None = None
    clique: str | None = None
    worker: str | None = None
    generation: int | None = None
    member: str | None = None
    members: int | None = None
    instance: str | None = None
    client_id: str | None = None
    client: str | None = None
    protocol: str | None = None
    consumer: str | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    deliveries: int | None = None
    node: int | None = None
    address: str | None = None
    rack: str | None = None
    version: str | None = None
    term: int | None = None
    resumed: bool | None = None
    dropped: bool | None = None
    opened: int | None = None
    closed: int | None = None
    refused: int | None = None
    count: int | None = None
    bytes: int | None = None
    due_ms: int | None = None
    logger: str | None = None
    message: str | None = None
    exception: str | None = None
    reason: str | None = None
    configs: dict[str, str] | None = None
    principal: str | None = None
    mechanism: str | None = None
    operation: str | None = None
    resource: str | None = None
    name: str | None = None
    outcome: str | None = None


DROPPED = "status.dropped"
SUMMARY = "connections.summary"

KINDS: dict[str, tuple[str, ...]] = {
    "broker.started": ("version", "address"),
    "broker.ready": (),
    "broker.stopping": (),
    "connection.opened": ("client", "protocol"),
    "connection.closed": ("client", "protocol", "reason"),
    "connection.refused": ("client", "protocol", "reason"),
    SUMMARY: ("protocol", "opened", "closed", "refused"),
    "declaration.unmet": ("topic", "group", "reason"),
    "topic.created": ("topic", "partitions", "replication_factor", "configs"),
    "topic.grown": ("topic", "partitions"),
    "topic.altered": ("topic", "configs"),
    "topic.deleted": ("topic",),
    "group.member_joined": ("group", "member", "instance", "client_id", "client"),
    "group.member_left": ("group", "member", "instance"),
    "group.member_expired": ("group", "member", "instance", "reason"),
    "group.rebalanced": ("group", "generation", "members"),
    "group.empty": ("group", "generation"),
    "group.altered": ("group", "configs"),
    "group.deleted": ("group",),
    "group.forgotten": ("group",),
    "queue.created": ("group", "topic", "partition", "partitions", "first_offset"),
    "queue.reset": ("group", "topic", "partition", "partitions", "first_offset", "reason"),
    "queue.deleted": ("group", "topic", "partitions"),
    "queue.consumer_changed": ("group", "topic", "partition", "consumer"),
    "queue.opened": ("group", "topic", "partition"),
    "queue.closed": ("group", "topic", "partition", "reason"),
    "queue.dead_letter": (
        "group",
        "topic",
        "partition",
        "first_offset",
        "last_offset",
        "deliveries",
        "reason",
        "dropped",
    ),
    "queue.undone_deleted": ("group", "topic", "partition", "last_offset", "count"),
    "queue.delay_beyond_retention": ("group", "topic", "partition", "first_offset", "due_ms"),
    "retention.held_back": ("topic", "partition", "group", "count", "bytes"),
    "clique.worker_joined": ("clique", "worker", "member"),
    "clique.worker_left": ("clique", "worker", "member"),
    "clique.worker_expired": ("clique", "worker", "member"),
    "subscription.attached": ("subscription", "topics", "resumed"),
    "subscription.detached": ("subscription", "reason"),
    "subscription.inactive": ("subscription", "reason"),
    "subscription.forgotten": ("subscription",),
    "leader.elected": ("topic", "partition", "term"),
    "controller.elected": ("term",),
    "replica.move_started": ("topic", "partition", "replicas"),
    "replica.moved": ("topic", "partition", "replicas"),
    "replica.move_cancelled": ("topic", "partition"),
    "replica.damaged": ("topic", "partition", "node"),
    "node.joined": ("node", "address", "rack", "version"),
    "node.fenced": ("node",),
    "node.unfenced": ("node",),
    "node.leaving": ("node",),
    "node.staying": ("node",),
    "node.left": ("node",),
    "node.altered": ("node", "configs"),
    "audit.login": ("principal", "client", "protocol", "mechanism", "outcome", "reason", "count"),
    "audit.refused": ("principal", "client", "client_id", "operation", "resource", "name", "count"),
    "audit.changed": (
        "principal",
        "client",
        "client_id",
        "operation",
        "resource",
        "name",
        "outcome",
        "reason",
        "count",
    ),
    "audit.data": ("principal", "client", "client_id", "operation", "resource", "name"),
    "error": ("logger", "message", "exception"),
    DROPPED: ("count",),
}
"""Every kind and its fields."""

_ENCODER = msgspec.json.Encoder()


def encode(told: PendingEvent, node_id: int) -> bytes:
    """The record's value. TypeError for facts that the schema does not have, which is a bug of the caller."""
    facts = {name: _cut(fact) for name, fact in told.facts.items()}
    return _ENCODER.encode(
        StatusEvent(time=rfc3339(told.wall_ms), kind=told.kind, node_id=node_id, **facts)  # type: ignore[arg-type]
    )


def rfc3339(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"


def _cut(fact: object) -> object:
    return fact[:MAX_TEXT] if isinstance(fact, str) else fact
