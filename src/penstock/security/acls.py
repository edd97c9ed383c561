"""Access rules as Kafka has them: bindings, filters that select bindings, and what makes a binding valid.

A binding says: this principal, from this host, is allowed (or denied) this operation on resources of this type whose
name equals `name` (LITERAL; `*` is every name) or begins with it (PREFIXED). All numbers are Kafka's, because bindings
travel in its protocol and are stored with them.

A filter's field selects by equality unless it is ANY or None. Kafka defines two kinds of filters by name:

    pattern type      selects, with a name given, bindings ...
    LITERAL           LITERAL with this very name (`*` selects the rule for `*`, not every rule)
    PREFIXED          PREFIXED with this very name
    ANY               of both types with this very name
    MATCH             that would apply to a resource of this name: LITERAL with this name or `*`, PREFIXED with any
                      prefix of it
"""

from enum import IntEnum
from typing import TypeVar

import msgspec

from penstock.errors import ErrorCode, KafkaError
from penstock.security.hosts import ANY_HOST, parse_network
from penstock.security.principals import parse_principal
from penstock.types import CLUSTER_NAME, Operation, ResourceType

ANY_NAME = "*"
"""A LITERAL rule with this name applies to every resource of its type."""

E = TypeVar("E", bound=IntEnum)

MAX_NAME_CHARACTERS = 4_096
"""Group ids may have as many bytes (`max_group_id_bytes`); names of topics have at most 249."""


class PatternType(IntEnum):
    """How a binding's name selects resources, with Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Kafka's AclPermissionType, with its numbers."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class AclBinding(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """One access rule. Its form as a msgpack array is stored: fields are added at the end only."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        kind = self.resource_type.name.lower()
        name = f"{self.name}*" if self.pattern_type == PatternType.PREFIXED else self.name
        host = "" if self.host == ANY_HOST else f" from {self.host}"
        return f"{self.permission.name} {self.principal}{host} {self.operation.name} on {kind} {name}"


class AclFilter(msgspec.Struct, frozen=True, array_like=True):
    """Selects bindings; the default selects all."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, binding: AclBinding) -> bool:
        """Whether the filter selects the binding."""
        return (
            self.resource_type in (ResourceType.ANY, binding.resource_type)
            and self._matches_pattern(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (Operation.ANY, binding.operation)
            and self.permission in (Permission.ANY, binding.permission)
        )

    def _matches_pattern(self, binding: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, binding.pattern_type):
            return False
        if self.name is None or self.name == binding.name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if binding.pattern_type == PatternType.PREFIXED:
            return self.name.startswith(binding.name)
        return binding.name == ANY_NAME


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_known(value: IntEnum, field: str, refused: tuple[IntEnum, ...]) -> None:
    if value in refused:
        raise _refused(f"{field} {value.name} is not possible in an access rule")


def check_binding(binding: AclBinding) -> AclBinding:
    """The binding, if it can be stored. KafkaError(INVALID_REQUEST) says what is wrong with it."""
    _check_known(binding.resource_type, "resource type", (ResourceType.UNKNOWN, ResourceType.ANY))
    _check_known(
        binding.pattern_type, "pattern type", (PatternType.UNKNOWN, PatternType.ANY, PatternType.MATCH)
    )
    _check_known(binding.operation, "operation", (Operation.UNKNOWN, Operation.ANY))
    _check_known(binding.permission, "permission", (Permission.UNKNOWN, Permission.ANY))
    _check_name(binding)
    parse_principal(binding.principal)
    parse_network(binding.host)
    return binding


def _check_name(binding: AclBinding) -> None:
    if not binding.name or not binding.name.isprintable():
        raise _refused("an access rule needs the name of a resource, without control characters")
    if len(binding.name) > MAX_NAME_CHARACTERS:
        raise _refused(f"the name of a resource has at most {MAX_NAME_CHARACTERS} characters")
    if binding.resource_type == ResourceType.CLUSTER and binding.name not in (CLUSTER_NAME, ANY_NAME):
        raise _refused(f"the only resource of type CLUSTER is {CLUSTER_NAME!r}")


def check_filter(wanted: AclFilter) -> AclFilter:
    """The filter, if every field has a meaning. KafkaError(INVALID_REQUEST) names the one that has not."""
    for value, field in (
        (wanted.resource_type, "resource type"),
        (wanted.pattern_type, "pattern type"),
        (wanted.operation, "operation"),
        (wanted.permission, "permission"),
    ):
        if value == 0:
            raise _refused(f"the filter has an unknown {field}")
    return wanted


def binding_from_wire(
    resource_type: int,
    name: str,
    pattern_type: int,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> AclBinding:
    """A checked binding from Kafka's numbers."""
    return check_binding(
        AclBinding(
            _known(ResourceType, resource_type),
            name,
            _known(PatternType, pattern_type),
            principal,
            host,
            _known(Operation, operation),
            _known(Permission, permission),
        )
    )


def filter_from_wire(
    resource_type: int,
    name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> AclFilter:
    """A checked filter from Kafka's numbers."""
    return check_filter(
        AclFilter(
            _known(ResourceType, resource_type),
            name,
            _known(PatternType, pattern_type),
            principal,
            host,
            _known(Operation, operation),
            _known(Permission, permission),
        )
    )


def _known(kind: type[E], number: int) -> E:
    """A number that Kafka does not define, or defines later, is UNKNOWN, as in Kafka."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)
