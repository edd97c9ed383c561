"""The words for operations, resource types and patterns in access rules, as people type them and as the HTTP API has
them: Kafka's names in small letters, without those that stand for no rule (`unknown`, `any`)."""

from typing import Literal

ResourceKind = Literal["topic", "group", "cluster", "transactional_id", "user"]
OperationName = Literal[
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
    "create_tokens",
    "describe_tokens",
    "two_phase_commit",
]
PatternName = Literal["literal", "prefixed"]
FilterPattern = Literal["literal", "prefixed", "any", "match"]
PermissionName = Literal["allow", "deny"]
