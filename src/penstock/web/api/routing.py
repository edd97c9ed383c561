"""Serves the operations of the web API: path and query become one struct, the body another, and the handler returns a
third. `operations` has one row per operation. Routes, permissions, the OpenAPI document and the shape of errors are
all made from that row and the handler's signature.

`paths` finds the row of a request. Everything a caller sends is checked against the structs' constraints. An unknown
name is refused: a misspelt option would silently have no effect.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import cache
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    runtime_checkable,
)

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.kafka.handlers.inner_client import InnerClient
from penstock.node import Node
from penstock.node.limits.memory import MemoryBudget, Reservation
from penstock.security.quotas import QuotaKind
from penstock.types import CLUSTER_NAME, Caller, Operation, ResourceType
from penstock.web.api.bodies import BINARY, JSON, media_type, read_body
from penstock.web.api.problems import Problem, as_field_problem, as_problem, wrong
from penstock.web.api.responses import error_response, json_response
from penstock.web.callers import PASSWORD_USER, TOKEN, caller_of, check_login, while_allowed
from penstock.web.http_quotas import check_quota, count_bytes

P = TypeVar("P", covariant=True)
B = TypeVar("B", covariant=True)
T = TypeVar("T")

OFFLOAD_FROM_BYTES = 64 * 1024
"""Work on more bytes than this, some 100 us of the event loop, is done in a thread."""

ROWS_IN_LOOP = 500
"""Answers with more rows are encoded in a thread; a row takes some microseconds."""

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_BOOLEANS = {"true": True, "false": False}


class NoParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class NoBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An empty object. The operation changes something, so its caller must send a Content-Type: with that, a browser
    asks the broker before it sends the request for a page of another site."""


class Call(NamedTuple, Generic[P, B]):
    """One request, checked. `binary` is a body that is not JSON, for operations that accept one."""

    params: P
    body: B
    binary: bytes | None
    client: InnerClient
    """Asks Kafka's handlers on behalf of the caller."""
    request: Request
    reserved: Reservation

    @property
    def caller(self) -> Caller:
        return self.client.caller


@runtime_checkable
class NamesItsChange(Protocol):
    """Parameters or a body about something that no single field names: an access rule, a grant."""

    @property
    def audit_name(self) -> str:
        """Without secrets."""
        ...


@runtime_checkable
class MayOnlyLook(Protocol):
    """A body that may ask what a change would do, without making it: the audit log has only changes."""

    @property
    def only_looks(self) -> bool: ...


class Answer(NamedTuple, Generic[P]):
    """A body with a status of its own; bytes are its JSON."""

    status: int
    body: P | bytes


Handler = Callable[[Any], Awaitable[Any]]


class HttpOperation(msgspec.Struct, frozen=True):
    """One row of the table. The handler's name is the operation's, and its signature says what it takes and returns:
    `async def describe_topic(self, call: Call[TopicParams, None]) -> TopicFacts`."""

    method: str
    path: str
    handler: Handler
    operation: Operation
    resource: ResourceType
    """The caller must have the permission for `operation` on the resource of this type that the request names; if it
    names none, the handler shows the caller only resources that it may see."""
    summary: str
    refusals: tuple[int, ...] = ()
    """Statuses beside those that every operation has."""
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    """Other statuses that have the same body as `status`."""
    takes_binary: bool = False
    routine: bool = False
    """Whether it is a part of normal work, so that the audit log leaves it out, although it is no GET."""
    counted: QuotaKind | None = None
    """The quota whose bytes it uses: those of its body (producers) or of its answer (consumers)."""
    while_waiting: bool = False
    """Whether a node answers it that is not ready, because it has not found its cluster."""
    by_user: bool = False
    """Whether the user that the path names may do this without the permission, if it has logged in with its password.
    An API token does not suffice: a stolen one could make itself last for ever."""

    changes: Literal["user", "role", "node"] | None = None
    """What it changes, for the audit log, if that is not the resource of its permission: users are changed with a
    permission on the cluster."""

    @property
    def name(self) -> str:
        """The name in the OpenAPI document, from which clients are generated: describeTopic."""
        first, *others = self.handler.__name__.split("_")
        return first + "".join(word.capitalize() for word in others)

    @property
    def tag(self) -> str:
        if self.resource is ResourceType.ANY:
            return "index"
        return "records" if self.path.endswith("/records") else self.path.split("/")[2]

    @property
    def params(self) -> type[msgspec.Struct]:
        """Fields that the path names come from there, all others from the query."""
        return cast(type[msgspec.Struct], _signature(self.handler)[0])

    @property
    def body(self) -> type[msgspec.Struct] | None:
        return _signature(self.handler)[1]

    @property
    def answer(self) -> type[msgspec.Struct] | None:
        return _signature(self.handler)[2]

    @property
    def is_audited(self) -> bool:
        """Whether it changes something that the audit log reports."""
        return self.method != "GET" and self.counted is None and not self.routine

    def resource_name(self, params: object, body: object) -> str | None:
        """The name of the resource that a request is about; None if it is about all of them."""
        if self.resource is ResourceType.CLUSTER:
            return CLUSTER_NAME
        for given in (params, body):
            for field in RESOURCE_FIELDS.get(self.resource, ()):
                if isinstance(name := getattr(given, field, None), str):
                    return name
        return None

    def changed(self, params: object, body: object) -> tuple[str, str]:
        """The type and the name of what a request changes, for the audit log."""
        kind = self.changes or self.resource.name.lower()
        for given in (params, body):
            if isinstance(given, NamesItsChange):
                return kind, given.audit_name
            if (name := getattr(given, CHANGED_FIELDS.get(kind, ""), None)) is not None:
                return kind, str(name)
        return kind, self.resource_name(params, body) or ""


CHANGED_FIELDS = {"user": "user", "role": "role", "node": "node_id"}
"""The fields of requests that name what changes."""


RESOURCE_FIELDS = {
    ResourceType.TOPIC: ("topic", "name"),
    ResourceType.GROUP: ("group", "queue", "subscription", "clique"),
    ResourceType.TRANSACTIONAL_ID: ("transactional_id",),
}
"""The fields of requests that name a resource."""


@cache
def _signature(handler: Handler) -> tuple[type[msgspec.Struct] | None, ...]:
    """The structs of a handler's parameters, body and answer."""
    hints = get_type_hints(handler)
    returned = hints["return"]
    structs = (*get_args(hints["call"]), *(get_args(returned) or (returned,)))
    return tuple(None if struct is type(None) else struct for struct in structs)


class Endpoint:
    """Serves the operations of one path."""

    def __init__(self, operations: Mapping[str, HttpOperation], node: Node, budget: MemoryBudget) -> None:
        self.operations = operations
        self.methods = frozenset({*operations, *(["HEAD"] if "GET" in operations else [])})
        self._shapes = {row.handler: (row.params, row.body) for row in operations.values()}
        self._node = node
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        reserved = self._budget.reserve()
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            response = await self._serve(self.operations[method], request, reserved)
            await response(scope, receive, send)
        finally:
            reserved.release()

    async def _serve(self, operation: HttpOperation, request: Request, reserved: Reservation) -> Response:
        call: Call[Any, Any] | None = None
        try:
            if not operation.while_waiting:
                self._check_ready()
            call = await self._call(operation, request, reserved)
            self._check_permission(operation, call)
            check_quota(self._node, call.caller, operation.counted)
            received = reserved.bytes  # the body; the handler adds what it reads
            answer = await self._answer(operation, call)
            if not isinstance(answer, Answer):
                answer = Answer(operation.status, answer)
            self._report(operation, call, None)
            body = answer.body
            if isinstance(body, msgspec.Struct):
                body = await in_thread_if(count_rows(body) > ROWS_IN_LOOP, msgspec.json.encode, body)
            sent = len(body) if isinstance(body, bytes) else 0
            count_bytes(self._node, call.caller, operation.counted, received=received, sent=sent)
            return json_response(answer.status, body, reserved)
        except (Problem, PenstockError) as trouble:
            problem = trouble if isinstance(trouble, Problem) else as_problem(trouble)
            self._report(operation, call, problem)
            return error_response(problem)

    def _report(self, operation: HttpOperation, call: Call[Any, Any] | None, problem: Problem | None) -> None:
        """Tells the audit log; refusals by the access rules are there already."""
        if call is None or not operation.is_audited or (problem is not None and problem.status == 403):
            return
        if isinstance(call.body, MayOnlyLook) and call.body.only_looks:
            return
        resource, name = operation.changed(call.params, call.body)
        error = None if problem is None else problem.code
        self._node.audit.changed(call.caller, operation.handler.__name__, resource, name, error)

    async def _answer(self, operation: HttpOperation, call: Call[Any, Any]) -> Any:
        """The handler's answer. Some handlers wait for long: a caller that loses its login or its permission meanwhile
        hears of it. A change is not ended, because it may have been made: somebody may remove its own permission."""
        if operation.is_audited or not self._node.access.is_required:
            return await operation.handler(call)

        def check() -> None:
            check_login(self._node, call.request.scope)
            self._check_permission(operation, call)

        return await while_allowed(self._node, check, asyncio.ensure_future(operation.handler(call)))

    def _check_ready(self) -> None:
        if not self._node.ready:
            raise not_ready()

    def _check_permission(self, operation: HttpOperation, call: Call[Any, Any]) -> None:
        name = operation.resource_name(call.params, call.body)
        if name is None or (operation.by_user and _is_user(call)):
            return
        if operation.operation is Operation.CREATE and operation.resource is ResourceType.TOPIC:
            self._node.resources.check_create_topic(call.caller, name)
        else:
            self._node.resources.check(call.caller, operation.operation, operation.resource, name)

    async def _call(
        self, operation: HttpOperation, request: Request, reserved: Reservation
    ) -> Call[Any, Any]:
        wanted, wanted_body = self._shapes[operation.handler]
        params = read_params(wanted, request)
        body = binary = None
        if wanted_body is not None:
            kind = media_type(request)
            _check_type(operation, kind)
            data = await read_body(request, self._node.config.limits, reserved)
            if kind == BINARY:
                binary = data
            else:
                body = await offloaded(len(data), decode, data, wanted_body)
        client = InnerClient(self._node, caller_of(request), reserved)
        return Call(params, body, binary, client, request, reserved)


def _is_user(call: Call[Any, Any]) -> bool:
    """Whether the caller is the user that the path names, by its password; or an API token that the path names, which
    may revoke itself."""
    scope = call.request.scope
    user: str | None = scope.get(PASSWORD_USER)
    is_own_token = scope["method"] == "DELETE" and scope.get(TOKEN) == getattr(call.params, "token_id", "")
    return is_own_token or (user is not None and user == call.params.user)


def _check_type(operation: HttpOperation, kind: str) -> None:
    """Accepts only types for which a browser asks the broker before it sends a request for a page of another site."""
    expected = (JSON, BINARY) if operation.takes_binary else (JSON,)
    if kind not in expected:
        message = f"Content-Type is {kind or 'missing'}: expected {' or '.join(expected)}"
        raise Problem(415, "unsupported_media_type", message)


def not_ready() -> Problem:
    message = "this node is starting or stopping, or has not found its cluster yet (its log says more); ask another one"
    return Problem(503, "not_ready", message)


async def offloaded(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """The result of `work`, which runs at once if it is about few bytes, else in a thread."""
    if size < OFFLOAD_FROM_BYTES:
        return work(*arguments)
    return await in_thread_if(True, work, *arguments)


async def in_thread_if(is_large: bool, work: Callable[..., T], *arguments: Any) -> T:
    if not is_large:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


# --- requests


def decode(data: bytes, wanted: type[T]) -> T:
    """JSON as the struct, or Problem."""
    if not data.strip():
        if any(field.required for field in msgspec.structs.fields(cast(Any, wanted))):
            raise Problem(400, "invalid_body", "the body is empty: expected a JSON object")
        data = b"{}"
    try:
        if len(data) >= OFFLOAD_FROM_BYTES:
            check_lengths(data, cast(Hashable, wanted))
        return msgspec.json.decode(data, type=wanted)
    except msgspec.ValidationError as trouble:
        raise as_field_problem(trouble, wanted) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as trouble:
        raise Problem(400, "invalid_body", f"the body is not JSON: {trouble}") from None
    except RecursionError:
        raise Problem(400, "invalid_body", "the body is nested too deeply: send it flatter") from None


def check_lengths(data: bytes, wanted: Any) -> None:
    """ValidationError for a list with more elements than the struct takes. msgspec checks that only when it has decoded
    them all, and holds the interpreter's lock meanwhile; this only finds where each element ends."""
    outline = _outline(wanted)
    if outline is not None:
        counted = msgspec.json.decode(data, type=outline)
        for name, most in _longest(wanted).items():
            if len(getattr(counted, name) or ()) > most:
                raise msgspec.ValidationError(f"Expected `array` of length <= {most} - at `$.{name}`")


@cache
def _outline(wanted: Any) -> type[msgspec.Struct] | None:
    """A struct with the bounded lists of `wanted`, whose elements are not decoded."""
    fields = [(name, list[msgspec.Raw] | None, None) for name in _longest(wanted)]
    return msgspec.defstruct(f"{wanted.__name__}Outline", fields) if fields else None


@cache
def _longest(wanted: Any) -> dict[str, int]:
    """The most elements of each bounded list, by its name in JSON."""
    info = msgspec.inspect.type_info(wanted)
    assert isinstance(info, msgspec.inspect.StructType)
    lists = ((field.encode_name, _array(field.type)) for field in info.fields)
    return {name: each.max_length for name, each in lists if each is not None and each.max_length is not None}


def _array(kind: msgspec.inspect.Type) -> msgspec.inspect.ListType | None:
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    if isinstance(kind, msgspec.inspect.UnionType):
        return next((found for each in kind.types if (found := _array(each)) is not None), None)
    return kind if isinstance(kind, msgspec.inspect.ListType) else None


def read_params(wanted: type[T], request: Request) -> T:
    """Path and query as the struct, or Problem."""
    given: dict[str, str] = dict(request.path_params)
    if request.scope["query_string"]:
        for name, value in request.query_params.multi_items():
            if name in given:
                raise wrong(name, "given more than once: expected one value")
            given[name] = value
    kinds = _kinds(cast(Hashable, wanted))
    try:
        return msgspec.convert(
            {name: _typed(value, kinds.get(name)) for name, value in given.items()}, wanted
        )
    except msgspec.ValidationError as trouble:
        raise as_field_problem(trouble, wanted) from None


def _typed(value: str, kind: type | None) -> object:
    """The value as JSON would have it. A value of another type stays text, and msgspec refuses it."""
    if kind is msgspec.inspect.IntType and _INTEGER.fullmatch(value):
        return int(value)
    if kind is msgspec.inspect.BoolType:
        return _BOOLEANS.get(value, value)
    return value


@cache
def _kinds(wanted: Any) -> dict[str, type]:
    info = msgspec.inspect.type_info(wanted)
    assert isinstance(info, msgspec.inspect.StructType)
    return {field.encode_name: _plain(field.type) for field in info.fields}


def _plain(kind: msgspec.inspect.Type) -> type:
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    return type(kind)


# --- answers


def count_rows(body: msgspec.Struct) -> int:
    """The elements of the lists of an answer."""
    fields = [getattr(body, name) for name in body.__struct_fields__]
    return sum([len(field) for field in fields if isinstance(field, (list, tuple, dict))])
