"""The APIs on offer: one row each, and the only place that says so.

ApiVersions is answered from this table and requests are dispatched by it. Each row also states which operation the API
does on the topics, the groups, the transactional ids or the cluster that a request names, with Kafka's own choices:
handlers look resources up with it (`RequestContext`), and the audit log reports changes by `results`. `repeatable` says
whether a node that asks another one may ask again when the answer is lost (`InnerClient`). Modules are
imported at the first request that needs them, because a broker inside a test should not wait for APIs that the test
never calls.
"""

import importlib
from functools import cache
from typing import Any, NamedTuple

from penstock.kafka.handlers.audited import audited
from penstock.kafka.handlers.context import Api, Handler, RequestContext
from penstock.kafka.handlers.names import Names
from penstock.kafka.handlers.results import Results
from penstock.kafka.wire import ApiKey
from penstock.late_loading import LOADING
from penstock.types import Operation, ResourceType

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
ALTER, DESCRIBE = Operation.ALTER, Operation.DESCRIBE
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
USER, ANY = ResourceType.USER, ResourceType.ANY

_INDEXES = Names("partitions")
_PARTITIONS = Names("partitions", ("partition_index",))
_FETCHED = Names("topics", ("topic", "topic_id"), Names("partitions", ("partition",)))
_OFFSETS = Names("topics", ("name", "topic_id"), Names("partition_indexes"))
_GROUP_OFFSETS = (
    Names("topics", ("name",), Names("partition_indexes")),
    Names("groups", ("group_id",), _OFFSETS),
)
_CONFIGS = Names("resources", ("resource_type", "resource_name"), Names("configuration_keys"))
_SHARED = Names("groups", ("group_id",), Names("topics", ("topic_name",), _INDEXES))

# Produce starts at version 0 although versions below 3 are answered with an error (their record format is gone): older
# librdkafka turns compression off when the minimum is higher.
_TABLE: dict[ApiKey, Api] = {
    ApiKey.PRODUCE: Api(0, 13, "produce", on_topic=WRITE, on_transactional_id=WRITE),
    ApiKey.FETCH: Api(4, 18, "fetch", on_topic=READ, names=(_FETCHED,), repeatable=True),
    ApiKey.LIST_OFFSETS: Api(1, 11, "offsets", on_topic=DESCRIBE, large=True, repeatable=True),
    ApiKey.METADATA: Api(
        0,
        13,
        "metadata",
        on_topic=DESCRIBE,
        names=(Names("topics", ("topic_id", "name")),),
        large=True,
        repeatable=True,
    ),
    ApiKey.OFFSET_COMMIT: Api(
        2,
        10,
        "group_offsets",
        on_topic=READ,
        on_group=READ,
        names=(Names("topics", ("name", "topic_id"), _PARTITIONS),),
        large=True,
        repeatable=True,
    ),
    ApiKey.OFFSET_FETCH: Api(
        1,
        10,
        "group_offsets",
        on_topic=DESCRIBE,
        on_group=DESCRIBE,
        names=_GROUP_OFFSETS,
        large=True,
        repeatable=True,
    ),
    ApiKey.FIND_COORDINATOR: Api(
        0,
        6,
        "groups",
        on_group=DESCRIBE,
        on_transactional_id=DESCRIBE,
        names=(Names("coordinator_keys"),),
        large=True,
        repeatable=True,
    ),
    ApiKey.JOIN_GROUP: Api(0, 9, "groups", on_group=READ),
    ApiKey.HEARTBEAT: Api(0, 4, "groups", on_group=READ),
    ApiKey.LEAVE_GROUP: Api(0, 5, "groups", on_group=READ),
    ApiKey.SYNC_GROUP: Api(0, 5, "groups", on_group=READ),
    ApiKey.DESCRIBE_GROUPS: Api(
        0, 6, "group_admin", on_group=DESCRIBE, names=(Names("groups"),), large=True, repeatable=True
    ),
    ApiKey.LIST_GROUPS: Api(
        0,
        5,
        "group_admin",
        on_group=DESCRIBE,
        names=(Names("states_filter"), Names("types_filter")),
        large=True,
        repeatable=True,
    ),
    ApiKey.SASL_HANDSHAKE: Api(0, 1, "login", before_login=True),
    ApiKey.API_VERSIONS: Api(0, 5, "api_versions", before_login=True),
    ApiKey.CREATE_TOPICS: Api(
        2,
        7,
        "topics",
        on_topic=CREATE,
        on_cluster=CREATE,
        controller=True,
        large=True,
        results=Results("topics", "name", TOPIC),
    ),
    ApiKey.DELETE_TOPICS: Api(
        1,
        6,
        "topics",
        on_topic=DELETE,
        controller=True,
        large=True,
        results=Results("responses", "name", TOPIC),
    ),
    ApiKey.DELETE_RECORDS: Api(
        0,
        2,
        "topics",
        on_topic=DELETE,
        names=(Names("topics", ("name",), _PARTITIONS),),
        results=Results("topics", "name", TOPIC),
    ),
    ApiKey.INIT_PRODUCER_ID: Api(
        0, 5, "transactions", on_cluster=Operation.IDEMPOTENT_WRITE, on_transactional_id=WRITE
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
        2,
        4,
        "offsets",
        on_topic=DESCRIBE,
        names=(Names("topics", ("topic",), Names("partitions", ("partition",))),),
        large=True,
        repeatable=True,
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(
        0,
        5,
        "transactions",
        on_topic=WRITE,
        on_cluster=Operation.CLUSTER_ACTION,
        on_transactional_id=WRITE,
        names=(
            Names("v3_and_below_topics", ("name",), _INDEXES),
            Names("transactions", ("transactional_id",), Names("topics", ("name",), _INDEXES)),
        ),
        large=True,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(0, 4, "transactional_offsets", on_group=READ, on_transactional_id=WRITE),
    ApiKey.TXN_OFFSET_COMMIT: Api(
        0,
        6,
        "transactional_offsets",
        on_topic=READ,
        on_group=READ,
        on_transactional_id=WRITE,
        names=(Names("topics", ("name", "topic_id"), _PARTITIONS),),
        large=True,
    ),
    ApiKey.END_TXN: Api(0, 5, "transactions", on_transactional_id=WRITE),
    ApiKey.WRITE_TXN_MARKERS: Api(
        1,
        2,
        "transaction_admin",
        on_cluster=ALTER,
        names=(
            Names(
                "markers",
                ("producer_id", "producer_epoch", "transaction_result", "coordinator_epoch"),
                Names("topics", ("name",), Names("partition_indexes")),
            ),
        ),
        large=True,
        results=Results("markers", "producer_id", CLUSTER),
    ),
    ApiKey.DESCRIBE_ACLS: Api(1, 3, "acls", on_cluster=DESCRIBE, large=True, repeatable=True),
    ApiKey.CREATE_ACLS: Api(
        1,
        3,
        "acls",
        on_cluster=ALTER,
        controller=True,
        results=Results("results", "principal", CLUSTER, asked="creations"),
    ),
    ApiKey.DELETE_ACLS: Api(
        1,
        3,
        "acls",
        on_cluster=ALTER,
        controller=True,
        large=True,
        results=Results("filter_results", "matching_acls", CLUSTER),
    ),
    ApiKey.DESCRIBE_CONFIGS: Api(
        1,
        4,
        "configs",
        on_topic=DESCRIBE_CONFIGS,
        on_group=DESCRIBE_CONFIGS,
        on_cluster=DESCRIBE_CONFIGS,
        names=(_CONFIGS,),
        large=True,
        repeatable=True,
    ),
    ApiKey.ALTER_CONFIGS: Api(
        0,
        2,
        "configs",
        on_topic=ALTER_CONFIGS,
        on_group=ALTER_CONFIGS,
        on_cluster=ALTER_CONFIGS,
        controller=True,
        results=Results("responses", "resource_name", ANY),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(1, 2, "placement", on_cluster=ALTER),
    ApiKey.DESCRIBE_LOG_DIRS: Api(
        1,
        5,
        "cluster",
        on_cluster=DESCRIBE,
        names=(Names("topics", ("topic",), _INDEXES),),
        large=True,
        repeatable=True,
    ),
    ApiKey.SASL_AUTHENTICATE: Api(0, 2, "login", before_login=True),
    ApiKey.CREATE_PARTITIONS: Api(
        0, 3, "topics", on_topic=ALTER, controller=True, large=True, results=Results("results", "name", TOPIC)
    ),
    ApiKey.DELETE_GROUPS: Api(
        0,
        3,
        "group_admin",
        on_group=DELETE,
        names=(Names("groups_names"),),
        results=Results("results", "group_id", GROUP),
        repeatable=True,
    ),
    ApiKey.ELECT_LEADERS: Api(
        0,
        2,
        "placement",
        on_cluster=ALTER,
        controller=True,
        names=(Names("topic_partitions", ("topic",), _INDEXES),),
        results=Results("replica_election_results", "topic", TOPIC),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
        0,
        1,
        "configs",
        on_topic=ALTER_CONFIGS,
        on_group=ALTER_CONFIGS,
        on_cluster=ALTER_CONFIGS,
        controller=True,
        results=Results("responses", "resource_name", ANY),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(
        0, 1, "placement", on_cluster=ALTER, controller=True, results=Results("responses", "name", TOPIC)
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(
        0,
        0,
        "placement",
        on_cluster=DESCRIBE,
        controller=True,
        names=(Names("topics", ("name",), Names("partition_indexes")),),
        repeatable=True,
    ),
    ApiKey.OFFSET_DELETE: Api(
        0,
        0,
        "group_offsets",
        on_topic=READ,
        on_group=DELETE,
        names=(Names("topics", ("name",), _PARTITIONS),),
        results=Results("topics", "name", GROUP, request_name="group_id"),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(
        0, 1, "quotas", on_cluster=DESCRIBE_CONFIGS, large=True, repeatable=True
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(
        0,
        1,
        "quotas",
        on_cluster=ALTER_CONFIGS,
        controller=True,
        results=Results("entries", "entity", CLUSTER),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(
        0, 0, "users", on_cluster=DESCRIBE, names=(Names("users", ("name",)),), large=True, repeatable=True
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(
        0, 0, "users", on_cluster=ALTER, controller=True, results=Results("results", "user", USER)
    ),
    ApiKey.DESCRIBE_QUORUM: Api(0, 2, "placement", on_cluster=DESCRIBE, controller=True, repeatable=True),
    ApiKey.DESCRIBE_CLUSTER: Api(0, 2, "cluster", repeatable=True),
    ApiKey.DESCRIBE_PRODUCERS: Api(
        0,
        0,
        "producers",
        on_topic=READ,
        names=(Names("topics", ("name",), Names("partition_indexes")),),
        large=True,
        repeatable=True,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(
        0,
        0,
        "transaction_admin",
        on_topic=DESCRIBE,
        on_transactional_id=DESCRIBE,
        names=(Names("transactional_ids"),),
        large=True,
        repeatable=True,
    ),
    ApiKey.LIST_TRANSACTIONS: Api(
        0,
        2,
        "transaction_admin",
        on_transactional_id=DESCRIBE,
        names=(Names("state_filters"), Names("producer_id_filters")),
        large=True,
        repeatable=True,
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(
        0,
        1,
        "consumer_groups",
        on_topic=DESCRIBE,
        on_group=READ,
        names=(Names("subscribed_topic_names"), Names("topic_partitions", ("topic_id",), _INDEXES)),
        large=True,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(
        0,
        1,
        "consumer_groups",
        on_topic=DESCRIBE,
        on_group=DESCRIBE,
        names=(Names("group_ids"),),
        large=True,
        repeatable=True,
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Api(0, 1, "configs", on_cluster=DESCRIBE_CONFIGS, repeatable=True),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(
        0, 0, "metadata", on_topic=DESCRIBE, names=(Names("topics", ("name",)),), large=True, repeatable=True
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: Api(
        1, 1, "share_groups", on_topic=DESCRIBE, on_group=READ, names=(Names("subscribed_topic_names"),)
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Api(
        1,
        1,
        "share_groups",
        on_topic=DESCRIBE,
        on_group=DESCRIBE,
        names=(Names("group_ids"),),
        large=True,
        repeatable=True,
    ),
    ApiKey.SHARE_FETCH: Api(1, 2, "share_fetch", on_topic=READ, on_group=READ),
    ApiKey.SHARE_ACKNOWLEDGE: Api(1, 2, "share_fetch", on_topic=READ, on_group=READ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Api(
        0,
        1,
        "share_offsets",
        on_topic=DESCRIBE,
        on_group=DESCRIBE,
        names=(_SHARED,),
        large=True,
        repeatable=True,
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Api(
        0,
        0,
        "share_offsets",
        on_topic=READ,
        on_group=READ,
        names=(Names("topics", ("topic_name",), _PARTITIONS),),
        results=Results("responses", "topic_name", GROUP, request_name="group_id"),
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Api(
        0,
        0,
        "share_offsets",
        on_topic=READ,
        on_group=DELETE,
        names=(Names("topics", ("topic_name",)),),
        results=Results("responses", "topic_name", GROUP, request_name="group_id"),
    ),
}


class Advertised(NamedTuple):
    """One row of the ApiVersions response."""

    api_key: int
    min_version: int
    max_version: int


BEFORE_LOGIN = frozenset(int(key) for key, row in _TABLE.items() if row.before_login)


@cache
def find_api(api_key: int) -> Api | None:
    """The API with this key, its handler loaded; None when it is not on offer."""
    try:
        row = _TABLE[ApiKey(api_key)]
    except (KeyError, ValueError):
        return None
    with LOADING:
        module = importlib.import_module(f"penstock.kafka.handlers.{row.module}")
    handler: Handler = getattr(module, ApiKey(api_key).name.lower())
    if row.names:
        handler = _merging(row.names, handler)
    if row.results is not None:
        handler = audited(ApiKey(api_key).name, row.results, handler)
    return row._replace(handler=handler)


def _merging(lists: tuple[Names, ...], handler: Handler) -> Handler:
    """The handler, called after repeated names were merged."""

    def merge_and_handle(context: RequestContext, request: Any) -> Any:
        for names in lists:
            names.merge(request)
        return handler(context, request)

    return merge_and_handle


def advertised() -> list[Advertised]:
    """The content of the ApiVersions response, in the order of the keys."""
    return [Advertised(key, row.min_version, row.max_version) for key, row in sorted(_TABLE.items())]
