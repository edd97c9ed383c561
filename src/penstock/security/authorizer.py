"""Decides what a caller may do, from access rules, as Kafka's StandardAuthorizer does.

A caller is known by its principals (its user and the user's groups) and its host. For an operation on a resource:

1. A super user may do everything; no rule is looked at.
2. A rule applies if its principal is one of the caller's or `User:*`, its host matches, its resource type is the
   resource's, and its name is the resource's, `*`, or (PREFIXED) a prefix of it.
3. If any rule that applies denies the operation, it is denied. The order and the length of patterns do not matter.
4. Else, if any rule that applies allows the operation, or one that implies it (`rule_index.py`), it is allowed.
5. Else it is denied.

An Authorizer never changes: a decision that someone remembers is right as long as the Authorizer is the same object.
`changed` makes the next one; it shares everything that the change does not touch, so that one rule more costs the same
with ten rules as with ten thousand, but for copying a dictionary.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock.security.acls import ANY_NAME, AclBinding, AclFilter, PatternType, Permission
from penstock.security.hosts import parse_address, parse_network
from penstock.security.principals import EVERYBODY
from penstock.security.rule_index import EVERY_OPERATION, NO_RULES, Entry, Rule, RuleIndex, operations_of
from penstock.types import Operation, ResourceType

_Key = tuple[str, ResourceType]
_Pattern = tuple[PatternType, str]
_EVERY_NAME: _Pattern = (PatternType.LITERAL, ANY_NAME)


class Explanation(msgspec.Struct, frozen=True):
    """A decision, the rule that made it (None if there is none, or for a super user), and a sentence about it."""

    allowed: bool
    reason: str
    rule: Rule | None = None


def _by_key(rules: Iterable[Rule | AclBinding]) -> dict[_Key, list[Rule]]:
    keys: dict[_Key, list[Rule]] = {}
    for one in rules:
        rule = one if isinstance(one, Rule) else Rule(one)
        keys.setdefault((rule.binding.principal, rule.binding.resource_type), []).append(rule)
    return keys


class Authorizer:
    """The access rules of a cluster, ready to decide. Bindings must have passed `check_binding`."""

    __slots__ = ("_indexes", "_super_users")

    def __init__(self, indexes: dict[_Key, RuleIndex], super_users: frozenset[str]) -> None:
        self._indexes = indexes
        self._super_users = super_users

    @classmethod
    def of(cls, rules: Iterable[Rule | AclBinding] = (), super_users: Iterable[str] = ()) -> "Authorizer":
        """The authorizer with these rules."""
        return cls({}, frozenset(super_users)).changed(added=rules)

    def changed(
        self, *, added: Iterable[Rule | AclBinding] = (), removed: Iterable[Rule | AclBinding] = ()
    ) -> "Authorizer":
        """The next authorizer. Rules that are added twice, or removed and not there, make no difference."""
        plus, minus = _by_key(added), _by_key(removed)
        indexes = dict(self._indexes)
        for key in plus.keys() | minus.keys():
            index = indexes.get(key, NO_RULES).changed(plus.get(key, ()), minus.get(key, ()))
            if index:
                indexes[key] = index
            else:
                indexes.pop(key, None)
        return Authorizer(indexes, self._super_users)

    def with_super_users(self, super_users: Iterable[str]) -> "Authorizer":
        """The same rules with other super users."""
        return Authorizer(self._indexes, frozenset(super_users))

    def rules(self) -> Iterator[Rule]:
        """All rules, in no particular order."""
        for index in self._indexes.values():
            for _, _, entry in index.rows():
                yield from entry.rules

    def bindings(self, wanted: AclFilter) -> list[AclBinding]:
        """The bindings that were made by themselves and that the filter selects, in order."""
        return sorted(
            rule.binding for rule in self.rules() if not rule.source and wanted.matches(rule.binding)
        )

    # --- decisions

    def is_super_user(self, principals: Iterable[str]) -> bool:
        """Whether one of the caller's principals is a super user."""
        return not self._super_users.isdisjoint(principals)

    def allowed_operations(
        self, principals: Sequence[str], host: str, resource_type: ResourceType, name: str
    ) -> int:
        """The operations that the caller may do with the resource, one bit each (`1 << Operation.READ`)."""
        if self.is_super_user(principals):
            return EVERY_OPERATION
        allowed = denied = 0
        for entry in self._entries(principals, resource_type, name):
            more, less = entry.decide(host)
            allowed |= more
            denied |= less
        return allowed & ~denied

    def allows(
        self,
        principals: Sequence[str],
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Whether the caller may do this with the resource, which need not exist."""
        return bool(self.allowed_operations(principals, host, resource_type, name) >> operation & 1)

    def _entries(self, principals: Sequence[str], resource_type: ResourceType, name: str) -> Iterator[Entry]:
        for index in self._indexes_of(principals, resource_type):
            yield from index.entries(name)

    def _indexes_of(self, principals: Sequence[str], resource_type: ResourceType) -> Iterator[RuleIndex]:
        for principal in (*principals, EVERYBODY):
            index = self._indexes.get((principal, resource_type))
            if index is not None:
                yield index

    def allows_any(
        self, principals: Sequence[str], host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Whether the caller may do this with any resource of the type that could exist, as Kafka's
        authorizeByResourceType (KIP-679): a producer that may write to some topic may use idempotence.

        A DENY for one name below an allowed prefix leaves other names; a DENY for `*`, for the prefix, or for a
        shorter one leaves none.
        """
        if self.is_super_user(principals):
            return True
        indexes = tuple(self._indexes_of(principals, resource_type))
        denies = {
            (pattern_type, name)
            for index in indexes
            for pattern_type, name, entry in index.denying
            if entry.decide(host)[1] >> operation & 1
        }
        if _EVERY_NAME in denies:
            return False
        return any(
            entry.decide(host)[0] >> operation & 1 and not _is_denied((pattern_type, name), denies)
            for index in indexes
            for pattern_type, name, entry in index.rows()
        )

    # --- explanations

    def explain(
        self,
        principals: Sequence[str],
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> Explanation:
        """The same decision as `allows`, with its reason. Of several rules that decide, the first in order is named."""
        if self.is_super_user(principals):
            who = next(principal for principal in principals if principal in self._super_users)
            return Explanation(True, f"{who} is a super user")
        found = sorted(
            rule
            for entry in self._entries(principals, resource_type, name)
            for rule in entry.rules
            if _decides(rule, operation, host)
        )
        for permission, allowed in ((Permission.DENY, False), (Permission.ALLOW, True)):
            for rule in found:
                if rule.binding.permission == permission:
                    return Explanation(allowed, _reason(rule, operation), rule)
        return Explanation(False, "no rule allows it")


def _decides(rule: Rule, operation: Operation, host: str) -> bool:
    return bool(operations_of(rule.binding) >> operation & 1) and _matches_host(rule.binding.host, host)


def _matches_host(wanted: str, host: str) -> bool:
    network = parse_network(wanted)
    if network is None:
        return True
    address = parse_address(host)
    return address is not None and address in network


def _is_denied(allowed: _Pattern, denies: set[_Pattern]) -> bool:
    """Whether a denial covers every resource that the pattern selects."""
    if not denies or allowed == _EVERY_NAME:
        return False
    pattern_type, name = allowed
    if pattern_type == PatternType.LITERAL and allowed in denies:
        return True
    return any((PatternType.PREFIXED, name[:end]) in denies for end in range(1, len(name) + 1))


def _reason(rule: Rule, operation: Operation) -> str:
    verb = "denied" if rule.binding.permission == Permission.DENY else "allowed"
    implied = rule.binding.operation not in (operation, Operation.ALL)
    note = f"; {rule.binding.operation.name} implies {operation.name}" if implied else ""
    return f"{verb} by the rule: {rule}{note}"
