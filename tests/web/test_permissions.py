"""Every operation of the HTTP API, made by a user without any right: it changes nothing, and learns nothing."""

import json
import types
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.web.api.routing import HttpOperation
from penstock.web.operations import NO_PERMISSION, operations
from tests.web.test_login import PATIENCE_SECONDS, ask, basic

PASSWORDS = {"admin": "admin-password", "alice": "alice:password", "bob": "bob-password"}
SECRET = "a-name-that-nobody-may-know"
NAMES = {"node_id": "1", "partition": "0", "offset": "0"}


class Table:
    """The rows of the table, without a node: only their facts are needed."""

    class NoNode:
        http_memory = None

        def __getattr__(self, name: str) -> "Table.NoNode":
            return Table.NoNode()

    rows = operations(typing.cast(Any, NoNode()))


def simple(hint: Any, name: str) -> Any:
    """A value of the type that an operation would accept."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return simple(arguments[0], name)
    if origin in (typing.Union, types.UnionType):
        return simple(arguments[0], name)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (list, tuple):
        return [simple(arguments[0], name)] if arguments else []
    if origin is dict:
        return {}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return body_of(hint)
    return {str: SECRET, int: 1, bool: True, float: 1.0}.get(hint, SECRET)


def body_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = typing.get_type_hints(struct, include_extras=True)
    required = [field for field in msgspec.structs.fields(struct) if field.required]
    return {field.encode_name: simple(hints[field.name], field.name) for field in required}


def path_of(row: HttpOperation) -> str:
    parts = row.path.split("/")
    filled = [NAMES.get(part[1:-1], SECRET) if part.startswith("{") else part for part in parts]
    required = [
        field.encode_name
        for field in msgspec.structs.fields(row.params)
        if field.required and f"{{{field.name}}}" not in parts
    ]
    hints = typing.get_type_hints(row.params)
    query = "&".join(f"{name}={query_value(hints[name])}" for name in required)
    return "/".join(filled) + (f"?{query}" if query else "")


def query_value(hint: Any) -> str:
    return str(get_args(hint)[0]) if get_origin(hint) is typing.Literal else "0"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(users=PASSWORDS) as broker:
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "admin",
                "sasl.password": PASSWORDS["admin"],
            }
        )
        admin.create_topics([NewTopic(SECRET, 1)])[SECRET].result(PATIENCE_SECONDS)
        made = ask(broker, "/v1/queues", basic("admin"), "POST", {"queue": SECRET, "topic": SECRET})
        assert made[0] == 201
        yield broker


@pytest.mark.parametrize("row", Table.rows, ids=lambda row: row.name)
def test_a_user_without_rights(broker: Broker, row: HttpOperation) -> None:
    body = None if row.body is None else body_of(row.body)
    status, answer, _ = ask(broker, path_of(row), basic("bob"), row.method, body)
    if row.operation is NO_PERMISSION:
        assert status == 200
        return
    if status == 200:
        assert row.method == "GET", "it changed something"
        assert SECRET not in json.dumps(answer), "a list shows what its caller may not see"
        return
    assert status == 403, answer
    assert answer["error"]["code"].endswith("authorization_failed")
