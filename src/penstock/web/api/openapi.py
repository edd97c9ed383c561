"""The OpenAPI document, made from the table of operations that is served and the structs in it."""

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.version import VERSION
from penstock.web.api.bodies import BINARY, JSON
from penstock.web.api.problems import Error
from penstock.web.api.routing import HttpOperation

REFS = "#/components/schemas/{name}"
MEANINGS = {
    200: "Done",
    201: "Created",
    204: "Done; the response has no body",
    207: "Some of it is done: each entry has its own result",
    400: "The request is wrong; `field` says where",
    401: "Log in, with a password or a token",
    403: "The caller does not have the permission",
    404: "There is no such thing",
    408: "The body did not end in time",
    409: "Its state forbids this",
    413: "Too large",
    415: "A body of another type",
    416: "There is no such offset",
    421: "The Host header names another site",
    422: "The batch that is stored there cannot be unpacked",
    429: "The quota of the user, client or address is exceeded; see `Retry-After`",
    503: "Not now: come back after `Retry-After` seconds, or ask another node",
}
OF_ALL = (400, 401, 403, 421, 503)
OF_BODIES = (408, 413, 415)

LOGINS = {
    "password": {"type": "http", "scheme": "basic"},
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API token, or a token of the identity provider",
    },
}
"""Needed where the broker requires login."""

Schemas = dict[str, Any]


def describe(operations: Iterable[HttpOperation]) -> dict[str, Any]:
    """The whole document."""
    table = list(operations)
    structs = {struct for operation in table for struct in _structs(operation)} | {Error}
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=REFS)
    paths: dict[str, dict[str, Any]] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    for struct in {operation.params for operation in table}:
        schemas.pop(struct.__name__, None)  # told as parameters
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": VERSION,
            "description": "Any node of a cluster answers, and asks the others for what they lead. The "
            "WebSockets are described elsewhere: /v1/push (docs/push.md), /v1/work (docs/queues.md) and /v1/browse "
            "(docs/http-api.md).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "security": [{}, *({name: []} for name in LOGINS)],
        "components": {"schemas": schemas, "securitySchemes": LOGINS},
    }


def _structs(operation: HttpOperation) -> Iterable[type[msgspec.Struct]]:
    yield operation.params
    yield from (struct for struct in (operation.body, operation.answer) if struct is not None)


def _operation(operation: HttpOperation, schemas: Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": list(_parameters(operation, schemas)),
        "responses": _responses(operation),
    }
    if operation.body is not None:
        content: dict[str, Any] = {JSON: {"schema": _ref(operation.body)}}
        if operation.takes_binary:
            content[BINARY] = {"schema": {"type": "string", "format": "binary"}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameters(operation: HttpOperation, schemas: Schemas) -> Iterable[dict[str, Any]]:
    struct = schemas[operation.params.__name__]
    for name, schema in struct["properties"].items():
        in_path = f"{{{name}}}" in operation.path
        yield {
            "name": name,
            "in": "path" if in_path else "query",
            "required": in_path or name in struct["required"],
            "schema": schema,
        }


def _responses(operation: HttpOperation) -> dict[str, Any]:
    answers = dict.fromkeys((operation.status, *operation.other_statuses), operation.answer)
    refusals = {*OF_ALL, *operation.refusals, *(OF_BODIES if operation.body is not None else ())}
    said = {status: _response(status, struct) for status, struct in answers.items()}
    if operation.counted is not None:
        refusals.add(429)
    said |= {status: _response(status, Error) for status in refusals}
    return {str(status): said[status] for status in sorted(said)}


def _response(status: int, struct: type[msgspec.Struct] | None) -> dict[str, Any]:
    described: dict[str, Any] = {"description": MEANINGS[status]}
    if struct is not None:
        described["content"] = {JSON: {"schema": _ref(struct)}}
    if status in (429, 503):
        described["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return described


def _ref(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": REFS.format(name=struct.__name__)}
