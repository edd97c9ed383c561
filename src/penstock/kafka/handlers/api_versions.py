"""ApiVersions: the first request of a client, to learn which versions both sides have."""

import re

from penstock.errors import ErrorCode
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.registry import Advertised, advertised
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

FEATURES_SINCE_VERSION = 3
SOFTWARE_SINCE_VERSION = 3
LOW_FEATURES_SINCE_VERSION = 4
"""Older clients do not understand a feature whose lowest version is 0, and must not be shown it."""
FEATURES = {"share.version": 1, "transaction.version": 2}
"""The features that depend on the cluster's version, and the level of each. With transaction.version 2, clients speak
the newer dialect of transactions (KIP-890)."""
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""KIP-511's pattern for the name and the version of a client's software, both of which are needed."""


async def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.api_version >= SOFTWARE_SINCE_VERSION:
        name, version = request.client_software_name, request.client_software_version
        if not SOFTWARE.fullmatch(name) or not SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        context.connection.client_software = f"{name} {version}"
    answer = ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=_rows(advertised()))
    if context.api_version >= LOW_FEATURES_SINCE_VERSION:
        answer.supported_features = [
            SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in FEATURES.items()
        ]
    if context.api_version >= FEATURES_SINCE_VERSION:
        answer.finalized_features_epoch = 1
        answer.finalized_features = [
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
        ]
    return answer


def unsupported_version(code: ErrorCode) -> ApiVersionsResponse:
    """The response to an unknown version of ApiVersions: the range of known ones, so that the client asks again."""
    own = [row for row in advertised() if row.api_key == ApiKey.API_VERSIONS]
    return ApiVersionsResponse(error_code=code, api_keys=_rows(own))


def _rows(ranges: list[Advertised]) -> list[ApiVersion]:
    return [ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges]
