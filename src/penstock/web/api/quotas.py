"""Quotas: list, set and remove them. They go by Kafka's own APIs, and changes to the controller.

A quota is for an entity: a user, a client id, both, or an address. `<default>` stands for all of a kind that have no
quota of their own, as in Kafka.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.cluster import ClusterState
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import alter_client_quotas as altering
from penstock.kafka.wire.messages import describe_client_quotas as describing
from penstock.node import Node
from penstock.security.quotas import DEFAULT_ENTITY, MAX_ENTITY_CHARACTERS, QuotaEntity, QuotaKind
from penstock.types import Operation
from penstock.web.api.problems import check, refused
from penstock.web.api.routing import ROWS_IN_LOOP, Call, NoParams, in_thread_if

EXACT, DEFAULT = 0, 1
"""Kafka's numbers of the ways to select entities."""

EntityName = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_ENTITY_CHARACTERS,
        description=f"A name, or {DEFAULT_ENTITY} for all without a quota of their own.",
    ),
]
QuotaName = Annotated[str, Meta(max_length=100, description=f"One of {', '.join(QuotaKind)}.")]


class EntityParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user, a client id, both, or an address."""

    user: EntityName | None = None
    client_id: EntityName | None = None
    ip: EntityName | None = None

    @property
    def entity(self) -> QuotaEntity:
        return QuotaEntity(self.user, self.client_id, self.ip)

    @property
    def audit_name(self) -> str:
        """As the audit log has the entities that Kafka's API changes."""
        return str(self.entity)


class QuotaChanges(EntityParams, frozen=True, kw_only=True):
    """The quotas that are to be set; null removes one, and the others stay."""

    quotas: Annotated[dict[QuotaName, float | None], Meta(max_length=len(QuotaKind))]


class EntityQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """The quotas of one entity, by their names."""

    user: str | None
    client_id: str | None
    ip: str | None
    quotas: dict[str, float]


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    quotas: list[EntityQuotas]


class Quotas:
    """Operations on quotas."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def list_quotas(self, call: Call[EntityParams, None]) -> QuotaList:
        wanted = call.params.entity.parts()
        request = describing.DescribeClientQuotasRequest(
            components=[_component(kind, name) for kind, name in wanted.items()]
        )
        found = await call.client.ask(
            ApiKey.DESCRIBE_CLIENT_QUOTAS, request, describing.DescribeClientQuotasResponse
        )
        check(found.error_code, found.error_message)
        entries = found.entries or []
        return QuotaList(quotas=await in_thread_if(len(entries) > ROWS_IN_LOOP, _described, entries))

    async def set_quotas(self, call: Call[NoParams, QuotaChanges]) -> EntityQuotas:
        entity = call.body.entity
        entity.validate()
        state = self._state(call)
        await self._alter(call, entity, call.body.quotas)
        return _facts(entity, _values(state, entity))

    async def remove_quotas(self, call: Call[EntityParams, None]) -> EntityQuotas:
        entity = call.params.entity
        entity.validate()
        before = _values(self._state(call), entity)
        if not before:
            raise refused(ErrorCode.RESOURCE_NOT_FOUND, f"{entity} has no quotas", "user")
        await self._alter(call, entity, dict.fromkeys(before))
        return _facts(entity, before)

    async def _alter(
        self, call: Call[object, object], entity: QuotaEntity, changes: Mapping[str, float | None]
    ) -> None:
        request = altering.AlterClientQuotasRequest(entries=[_alteration(entity, changes)])
        answer = await call.client.ask(
            ApiKey.ALTER_CLIENT_QUOTAS, request, altering.AlterClientQuotasResponse
        )
        check(answer.entries[0].error_code, answer.entries[0].error_message)
        wanted = changes.items()
        await self._node.access_admin.applied(
            lambda state: all(_values(state, entity).get(name) == value for name, value in wanted)
        )

    def _state(self, call: Call[object, object]) -> ClusterState:
        return self._node.resources.cluster(call.caller, Operation.ALTER_CONFIGS)


def _values(state: ClusterState, entity: QuotaEntity) -> dict[str, float]:
    values = state.quotas.table.entries.get(entity, {})
    return {str(kind): value for kind, value in sorted(values.items())}


def _component(kind: str, name: str) -> describing.ComponentData:
    if name == DEFAULT_ENTITY:
        return describing.ComponentData(entity_type=kind, match_type=DEFAULT, match=None)
    return describing.ComponentData(entity_type=kind, match_type=EXACT, match=name)


def _alteration(entity: QuotaEntity, changes: Mapping[str, float | None]) -> altering.RequestEntryData:
    return altering.RequestEntryData(
        entity=[
            altering.EntityData(entity_type=kind, entity_name=None if name == DEFAULT_ENTITY else name)
            for kind, name in entity.parts().items()
        ],
        ops=[
            altering.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in changes.items()
        ],
    )


def _described(entries: Iterable[describing.EntryData]) -> list[EntityQuotas]:
    """May run in a thread."""
    return [
        EntityQuotas(
            **{
                field: _name(entry, kind)
                for field, kind in (("user", "user"), ("client_id", "client-id"), ("ip", "ip"))
            },
            quotas={row.key: row.value for row in entry.values},
        )
        for entry in entries
    ]


def _name(entry: describing.EntryData, kind: str) -> str | None:
    for part in entry.entity:
        if part.entity_type == kind:
            return DEFAULT_ENTITY if part.entity_name is None else part.entity_name
    return None


def _facts(entity: QuotaEntity, values: dict[str, float]) -> EntityQuotas:
    return EntityQuotas(user=entity.user, client_id=entity.client_id, ip=entity.ip, quotas=values)
