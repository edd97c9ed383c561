"""DescribeClientQuotas and AlterClientQuotas as one call."""

from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import alter_client_quotas as altering
from penstock.kafka.wire.messages import describe_client_quotas as describing
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask

Entity = dict[str, str | None]


def entry(entity: Entity, **quotas: float | None) -> altering.RequestEntryData:
    """Sets quotas, or removes them (None). The name None is the default."""
    return altering.RequestEntryData(
        entity=[
            altering.EntityData(entity_type=kind.replace("_", "-"), entity_name=name)
            for kind, name in entity.items()
        ],
        ops=[
            altering.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in quotas.items()
        ],
    )


def alter(
    client: RawClient, *entries: altering.RequestEntryData, validate_only: bool = False, version: int = 1
) -> list[altering.ResponseEntryData]:
    request = altering.AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    return ask(
        client, ApiKey.ALTER_CLIENT_QUOTAS, version, request, altering.AlterClientQuotasResponse
    ).entries


def set_quotas(client: RawClient, entity: Entity, **quotas: float | None) -> None:
    [result] = alter(client, entry(entity, **quotas))
    assert result.error_code == 0, result.error_message


def describe(
    client: RawClient, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> describing.DescribeClientQuotasResponse:
    request = describing.DescribeClientQuotasRequest(
        components=[
            describing.ComponentData(entity_type=kind, match_type=match_type, match=name)
            for kind, match_type, name in components
        ],
        strict=strict,
    )
    return ask(
        client, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, request, describing.DescribeClientQuotasResponse
    )


def described(
    client: RawClient, *components: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[Entity, dict[str, float]]]:
    answer = describe(client, *components, strict=strict)
    assert answer.error_code == 0, answer.error_message
    assert answer.entries is not None
    return [
        (
            {part.entity_type: part.entity_name for part in found.entity},
            {value.key: value.value for value in found.values},
        )
        for found in answer.entries
    ]
