"""DescribeConfigs, ListConfigResources, IncrementalAlterConfigs and AlterConfigs, for topics, brokers and groups."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from penstock.cluster import ClusterState, MetadataRecord, alterations
from penstock.cluster.alterations import AlterOperation, ConfigChange
from penstock.config import GROUP_CONFIGS, ConfigEntry, describe_all_nodes, describe_broker
from penstock.config.broker import BROKER_CONFIGS
from penstock.config.definitions import TOPIC_CONFIGS
from penstock.config.group import DEAD_LETTER_TOPIC, KAFKA_DEAD_LETTER_COPIES, KAFKA_DEAD_LETTER_TOPIC
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.names import repeated
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages import alter_configs as plain
from penstock.kafka.wire.messages import incremental_alter_configs as incremental
from penstock.kafka.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from penstock.kafka.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.node import Node
from penstock.types import Operation, ResourceType

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
PUBLIC_CONFIGS = ("penstock.http.url",)
"""Clients find the HTTP port by it: everybody who may connect may know it, as Metadata tells them the Kafka ports."""
RESOURCE_TYPES = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})
ALL_NODES = ""
"""A broker resource without a name means all brokers."""

MAX_CHANGES = 1_000
"""Of one resource in one request: many times the configs that there are."""
REPEATED = KafkaError(ErrorCode.INVALID_REQUEST, "each resource must appear at most once")

Decision = Callable[[ClusterState], Sequence[MetadataRecord]]


# --- DescribeConfigs


async def describe_configs(
    context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    rows = ResponseRows(context)
    return DescribeConfigsResponse(
        results=[await _describe(context, resource, request, rows) for resource in request.resources]
    )


async def _describe(
    context: RequestContext,
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
    rows: ResponseRows,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        # Kafka answers all configs for null; clients that send an empty list mean the same.
        entries = _entries(context, resource, resource.configuration_keys or None)
        result.configs = await rows.build(partial(_row, request), entries)
    except KafkaError as mistake:
        result.error_code, result.error_message = mistake.code, mistake.message
    return result


def _entries(
    context: RequestContext, resource: DescribeConfigsResource, names: list[str] | None
) -> list[ConfigEntry]:
    resources, name = context.node.resources, resource.resource_name
    if resource.resource_type == TOPIC:
        return resources.topic_configs(context.topic(name).configs, names)
    if resource.resource_type == GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "resource_name is empty: expected a group's name")
        return resources.described_group(context.caller, name, context.api.on_group, names)
    try:
        node_id = _node_id(context, resource.resource_type, name)
    except KafkaError as refused:
        return _public_entries(context, resource, names, refused)
    broker = context.cluster().broker
    if node_id is None:
        return describe_all_nodes(broker, names)
    return describe_broker(broker, names)


def _public_entries(
    context: RequestContext,
    resource: DescribeConfigsResource,
    names: list[str] | None,
    refused: KafkaError,
) -> list[ConfigEntry]:
    """What a caller learns of this node that may not describe its configs. Without the address of the HTTP port, a user
    with no other rights than those on its topics could not use queues and subscriptions."""
    is_this_node = resource.resource_type == BROKER and resource.resource_name == str(context.node.node_id)
    wanted = [name for name in PUBLIC_CONFIGS if names is None or name in names]
    if refused.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED or not is_this_node or not wanted:
        raise refused
    return context.node.resources.public_configs(wanted)


def _row(request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=row.name, value=row.value, source=row.source) for row in synonyms
        ],
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation else None,
    )


def _node_id(context: RequestContext, resource_type: int, name: str) -> int | None:
    """The node that a broker resource names; None for all of them. Only the node itself knows its configs."""
    node_id, own_id = _known_node_id(context, resource_type, name), context.node.node_id
    if node_id is not None and node_id != own_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {name!r}: ask that node; this is {own_id}")
    return node_id


def _known_node_id(context: RequestContext, resource_type: int, name: str) -> int | None:
    """The node of the cluster that a broker resource names; None for all of them."""
    if resource_type != BROKER:
        message = (
            f"resource type {resource_type}: expected {TOPIC} (topic), {BROKER} (broker) or {GROUP} (group)"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    state = context.cluster()
    if name == ALL_NODES:
        return None
    known = {str(one): int(one) for one in (context.node.node_id, *state.nodes)}
    if name not in known:
        expected = ", ".join(sorted(known))
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {name!r}: expected one of {expected}")
    return known[name]


# --- ListConfigResources


def list_config_resources(
    context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Resources that can have configs. Version 0 asks for client metrics only; an empty list asks for every type."""
    wanted = set(request.resource_types) or set(RESOURCE_TYPES)
    if context.api_version == 0:
        wanted = {CLIENT_METRICS}
    if not wanted <= RESOURCE_TYPES:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        state = context.cluster()
    except KafkaError as refused:
        return ListConfigResourcesResponse(error_code=refused.code)
    names = {
        TOPIC: sorted(state.topics),
        BROKER: [str(one.node_id) for one in context.node.view.brokers()],
        GROUP: sorted(state.group_configs),
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in sorted(wanted)
            for name in names.get(kind, [])
        ]
    )


# --- IncrementalAlterConfigs, AlterConfigs


async def incremental_alter_configs(
    context: RequestContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    responses = []
    rows = ResponseRows(context)
    twice = repeated((one.resource_type, one.resource_name) for one in request.resources)
    for resource in request.resources:
        row = incremental.AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        if (resource.resource_type, resource.resource_name) in twice:
            row.error_code, row.error_message = REPEATED.code, REPEATED.message
        else:
            make = partial(_alteration, context, resource)
            await _change(row, context.node, make, request.validate_only)
        responses.append(row)
        await rows.pause()
    return incremental.IncrementalAlterConfigsResponse(responses=responses)


async def alter_configs(
    context: RequestContext, request: plain.AlterConfigsRequest
) -> plain.AlterConfigsResponse:
    responses = []
    rows = ResponseRows(context)
    twice = repeated((one.resource_type, one.resource_name) for one in request.resources)
    for resource in request.resources:
        row = plain.AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        if (resource.resource_type, resource.resource_name) in twice:
            row.error_code, row.error_message = REPEATED.code, REPEATED.message
        else:
            make = partial(_replacement, context, resource)
            await _change(row, context.node, make, request.validate_only)
        responses.append(row)
        await rows.pause()
    return plain.AlterConfigsResponse(responses=responses)


async def _change(
    row: incremental.AlterConfigsResourceResponse | plain.AlterConfigsResourceResponse,
    node: Node,
    make: Callable[[], Decision],
    validate_only: bool,
) -> None:
    """Makes one resource's change, or enters the error in its row."""
    try:
        decide = make()
        await node.metadata.change(partial(_decide_only, decide) if validate_only else decide)
    except KafkaError as mistake:
        row.error_code, row.error_message = mistake.code, mistake.message
    except StorageError as refused:
        row.error_code, row.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(refused)


def _decide_only(decide: Decision, state: ClusterState) -> Sequence[MetadataRecord]:
    decide(state)
    return ()


def _check(context: RequestContext, resource_type: int, name: str) -> None:
    """Whether the caller may change the configs of a topic or group; brokers are checked where they are found."""
    if resource_type == TOPIC:
        context.check_topic_name(name)
    elif resource_type == GROUP:
        context.check_group(name)


def _check_dead_letters(context: RequestContext, group: str, configs: Mapping[str, str | None]) -> None:
    """The broker itself copies dead letters. So a caller that names their topic, by our config or by Kafka's, or has
    keys and values copied there, must have the right to write there, and to read the messages that are copied:
    otherwise a queue would carry records past the access rules. `configs` are those that the caller sets."""
    if not context.node.access.is_required:
        return
    resources, caller = context.node.resources, context.caller
    named = [configs.get(DEAD_LETTER_TOPIC), configs.get(KAFKA_DEAD_LETTER_TOPIC)]
    copies = (configs.get(KAFKA_DEAD_LETTER_COPIES) or "").strip().lower() == "true"
    if copies and KAFKA_DEAD_LETTER_TOPIC not in configs:
        # The dead letters of a topic that was named before get keys and values.
        stored = resources.group_configs(caller, group, context.api.on_group)
        named.append(stored.get(KAFKA_DEAD_LETTER_TOPIC))
    for target in filter(None, ((name or "").strip() for name in named)):
        resources.check_group(caller, group, Operation.READ)
        resources.check(caller, Operation.WRITE, ResourceType.TOPIC, target)
        if not resources.exists(target):
            resources.check_create_topic(caller, target)


def _alteration(context: RequestContext, resource: incremental.AlterConfigsResource) -> Decision:
    _check(context, resource.resource_type, resource.resource_name)
    if len(resource.configs) > MAX_CHANGES:
        message = f"{len(resource.configs)} changes of one resource: expected {MAX_CHANGES} at most"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    known = {TOPIC: TOPIC_CONFIGS, GROUP: GROUP_CONFIGS}.get(resource.resource_type, BROKER_CONFIGS)
    changes = [
        change
        for change in map(_config_change, resource.configs)
        # An unknown config cannot be set, so it counts as deleted: Kafka's tools clean up throttles that way.
        if change.operation is not AlterOperation.DELETE or change.name in known
    ]
    if resource.resource_type == TOPIC:
        return lambda state: alterations.alter_topic_configs(state, resource.resource_name, changes)
    if resource.resource_type == GROUP:
        set_values = {one.name: one.value for one in changes if one.operation is not AlterOperation.DELETE}
        _check_dead_letters(context, resource.resource_name, set_values)
        limits = context.node.config.limits
        return lambda state: alterations.alter_group_configs(state, resource.resource_name, changes, limits)
    node_id = _known_node_id(context, resource.resource_type, resource.resource_name)
    return lambda state: alterations.alter_node_configs(state, node_id, changes)


def _config_change(config: incremental.AlterableConfig) -> ConfigChange:
    try:
        operation = AlterOperation(config.config_operation)
    except ValueError:
        expected = "0 (set), 1 (delete), 2 (append) or 3 (subtract)"
        message = f"{config.name}: operation {config.config_operation}, expected {expected}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    return ConfigChange(name=config.name, operation=operation, value=config.value)


def _replacement(context: RequestContext, resource: plain.AlterConfigsResource) -> Decision:
    _check(context, resource.resource_type, resource.resource_name)
    configs = {config.name: config.value for config in resource.configs}
    if resource.resource_type == TOPIC:
        return lambda state: alterations.replace_topic_configs(state, resource.resource_name, configs)
    if resource.resource_type == GROUP:
        _check_dead_letters(context, resource.resource_name, configs)
        limits = context.node.config.limits
        return lambda state: alterations.replace_group_configs(state, resource.resource_name, configs, limits)
    node_id = _known_node_id(context, resource.resource_type, resource.resource_name)
    return lambda state: alterations.replace_node_configs(state, node_id, configs)
