"""Responses that describe groups have this in common, for each kind of group."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from penstock.errors import ErrorCode
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.types import ResourceType


class _Described(Protocol):
    group_id: str
    error_code: int
    authorized_operations: int


Described = TypeVar("Described", bound=_Described)
Describe = Callable[[RequestContext, str, ResponseRows], Awaitable[Described]]


async def describe_each(
    context: RequestContext, group_ids: Iterable[str], describe: Describe[Described], *, operations: bool
) -> list[Described]:
    """One row for each group. `operations`: with what the caller may do; one who may not even see it learns nothing."""
    rows = ResponseRows(context)
    groups = [await describe(context, group_id, rows) for group_id in group_ids]
    if operations:
        for group in groups:
            if group.error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED:
                allowed = context.allowed_operations(ResourceType.GROUP, group.group_id)
                group.authorized_operations = allowed
    return groups
