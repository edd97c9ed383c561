"""Quotas: which limit holds for a client, as Kafka decides it (KIP-13, KIP-55, KIP-124, KIP-599, KIP-612).

A quota is set for an *entity*: a user, a client id, both, or an address; `<default>` stands for those without a quota
of their own. For one kind of quota the first entity of this list that has a value decides:

    1. user U and client C            5. user <default> and client <default>
    2. user U and client <default>    6. user <default>
    3. user U                         7. client C
    4. user <default> and client C    8. client <default>

The same row says who shares the limit: a quota by user and client is for each pair, one by user for all clients of the
user together, one by client id for all users with that id together. `<default>` is a value, not a sharer: each user
that it applies to has the limit for itself. Connections are limited by address, or by the default for addresses.

A table never changes; `changed` makes the next one. Groups have no quotas, as in Kafka.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from penstock.errors import ErrorCode, KafkaError
from penstock.security.hosts import parse_address

DEFAULT_ENTITY = "<default>"
"""Stands for all users, client ids or addresses without a quota of their own; Kafka reserves the same name."""

MAX_ENTITY_CHARACTERS = 1_024
"""A user's name or a client id; clients cannot have longer ones (`max_client_id_bytes`)."""


class QuotaKind(StrEnum):
    """The quotas by Kafka's names, and their units."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes per second."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes per second."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Percent of one thread's time; a node has one for requests."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions created or deleted per second."""
    CONNECTION_CREATION_RATE = "connection_creation_rate"
    """Connections per second, by address."""


_WHOLE = (QuotaKind.PRODUCER_BYTE_RATE, QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.CONNECTION_CREATION_RATE)


def _refused(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


class QuotaEntity(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Whom a quota is set for. None: the entity is not about users (client ids, addresses). Its form as a msgpack array
    is stored."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __str__(self) -> str:
        parts = (("user", self.user), ("client-id", self.client_id), ("ip", self.ip))
        return ", ".join(f"{kind} {name}" for kind, name in parts if name is not None)

    def parts(self) -> dict[str, str]:
        """The name by Kafka's entity type, with DEFAULT_ENTITY for the default."""
        parts = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: name for kind, name in parts.items() if name is not None}

    def validate(self) -> None:
        """KafkaError(INVALID_REQUEST) unless the entity makes sense."""
        parts = self.parts()
        if not parts or ("ip" in parts and len(parts) > 1):
            raise _refused("a quota is for a user, a client-id, both, or an ip")
        for kind, name in parts.items():
            if not name or len(name) > MAX_ENTITY_CHARACTERS or not name.isprintable():
                raise _refused(f"the {kind} of a quota has 1 to {MAX_ENTITY_CHARACTERS} printable characters")
        if self.ip not in (None, DEFAULT_ENTITY) and parse_address(self.ip) is None:
            raise _refused(f"ip {self.ip[:50]!r}: expected an address")


def entity_from_wire(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """A checked entity from Kafka's pairs of entity type and name; the name None is the default."""
    names: dict[str, str] = {}
    for kind, name in parts:
        if kind in names:
            raise _refused(f"the entity type {kind[:50]!r} is given twice")
        names[kind] = DEFAULT_ENTITY if name is None else name
    if not names.keys() <= {"user", "client-id", "ip"}:
        raise _refused("the entity types of quotas are user, client-id and ip")
    entity = QuotaEntity(names.get("user"), names.get("client-id"), names.get("ip"))
    entity.validate()
    return entity


def check_quota(entity: QuotaEntity, key: str, value: float | None) -> QuotaKind:
    """The kind of quota that this key names, if the entity may have this value of it (None: no quota)."""
    try:
        kind = QuotaKind(key)
    except ValueError:
        raise _refused(f"there is no quota {key[:50]!r}: expected one of {', '.join(QuotaKind)}") from None
    if (kind == QuotaKind.CONNECTION_CREATION_RATE) != (entity.ip is not None):
        raise _refused(f"{key} is not a quota for {entity}")
    if value is not None and not 0 < value < 2**63:
        raise _refused(f"{key}={value}: expected more than 0, and less than 2^63")
    if value is not None and kind in _WHOLE and value != int(value):
        raise _refused(f"{key}={value}: expected a whole number")
    return kind


class Quota(msgspec.Struct, frozen=True):
    """The limit that holds for a client, and who shares it: None is everybody with the same other part."""

    limit: float
    user: str | None
    client_id: str | None


class QuotaTable:
    """All quotas of a cluster."""

    __slots__ = ("_by_kind", "_ips", "entries")

    def __init__(self, entries: Mapping[QuotaEntity, Mapping[QuotaKind, float]]) -> None:
        self.entries = entries
        self._by_kind: dict[QuotaKind, dict[tuple[str | None, str | None], float]] = {}
        self._ips: dict[str, float] = {}
        for entity, values in entries.items():
            for kind, value in values.items():
                if entity.ip is not None:
                    self._ips[_canonical(entity.ip)] = value
                else:
                    self._by_kind.setdefault(kind, {})[entity.user, entity.client_id] = value

    def changed(self, entity: QuotaEntity, values: Mapping[QuotaKind, float | None]) -> "QuotaTable":
        """The table with these values of one entity; None removes one."""
        merged = {**self.entries.get(entity, {}), **values}
        kept = {kind: value for kind, value in merged.items() if value is not None}
        entries = {known: some for known, some in self.entries.items() if known != entity}
        return QuotaTable({**entries, entity: kept} if kept else entries)

    def find(self, kind: QuotaKind, user: str, client_id: str) -> Quota | None:
        """The quota that holds for a client of this user (its name, without `User:`)."""
        values = self._by_kind.get(kind)
        if not values:
            return None
        for by_user in (user, DEFAULT_ENTITY):
            for by_client in (client_id, DEFAULT_ENTITY, None):
                limit = values.get((by_user, by_client))
                if limit is not None:
                    return Quota(limit, user, None if by_client is None else client_id)
        for by_client in (client_id, DEFAULT_ENTITY):
            limit = values.get((None, by_client))
            if limit is not None:
                return Quota(limit, None, client_id)
        return None

    def connection_rate(self, ip: str) -> float | None:
        """How many connections per second an address may make."""
        return self._ips.get(_canonical(ip), self._ips.get(DEFAULT_ENTITY)) if self._ips else None


def _canonical(ip: str) -> str:
    """One text per address: IPv6 has many."""
    return str(parse_address(ip) or ip)


NO_QUOTAS = QuotaTable({})


# --- filters of DescribeClientQuotas


class QuotaMatch(msgspec.Struct, frozen=True):
    """Selects entities by one part: by its name, the default (DEFAULT_ENTITY), or any name (None)."""

    entity_type: str
    name: str | None


class QuotaFilter(msgspec.Struct, frozen=True):
    """Selects entities that have all these parts; `strict`: and no others."""

    matches: tuple[QuotaMatch, ...] = ()
    strict: bool = False

    def selects(self, entity: QuotaEntity) -> bool:
        """Whether the filter selects the entity."""
        parts = entity.parts()
        if self.strict and len(parts) != len(self.matches):
            return False
        return all(
            match.entity_type in parts and match.name in (None, parts[match.entity_type])
            for match in self.matches
        )


_EXACT, _DEFAULT, _ANY = 0, 1, 2


def filter_from_components(components: Iterable[tuple[str, int, str | None]], strict: bool) -> QuotaFilter:
    """A checked filter from Kafka's components: entity type, match type (0 name, 1 default, 2 any), name."""
    matches: dict[str, QuotaMatch] = {}
    for kind, match_type, name in components:
        if kind not in ("user", "client-id", "ip") or kind in matches:
            raise _refused("a filter of quotas has each of the types user, client-id and ip at most once")
        if match_type not in (_EXACT, _DEFAULT, _ANY) or (name is None) != (match_type != _EXACT):
            raise _refused("a filter of quotas has a name, or asks for the default, or for any")
        matches[kind] = QuotaMatch(kind, {_EXACT: name, _DEFAULT: DEFAULT_ENTITY, _ANY: None}[match_type])
    if "ip" in matches and len(matches) > 1:
        raise _refused("no quota is for an ip and something else")
    return QuotaFilter(tuple(matches.values()), strict)
