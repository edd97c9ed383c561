"""Refusals of the HTTP port: {"error": {"code", "message", "field"}} with a status. Only three have another shape: the
503 of /ready, and two that are text: the 400 for plain HTTP on a port with TLS (`node/tls/port.py`), and uvicorn's 400
for a WebSocket's handshake with wrong headers.

`code` is for programs and never changes its meaning. A refusal of a Kafka handler has Kafka's name in lower case
(`topic_already_exists`); the other codes are the web API's own. `message` is for people, and says what to do where that
is not obvious. `field` names the wrong part of the request, if there is exactly one: `records[2].partition`, `offset`.

    400  the request is wrong, and will never work as it is
    401  the caller must log in   403  the caller may not do this                   421  another site's name
    404  it does not exist        409  it exists, and its state forbids this        416  the offset does not exist
    405  the path has other methods, which `Allow` lists
    408, 413, 415  the body does not end, is too large, or has another type
    422  the batch that is stored there does not unpack
    426  the path is for WebSockets
    429  the caller is above its quota: try again after `Retry-After` seconds
    500  a bug of the broker
    503  not now: try again after `Retry-After` seconds
"""

import re
from typing import Any

import msgspec

from penstock.errors import ErrorCode, KafkaError, PenstockError, Unanswered
from penstock.node.calls.retry import TRANSIENT
from penstock.web.api.expected import expected_of

RETRY_AFTER_SECONDS = 1
"""An election takes a second or two: an earlier attempt would get the same response."""

_STATUSES: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.RESOURCE_NOT_FOUND: 404,
    ErrorCode.DUPLICATE_RESOURCE: 409,
    ErrorCode.SECURITY_DISABLED: 409,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.POLICY_VIOLATION: 409,
    ErrorCode.REASSIGNMENT_IN_PROGRESS: 409,
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.GROUP_MAX_SIZE_REACHED: 409,
    ErrorCode.UNKNOWN_MEMBER_ID: 409,
    ErrorCode.ILLEGAL_GENERATION: 409,
    ErrorCode.REBALANCE_IN_PROGRESS: 409,
    ErrorCode.OFFSET_OUT_OF_RANGE: 416,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.RECORD_LIST_TOO_LARGE: 413,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: 413,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    ErrorCode.INVALID_TXN_STATE: 409,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
    ErrorCode.UNKNOWN_SERVER_ERROR: 500,
} | dict.fromkeys(
    (
        *TRANSIENT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ),
    503,
)
"""All others are mistakes in the request: 400."""

_HINTS = {
    ErrorCode.NOT_CONTROLLER: "a majority of the metadata group's voters must be alive; /v1/cluster shows the nodes",
    ErrorCode.LEADER_NOT_AVAILABLE: "an election may be under way; /v1/cluster/partitions shows the leaders",
    ErrorCode.NOT_ENOUGH_REPLICAS: "min.insync.replicas needs more replicas than are alive; /v1/cluster shows them",
    ErrorCode.KAFKA_STORAGE_ERROR: "the node's log says what is wrong with its disk",
    ErrorCode.MESSAGE_TOO_LARGE: "send fewer records at once, or raise the topic's max.message.bytes",
}

_FIELDS = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "topic", ErrorCode.GROUP_ID_NOT_FOUND: "group"}

_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_VAGUE = re.compile(r"^Invalid (enum )?value|matching regex")
_LENGTH = re.compile(r"^Expected `str` of length ([<>])= (\d+)$")
_NAMED = re.compile(r"(?:missing required|contains unknown) field `(.*)`")


class ErrorFacts(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    field: str | None = None


class Error(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorFacts


class Problem(Exception):
    """A refusal, raised where it is found out."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str | None = None,
        *,
        retry_after_seconds: int = RETRY_AFTER_SECONDS,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field
        self._retry_after_seconds = retry_after_seconds

    @property
    def facts(self) -> ErrorFacts:
        return ErrorFacts(code=self.code, message=self.message, field=self.field)

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self._retry_after_seconds)} if self.status in (429, 503) else {}


def wrong(field: str, message: str) -> Problem:
    """One field of the request is wrong."""
    return Problem(400, "invalid_field", message, field)


def refused(code: int, message: str | None = None, field: str | None = None) -> Problem:
    """A Kafka handler's refusal, by its error code."""
    known = ErrorCode(code) if code in ErrorCode.__members__.values() else ErrorCode.UNKNOWN_SERVER_ERROR
    said = message or known.name.replace("_", " ").lower()
    if known in _HINTS:
        said = f"{said} ({_HINTS[known]})"
    return Problem(_STATUSES.get(known, 400), known.name.lower(), said, field or _FIELDS.get(known))


def check(code: int, message: str | None = None, field: str | None = None) -> None:
    """Raises the refusal of this error code, unless it is NONE."""
    if code != ErrorCode.NONE:
        raise refused(code, message, field)


def as_problem(trouble: PenstockError) -> Problem:
    if isinstance(trouble, Unanswered) and trouble.may_be_done:
        return outcome_unknown(str(trouble))
    if isinstance(trouble, KafkaError) and not isinstance(trouble, Unanswered):
        return refused(trouble.code, trouble.message)
    return Problem(503, "node_unavailable", f"{trouble}; try again, or ask another node")


def outcome_unknown(reason: str) -> Problem:
    message = f"{reason}; it may have been done nevertheless: check before you repeat it"
    return Problem(503, "outcome_unknown", message)


def as_field_problem(trouble: Exception, wanted: Any) -> Problem:
    """msgspec's error about a request that does not fit `wanted`, with the field that it names."""
    told = str(trouble)
    place = _PLACE.search(told)
    said = _PLACE.sub("", told)
    field = place.group(1) if place else ""
    if _VAGUE.search(said) and (expected := expected_of(wanted, field)):
        said = f"expected {expected}"
    if length := _LENGTH.search(said):
        most, number = length.group(1) == "<", length.group(2)
        said = f"expected at {'most' if most else 'least'} {number} character{'' if number == '1' else 's'}"
    if named := _NAMED.search(said):
        field = f"{field}.{named.group(1)}" if field else named.group(1)
    return Problem(400, "invalid_field" if field else "invalid_body", said, field or None)
