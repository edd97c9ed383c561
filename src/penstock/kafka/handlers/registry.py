"""The APIs on offer: one row each, and the only place that says so.

ApiVersions is answered from this table and requests are dispatched by it. Modules are imported at the first request
that needs them, because a broker inside a test should not wait for APIs that the test never calls.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.wire import ApiKey

Handler = Callable[[RequestContext, Any], Any]
"""Returns the response, None if the client wants none, or a coroutine for it when there is something to wait for."""

# Lowest version, highest version, module, function. Produce starts at 0 although versions below 3 are answered with an
# error (their record format is gone): older librdkafka turns compression off when the minimum is higher.
_TABLE: dict[ApiKey, tuple[int, int, str, str]] = {
    ApiKey.PRODUCE: (0, 13, "produce", "produce"),
    ApiKey.FETCH: (4, 18, "fetch", "fetch"),
    ApiKey.LIST_OFFSETS: (1, 11, "offsets", "list_offsets"),
    ApiKey.METADATA: (0, 13, "metadata", "metadata"),
    ApiKey.OFFSET_COMMIT: (2, 10, "group_offsets", "offset_commit"),
    ApiKey.OFFSET_FETCH: (1, 10, "group_offsets", "offset_fetch"),
    ApiKey.FIND_COORDINATOR: (0, 6, "groups", "find_coordinator"),
    ApiKey.JOIN_GROUP: (0, 9, "groups", "join_group"),
    ApiKey.HEARTBEAT: (0, 4, "groups", "heartbeat"),
    ApiKey.LEAVE_GROUP: (0, 5, "groups", "leave_group"),
    ApiKey.SYNC_GROUP: (0, 5, "groups", "sync_group"),
    ApiKey.DESCRIBE_GROUPS: (0, 6, "group_admin", "describe_groups"),
    ApiKey.LIST_GROUPS: (0, 5, "group_admin", "list_groups"),
    ApiKey.API_VERSIONS: (0, 4, "api_versions", "api_versions"),
    ApiKey.CREATE_TOPICS: (2, 7, "topics", "create_topics"),
    ApiKey.DELETE_TOPICS: (1, 6, "topics", "delete_topics"),
    ApiKey.DELETE_RECORDS: (0, 2, "topics", "delete_records"),
    ApiKey.INIT_PRODUCER_ID: (0, 5, "produce", "init_producer_id"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4, "offsets", "offset_for_leader_epoch"),
    ApiKey.DESCRIBE_CONFIGS: (1, 4, "configs", "describe_configs"),
    ApiKey.ALTER_CONFIGS: (0, 2, "configs", "alter_configs"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2, "placement", "alter_replica_log_dirs"),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4, "cluster", "describe_log_dirs"),
    ApiKey.CREATE_PARTITIONS: (0, 3, "topics", "create_partitions"),
    ApiKey.DELETE_GROUPS: (0, 2, "group_admin", "delete_groups"),
    ApiKey.ELECT_LEADERS: (0, 2, "placement", "elect_leaders"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1, "configs", "incremental_alter_configs"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1, "placement", "alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0, "placement", "list_partition_reassignments"),
    ApiKey.OFFSET_DELETE: (0, 0, "group_offsets", "offset_delete"),
    ApiKey.DESCRIBE_QUORUM: (0, 2, "placement", "describe_quorum"),
    ApiKey.DESCRIBE_CLUSTER: (0, 2, "cluster", "describe_cluster"),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1, "configs", "list_config_resources"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0, "metadata", "describe_topic_partitions"),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1, "share_groups", "share_group_heartbeat"),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1, "share_groups", "share_group_describe"),
    ApiKey.SHARE_FETCH: (1, 2, "share_fetch", "share_fetch"),
    ApiKey.SHARE_ACKNOWLEDGE: (1, 2, "share_fetch", "share_acknowledge"),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1, "share_offsets", "describe_share_group_offsets"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0, "share_offsets", "alter_share_group_offsets"),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0, "share_offsets", "delete_share_group_offsets"),
}


_CONTROLLERS = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ELECT_LEADERS,
        ApiKey.DESCRIBE_QUORUM,
    }
)
"""Only the controller can answer these; other nodes forward them."""


class Api(NamedTuple):
    """One API as it is served."""

    min_version: int
    max_version: int
    handler: Handler
    controllers: bool
    """Whether it is for the controller."""


class Advertised(NamedTuple):
    """One row of the ApiVersions answer."""

    api_key: int
    min_version: int
    max_version: int


@cache
def find_api(api_key: int) -> Api | None:
    """The API with this key, or None when it is not on offer."""
    try:
        lowest, highest, module, function = _TABLE[ApiKey(api_key)]
    except (KeyError, ValueError):
        return None
    handlers = importlib.import_module(f"penstock.kafka.handlers.{module}")
    return Api(lowest, highest, getattr(handlers, function), api_key in _CONTROLLERS)


def advertised() -> list[Advertised]:
    """What ApiVersions tells clients, in the order of the keys."""
    return [Advertised(key, row[0], row[1]) for key, row in sorted(_TABLE.items())]
