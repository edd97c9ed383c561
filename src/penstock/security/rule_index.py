"""The rules of one principal for one resource type, found by the name of a resource.

A rule is compiled into two sets of operations, as bits: those that it allows and those that it denies.

    ALL               every operation
    allowed READ, WRITE, DELETE or ALTER      also DESCRIBE
    allowed ALTER_CONFIGS                     also DESCRIBE_CONFIGS
    denied                                    only the operation itself

Rules on one name are merged into one entry, so that a decision reads at most one entry for the name, one for `*`, and
one per length of prefix that the principal has. Only rules with a host of their own are looked at one by one.

An index never changes. A change makes a new index: it copies the table of names, and computes the entries of the
changed names again.
"""

from collections.abc import Iterable, Iterator

import msgspec

from penstock.security.acls import ANY_NAME, AclBinding, PatternType, Permission
from penstock.security.hosts import Network, parse_address, parse_network
from penstock.types import Operation

EVERY_OPERATION = sum(1 << operation for operation in Operation if operation >= Operation.ALL)

_IMPLIED = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}


class Rule(msgspec.Struct, frozen=True, order=True):
    """A binding, and where it comes from: empty for one that was made by itself, else what made it, as
    `role reader`. The same binding from two sources is two rules: each can be removed without the other."""

    binding: AclBinding
    source: str = ""

    def __str__(self) -> str:
        return f"{self.binding} ({self.source})" if self.source else str(self.binding)


def operations_of(binding: AclBinding) -> int:
    """The operations that the binding decides about, as bits."""
    if binding.operation == Operation.ALL:
        return EVERY_OPERATION
    bits = 1 << binding.operation
    implied = _IMPLIED.get(binding.operation)
    if implied is not None and binding.permission == Permission.ALLOW:
        bits |= 1 << implied
    return bits


class _HostRule(msgspec.Struct, frozen=True):
    """What the rules of one host or network decide."""

    network: Network
    allowed: int
    denied: int


class Entry(msgspec.Struct, frozen=True):
    """All rules on one name."""

    allowed: int
    denied: int
    by_host: tuple[_HostRule, ...]
    rules: tuple[Rule, ...]

    @property
    def denies(self) -> bool:
        """Whether any rule denies something to somebody."""
        return any(rule.binding.permission == Permission.DENY for rule in self.rules)

    def decide(self, host: str) -> tuple[int, int]:
        """The operations that these rules allow, and those that they deny, to a caller at this host."""
        allowed, denied = self.allowed, self.denied
        if self.by_host:
            address = parse_address(host)
            for rule in self.by_host:
                if address is not None and address in rule.network:
                    allowed |= rule.allowed
                    denied |= rule.denied
        return allowed, denied


def _bits(rules: Iterable[Rule], permission: Permission) -> int:
    bits = 0
    for rule in rules:
        if rule.binding.permission == permission:
            bits |= operations_of(rule.binding)
    return bits


def make_entry(rules: tuple[Rule, ...]) -> Entry:
    """The entry for the rules on one name."""
    hosts: dict[Network | None, list[Rule]] = {None: []}
    for rule in rules:
        hosts.setdefault(parse_network(rule.binding.host), []).append(rule)
    everywhere = hosts.pop(None)
    by_host = tuple(
        _HostRule(network, _bits(some, Permission.ALLOW), _bits(some, Permission.DENY))
        for network, some in hosts.items()
        if network is not None
    )
    return Entry(_bits(everywhere, Permission.ALLOW), _bits(everywhere, Permission.DENY), by_host, rules)


Names = dict[str, Entry]
Row = tuple[PatternType, str, Entry]


def _changed(names: Names, added: dict[str, list[Rule]], removed: dict[str, set[Rule]]) -> Names:
    result = dict(names)
    for name in added.keys() | removed.keys():
        before = names[name].rules if name in names else ()
        gone = removed.get(name, set())
        kept = dict.fromkeys(rule for rule in before if rule not in gone)
        kept.update(dict.fromkeys(added.get(name, ())))
        if kept:
            result[name] = make_entry(tuple(kept))
        else:
            result.pop(name, None)
    return result


def _by_name(rules: Iterable[Rule], pattern_type: PatternType) -> dict[str, list[Rule]]:
    names: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.binding.pattern_type == pattern_type:
            names.setdefault(rule.binding.name, []).append(rule)
    return names


class RuleIndex:
    """The rules of one principal for one resource type."""

    __slots__ = ("_lengths", "denying", "literal", "prefixed")

    def __init__(self, literal: Names, prefixed: Names) -> None:
        self.literal = literal
        self.prefixed = prefixed
        self._lengths = sorted({len(prefix) for prefix in prefixed})
        self.denying = [row for row in self.rows() if row[2].denies]
        """The rows with a DENY. Most principals have none, which makes `allows_any` quick."""

    def __bool__(self) -> bool:
        return bool(self.literal or self.prefixed)

    def rows(self) -> Iterator[Row]:
        """All entries, with the pattern that each is for."""
        for name, entry in self.literal.items():
            yield PatternType.LITERAL, name, entry
        for name, entry in self.prefixed.items():
            yield PatternType.PREFIXED, name, entry

    def entries(self, name: str) -> Iterator[Entry]:
        """The entries that apply to the resource of this name."""
        literal = self.literal
        if name in literal:
            yield literal[name]
        if ANY_NAME in literal and name != ANY_NAME:
            yield literal[ANY_NAME]
        for length in self._lengths:
            if length > len(name):
                return
            entry = self.prefixed.get(name[:length])
            if entry is not None:
                yield entry

    def changed(self, added: Iterable[Rule], removed: Iterable[Rule]) -> "RuleIndex":
        """The index after a change. A rule in both is there afterwards."""
        added, removed = tuple(added), tuple(removed)
        tables = []
        for names, pattern_type in (
            (self.literal, PatternType.LITERAL),
            (self.prefixed, PatternType.PREFIXED),
        ):
            gone = {name: set(rules) for name, rules in _by_name(removed, pattern_type).items()}
            tables.append(_changed(names, _by_name(added, pattern_type), gone))
        return RuleIndex(*tables)


NO_RULES = RuleIndex({}, {})
