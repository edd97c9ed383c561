"""Reports requests that change something to the audit log, from the rows of their responses.

A row of the registry says where the results are: `Results("topics", "name", TOPIC)` is a list `topics` whose elements
have a `name` and an `error_code`. So handlers need not think of the audit log.
"""

import inspect
from collections.abc import Awaitable, Iterator
from enum import IntEnum
from typing import Any

from penstock.errors import ErrorCode
from penstock.kafka.handlers.context import Handler, RequestContext
from penstock.kafka.handlers.results import Results
from penstock.node.status.audit import MAX_NAMES
from penstock.types import CLUSTER_NAME, Operation, ResourceType

RULES = "matching_acls"
DENY = 2
_CONFIG_RESOURCES = {2: ResourceType.TOPIC, 4: ResourceType.CLUSTER, 32: ResourceType.GROUP}
"""Kafka's numbers of resources that have configs; a broker's configs are the cluster's."""


def audited(operation: str, results: Results, handler: Handler) -> Handler:
    """The handler, whose responses are reported."""

    def handle(context: RequestContext, request: Any) -> Any:
        response = handler(context, request)
        if not context.node.audit.is_on or not context.connection.is_audited:
            return response
        if inspect.isawaitable(response):
            return finish(context, request, response)
        return report(context, request, response)

    async def finish(context: RequestContext, request: Any, response: Awaitable[Any]) -> Any:
        return report(context, request, await response)

    def report(context: RequestContext, request: Any, response: Any) -> Any:
        if not getattr(request, "validate_only", False):
            _report(context, operation, results, request, response)
        return response

    return handle


def _report(context: RequestContext, operation: str, results: Results, request: Any, response: Any) -> None:
    audit, rows = context.node.audit, getattr(response, results.rows)
    failure = getattr(response, "error_code", 0)
    if not rows and failure:
        rows = [response]
    for index, row in enumerate(rows[:MAX_NAMES]):
        asked = getattr(request, results.asked)[index] if results.asked else row
        resource, name = _resource(results, request, asked)
        error = next((code for code in _codes(row) if code), failure)
        audit.changed(context.caller, operation, resource.name.lower(), name, _error_name(error))
    if len(rows) > MAX_NAMES:
        audit.changed_more(context.caller, operation, len(rows) - MAX_NAMES)


def _resource(results: Results, request: Any, row: Any) -> tuple[ResourceType, str]:
    resource = results.resource
    if resource is ResourceType.ANY:
        resource = _CONFIG_RESOURCES.get(row.resource_type, ResourceType.UNKNOWN)
    if results.request_name:
        return resource, str(getattr(request, results.request_name))
    found = getattr(row, results.name, None)
    if results.name == "entity":
        return resource, ", ".join(
            f"{part.entity_type} {part.entity_name or '<default>'}" for part in found or []
        )
    if results.name == RULES:
        return resource, "; ".join(_rule(rule) for rule in found[:MAX_NAMES]) if found else CLUSTER_NAME
    if results.name == "principal":
        return resource, _rule(row)
    return resource, str(found or getattr(row, "topic_id", "") or CLUSTER_NAME)


def _rule(rule: Any) -> str:
    """An access rule in words."""
    operation, kind = _enum(Operation, rule.operation), _enum(ResourceType, rule.resource_type)
    permission = "deny" if rule.permission_type == DENY else "allow"
    return f"{permission} {rule.principal} {operation} {kind} {rule.resource_name}"


def _enum(names: type[IntEnum], number: int) -> str:
    return names(number).name.lower() if number in names.__members__.values() else str(number)


def _codes(row: Any) -> Iterator[int]:
    """The error codes of a row and of the rows in it."""
    yield getattr(row, "error_code", 0)
    for nested in ("topics", "partitions", "partition_result"):
        for inner in getattr(row, nested, None) or []:
            yield from _codes(inner)


def _error_name(code: int) -> str | None:
    return _enum(ErrorCode, code) if code else None
