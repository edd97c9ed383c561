"""ApiVersions: what a client asks first, to learn which versions both sides speak."""

from penstock.errors import ErrorCode
from penstock.kafka.handlers.context import RequestContext
from penstock.kafka.handlers.registry import Advertised, advertised
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse


async def api_versions(context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if request.client_software_name:
        context.connection.client_software = (
            f"{request.client_software_name} {request.client_software_version}"
        )
    return ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=_rows(advertised()))


def unsupported_version(code: ErrorCode) -> ApiVersionsResponse:
    """The answer to a version of ApiVersions that is unknown here: its own range, so that the client asks again."""
    own = [row for row in advertised() if row.api_key == ApiKey.API_VERSIONS]
    return ApiVersionsResponse(error_code=code, api_keys=_rows(own))


def _rows(ranges: list[Advertised]) -> list[ApiVersion]:
    return [ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges]
