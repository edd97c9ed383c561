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
from penstock.node import Node

FEATURES_SINCE_VERSION = 3
SOFTWARE_SINCE_VERSION = 3
DESTINATION_SINCE_VERSION = 5
NO_NODE = -1
LOW_FEATURES_SINCE_VERSION = 4
"""Older clients do not understand a feature whose lowest version is 0, and must not be shown it."""
FEATURES = {"group.version": 1, "share.version": 2, "transaction.version": 2}
"""The features that depend on the cluster's version, and the level of each. With group.version 1, consumer groups may
use the consumer protocol (KIP-848). With share.version 2, share groups may have
dead letters (KIP-1191). With transaction.version 2, clients speak the newer dialect of transactions (KIP-890)."""
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")
"""KIP-511's pattern for the name and the version of a client's software, both of which are needed."""


async def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if context.api_version >= SOFTWARE_SINCE_VERSION:
        name, version = request.client_software_name, request.client_software_version
        if not SOFTWARE.fullmatch(name) or not SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
        context.connection.client_software = f"{name} {version}"
    if context.api_version >= DESTINATION_SINCE_VERSION:
        code = _check_destination(context.node, request)
        if code is not ErrorCode.NONE:
            return ApiVersionsResponse(error_code=code, api_keys=[])
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


def _check_destination(node: Node, request: ApiVersionsRequest) -> ErrorCode:
    """REBOOTSTRAP_REQUIRED if the client looks for another node or another cluster: the address that it knows has
    become this node's (KIP-1242). A client without metadata names neither. A node that waits for its seeds does not
    know its cluster yet."""
    names_cluster, names_node = request.cluster_id is not None, request.node_id != NO_NODE
    if names_cluster != names_node:
        return ErrorCode.INVALID_REQUEST
    is_other_cluster = bool(node.cluster_id) and request.cluster_id != node.cluster_id
    if names_node and (is_other_cluster or request.node_id != node.node_id):
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE


def unsupported_version(code: ErrorCode) -> ApiVersionsResponse:
    """The response to an unknown version of ApiVersions: the range of known ones, so that the client asks again."""
    own = [row for row in advertised() if row.api_key == ApiKey.API_VERSIONS]
    return ApiVersionsResponse(error_code=code, api_keys=_rows(own))


def _rows(ranges: list[Advertised]) -> list[ApiVersion]:
    return [ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges]
