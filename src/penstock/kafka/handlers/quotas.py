"""DescribeClientQuotas and AlterClientQuotas (KIP-546, KIP-612).

Both work without `--require-login` too: quotas by client id and address need no users.
"""

from penstock.cluster import quota_decisions
from penstock.errors import ErrorCode, KafkaError, StorageError
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.rows import ResponseRows
from penstock.kafka.wire.messages import alter_client_quotas as altering
from penstock.kafka.wire.messages import describe_client_quotas as describing
from penstock.security.quotas import DEFAULT_ENTITY, QuotaEntity, entity_from_wire, filter_from_components

MAX_ENTRIES = 1_000
"""Entities in one AlterClientQuotas: each is a change of the metadata of its own."""


async def describe_client_quotas(
    context: RequestContext, request: describing.DescribeClientQuotasRequest
) -> describing.DescribeClientQuotasResponse:
    try:
        state = context.cluster().quotas
        components = [(row.entity_type, row.match_type, row.match) for row in request.components]
        wanted = filter_from_components(components, request.strict)
        rows, entries = ResponseRows(context), []
        for entity in sorted(filter(wanted.selects, state.table.entries), key=str):
            values = state.table.entries.get(entity, {})
            rows.reserve(1)
            entries.append(_described(entity, {str(kind): value for kind, value in values.items()}))
            await rows.pause()
    except KafkaError as refused:
        return describing.DescribeClientQuotasResponse(
            error_code=refused.code, error_message=refused.message, entries=None
        )
    return describing.DescribeClientQuotasResponse(entries=entries)


def _described(entity: QuotaEntity, values: dict[str, float]) -> describing.EntryData:
    return describing.EntryData(
        entity=[
            describing.EntityData(entity_type=kind, entity_name=None if name == DEFAULT_ENTITY else name)
            for kind, name in entity.parts().items()
        ],
        values=[describing.ValueData(key=key, value=value) for key, value in sorted(values.items())],
    )


async def alter_client_quotas(
    context: RequestContext, request: altering.AlterClientQuotasRequest
) -> altering.AlterClientQuotasResponse:
    """Each entity succeeds or fails by itself."""
    results = []
    for entry in request.entries:
        result = altering.ResponseEntryData(entity=entry.entity)
        try:
            context.cluster()
            if len(request.entries) > MAX_ENTRIES:
                message = f"{len(request.entries)} entities in one request: expected {MAX_ENTRIES} at most"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            await _alter(context, entry, validate_only=request.validate_only)
        except KafkaError as refused:
            result.error_code, result.error_message = refused.code, refused.message
        except StorageError as trouble:
            result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(trouble)
        results.append(result)
    return altering.AlterClientQuotasResponse(entries=results)


async def _alter(context: RequestContext, entry: altering.RequestEntryData, *, validate_only: bool) -> None:
    entity = entity_from_wire((part.entity_type, part.entity_name) for part in entry.entity)
    changes = {op.key: None if op.remove else op.value for op in entry.ops}
    if len(changes) < len(entry.ops):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"one quota twice for {entity}")
    metadata, limits = context.node.metadata, context.node.config.limits
    if validate_only:
        metadata.check_controller()
        quota_decisions.alter_quotas(context.cluster(), entity, changes, limits)
    else:
        await metadata.change(lambda state: quota_decisions.alter_quotas(state, entity, changes, limits))
