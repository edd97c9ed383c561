"""Decisions on quotas: functions take the state and a request, and return records or raise KafkaError."""

from collections.abc import Mapping

from penstock.cluster.quota_state import QuotaEntry
from penstock.cluster.records import MetadataRecord, QuotasChanged
from penstock.cluster.state import ClusterState
from penstock.config import Limits
from penstock.errors import ErrorCode, KafkaError
from penstock.security.quotas import QuotaEntity, check_quota


def alter_quotas(
    state: ClusterState, entity: QuotaEntity, changes: Mapping[str, float | None], limits: Limits
) -> list[MetadataRecord]:
    """Sets quotas of one entity, or removes them (None). To remove one that does not exist is no error, as in Kafka."""
    for key, value in changes.items():
        check_quota(entity, key, value)
    entries = state.quotas.entries
    before = entries.get(entity, {})
    merged = {**before, **changes}
    after = {key: value for key, value in merged.items() if value is not None}
    if after and entity not in entries and len(entries) >= limits.max_quotas:
        message = f"{len(entries)} entities have quotas, and limits.max_quotas allows no more: use <default>"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return [QuotasChanged(entry=QuotaEntry(entity, after))] if after != before else []
