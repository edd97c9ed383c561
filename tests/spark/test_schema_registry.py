"""Values with the ids of schemas in a registry, written by Confluent's own serializers."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock import Broker
from penstock.schema_registry import registry as schema_registry
from penstock.schema_registry.framing import MAX_INDEXES, WriterSchema, framed
from penstock.schema_registry.registry import (
    MAX_ANSWER_BYTES,
    MAX_REFERENCES,
    RegistryError,
    RegistrySettings,
    SchemaRegistry,
)
from penstock.spark.payloads import PayloadError, PayloadOptions, decoder_for, given_schema, registered_type
from penstock.spark.payloads.interfaces import BadValue, Decoded
from tests.schema_registry.orders import ORDER, message_class
from tests.schema_registry.registry_server import Registry, running

TOPIC = "orders"
CONTEXT = SerializationContext(TOPIC, MessageField.VALUE)
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "amount", "type": "double", "default": 0.0}]}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running() as registry:
        yield registry
    schema_registry.of_process.clear()


@pytest.fixture
def client(registry: Registry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def options(registry: Registry, value_format: str = "avro", **more: str) -> PayloadOptions:
    return PayloadOptions.from_options(
        {"valueFormat": value_format, "schemaRegistryUrl": registry.url, **more}
    )


def decoded(
    registry: Registry, given: PayloadOptions, values: list[bytes | None], headers: Any = None
) -> Decoded:
    settings = RegistrySettings(
        url=registry.url, user_info=given.registry_user_info, schema_type=given.value_format.upper()
    )
    asked = SchemaRegistry(settings)
    schema = given_schema(given) or registered_type(asked.latest(given.registry_subject or f"{TOPIC}-value"))
    decoder = decoder_for(given.value_format, schema, given, asked.schema_of)
    column = None
    if headers is not None:
        entry = pa.struct([("key", pa.string()), ("value", pa.binary())])
        rows = [[{"key": name, "value": value} for name, value in one] for one in headers]
        column = pa.array(rows, pa.list_(entry))
    (found,) = decoder.parts(pa.array(values, pa.binary()), column)
    return found


def rows(found: Decoded) -> list[Any]:
    assert not found.bad
    return found.values.to_pylist()


def avro(client: SchemaRegistryClient, schema: dict[str, Any], *orders: dict[str, Any]) -> list[bytes]:
    serialize = AvroSerializer(client, json.dumps(schema))
    return [serialize(order, CONTEXT) for order in orders]


PROTO_SCHEMA = "id bigint, name string"
INT64, STRING, UINT64 = 3, 9, 4


def _written() -> dict[str, tuple[WriterSchema, bytes]]:
    order = message_class(("id", INT64), ("name", STRING), ("big", UINT64), file="fuzz.proto")
    file = descriptor_pb2.FileDescriptorProto()
    order.DESCRIPTOR.file.CopyToProto(file)
    del file.message_type[0]
    proto = WriterSchema("PROTOBUF", base64.b64encode(file.SerializeToString()).decode(), {})
    made = order(id=7, name="xyz", big=5, tags={"a": 1}).SerializeToString()
    return {
        "avro": (WriterSchema("AVRO", json.dumps(ORDER), {}), b"\0\0\0\0\1\2\2\6abc"),
        "protobuf": (proto, b"\0\0\0\0\1\0" + made),
    }


WRITTEN = _written()


def test_avro_of_confluents_serializer_is_read_by_the_schemas_of_the_registry(
    registry: Registry, client: SchemaRegistryClient
) -> None:
    values = avro(client, ORDER, {"id": 1, "name": "a"}, {"id": 2, "name": None})
    values += avro(client, NEWER, {"id": 3, "name": "c", "amount": 2.5})
    found = decoded(registry, options(registry), [*values, None])
    assert rows(found) == [
        {"id": 1, "name": "a", "amount": None},
        {"id": 2, "name": None, "amount": None},
        {"id": 3, "name": "c", "amount": 2.5},
        None,
    ]


def test_columns_are_matched_by_name_and_new_ones_are_null(
    registry: Registry, client: SchemaRegistryClient
) -> None:
    values = avro(client, NEWER, {"id": 1, "name": "a", "amount": 1.5})
    given = options(registry, valueSchema="amount double, id bigint, later string")
    (row,) = rows(decoded(registry, given, values))
    assert row == {"amount": 1.5, "id": 1, "later": None}


def test_protobuf_of_confluents_serializer_is_read(registry: Registry, client: SchemaRegistryClient) -> None:
    order = message_class(("id", INT64), ("name", STRING), ("big", UINT64))
    serialize = ProtobufSerializer(order, client)
    made = order(id=7, name="x", big=2**64 - 1, kind=1, tags={"a": 1})
    made.lines.add(sku="s1")  # type: ignore[attr-defined]
    made.at.FromMicroseconds(1_700_000_000_000_001)  # type: ignore[attr-defined]
    values = [serialize(made, CONTEXT), serialize(order(), CONTEXT)]
    assert values[0][5:7] == b"\2\2", "the second message of the file"
    ddl = (
        "id bigint, name string, big decimal(20,0), lines array<struct<sku:string>>, at timestamp, "
        "tags map<string,int>, kind string"
    )
    first, second = rows(decoded(registry, options(registry, "protobuf", valueSchema=ddl), values))
    assert (first["id"], first["name"], int(first["big"]), first["kind"]) == (7, "x", 2**64 - 1, "LARGE")
    assert (first["lines"], first["tags"]) == ([{"sku": "s1"}], [("a", 1)])
    assert first["at"].timestamp() == 1_700_000_000.000001
    assert (second["id"], second["name"], second["at"], second["lines"]) == (0, "", None, [])


def test_both_formats_are_read_by_the_id_in_a_header(
    registry: Registry, client: SchemaRegistryClient
) -> None:
    in_header = {"schema.id.serializer": header_schema_id_serializer}
    order = message_class(("id", INT64), ("name", STRING))
    cases: list[tuple[str, Any, Any]] = [
        ("avro", AvroSerializer(client, json.dumps(ORDER), conf=in_header), {"id": 1, "name": "a"}),
        ("protobuf", ProtobufSerializer(order, client, in_header), order(id=1, name="a")),
    ]
    for value_format, serialize, value in cases:
        headers: list[tuple[str, bytes]] = [("trace", b"1")]
        topic = SerializationContext(f"{TOPIC}-{value_format}", MessageField.VALUE, headers)
        made = serialize(value, topic)
        assert len(headers) == 2
        given = options(registry, value_format, schemaIdIn="header", valueSchema=PROTO_SCHEMA)
        found = decoded(registry, given, [made, made], [headers, []])
        assert found.values.to_pylist() == [{"id": 1, "name": "a"}, None]
        assert [(at, "no header __value_schema_id" in reason) for at, reason in found.bad] == [(1, True)]


def test_an_avro_schema_may_refer_to_others(registry: Registry, client: SchemaRegistryClient) -> None:
    customer = {
        "type": "record",
        "name": "Customer",
        "namespace": "crm",
        "fields": [{"name": "id", "type": "int"}],
    }
    registry.register("crm.Customer", {"schema": json.dumps(customer)})
    order = {
        **ORDER,
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": ["null", "crm.Customer"]},
            {"name": "other", "type": "crm.Customer"},
        ],
    }
    reference = SchemaReference("crm.Customer", "crm.Customer", 1)
    from confluent_kafka.schema_registry import Schema

    serialize = AvroSerializer(client, Schema(json.dumps(order), "AVRO", [reference]))
    value = serialize({"id": 1, "customer": {"id": 5}, "other": {"id": 6}}, CONTEXT)
    assert rows(decoded(registry, options(registry), [value])) == [
        {"id": 1, "customer": {"id": 5}, "other": {"id": 6}}
    ]


def test_each_schema_is_asked_for_once(registry: Registry, client: SchemaRegistryClient) -> None:
    values = avro(client, ORDER, *({"id": n, "name": None} for n in range(50)))
    given = options(registry, valueSchema=PROTO_SCHEMA)
    registry.asked.clear()
    for _ in range(2):  # two tasks of a process
        rows(decoded(registry, given, values))
    assert registry.asked == ["GET /schemas/ids/1"]


def test_records_that_name_no_schema_of_the_registry_are_bad(
    registry: Registry, client: SchemaRegistryClient
) -> None:
    (good,) = avro(client, ORDER, {"id": 1, "name": None})
    registry.register("other", {"schema": "message", "schemaType": "PROTOBUF"})
    registry.register("broken", {"schema": "{}"})
    registry.register(
        "recursive", {"schema": json.dumps({**ORDER, "fields": [{"name": "o", "type": "Order"}]})}
    )
    unknown, proto, broken, recursive = (b"\0" + number.to_bytes(4, "big") for number in (99, 2, 3, 4))
    values = [good, unknown, b"", b"{}", b"\0\0", proto, broken, recursive, good[:-1], good + b"x"]
    found = decoded(registry, options(registry, valueSchema=PROTO_SCHEMA), [*values, unknown])
    assert [row is not None for row in found.values.to_pylist()] == [True] + [False] * 10
    reasons = dict(found.bad)
    assert sorted(reasons) == list(range(1, 11))
    assert "has no schema 99" in reasons[1] == reasons[10]
    assert "expected the id of a schema" in reasons[3]
    assert "type PROTOBUF, not AVRO" in reasons[5]
    assert "1 bytes follow" in reasons[9]
    assert registry.asked.count("GET /schemas/ids/99") == 1


def test_a_number_that_does_not_fit_makes_its_record_bad_alone(
    registry: Registry, client: SchemaRegistryClient
) -> None:
    values = avro(
        client, ORDER, {"id": 1, "name": None}, {"id": 2**40, "name": None}, {"id": 3, "name": None}
    )
    found = decoded(registry, options(registry, valueSchema="id int"), values)
    assert found.values.to_pylist() == [{"id": 1}, None, {"id": 3}]
    assert [at for at, _ in found.bad] == [1]


def test_message_indexes_are_bounded() -> None:
    frame = b"\0\0\0\0\1"
    assert framed(frame + b"\0rest", indexes=True).start == 6
    assert framed(frame + b"\4\2\0rest", indexes=True).indexes == (1, 0)
    too_many = frame + bytes([2 * (MAX_INDEXES + 1)]) + bytes(MAX_INDEXES + 1)
    for wrong in (frame, frame + b"\4\2", frame + b"\xff" * 10, frame + b"\1", frame + b"\2\1", too_many):
        with pytest.raises(BadValue, match="frame"):
            framed(wrong, indexes=True)


@given(
    damage=st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=3)), max_size=4), cut=st.integers(0, 60)
)
def test_damaged_values_are_good_or_bad_but_never_fatal(damage: list[tuple[int, bytes]], cut: int) -> None:
    for value_format, (writer, value) in WRITTEN.items():
        broken = value
        for at, piece in damage:
            broken = broken[:at] + piece + broken[at + len(piece) :]
        given = PayloadOptions.from_options({"valueFormat": value_format, "schemaRegistryUrl": "http://x"})
        decoder = decoder_for(value_format, registered_type(writer), given, lambda key, found=writer: found)
        for one in (broken, value[:cut], broken[:cut]):
            found = decoder.decode(pa.array([one, value], pa.binary()))
            found.values.validate(full=True)
            assert found.values[1].is_valid
            assert found.values[0].is_valid != bool(found.bad)


def asking(registry: Registry, user_info: str | None = None) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings(url=registry.url, user_info=user_info, schema_type="AVRO"))


def test_a_login_is_sent_and_shown_nowhere(registry: Registry) -> None:
    registry.register("s", {"schema": json.dumps(ORDER)})
    registry.user_info = "ada:secret"
    assert asking(registry, "ada:secret").schema_of(1).text == json.dumps(ORDER)
    with pytest.raises(RegistryError, match="status 401: check schemaRegistryUserInfo"):
        asking(registry, "ada:wrong").schema_of(1)
    given = options(registry, schemaRegistryUserInfo="ada:secret")
    assert given.registry_user_info == "ada:secret"
    assert "secret" not in repr(given)
    assert "secret" not in repr(RegistrySettings(url="u", user_info="ada:secret", schema_type="AVRO"))


def test_a_registry_that_misbehaves_fails_the_task_and_is_named(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "PAUSE_S", 0.0)
    reference = {"name": "r", "subject": "loop", "version": 1}
    many = [{"name": f"r{n}", "subject": "loop", "version": 1} for n in range(MAX_REFERENCES + 1)]
    registry.register("loop", {"schema": "{}"})
    wrong: list[tuple[int, bytes, str]] = [
        (200, b"<html>", "is this a schema registry"),
        (200, b"[1]", "is this a schema registry"),
        (200, b" " * (MAX_ANSWER_BYTES + 1), "more than"),
        (400, b"{}", "status 400"),
        (500, b"{}", "does not answer: status 500"),
        (302, b"http://127.0.0.1:1/elsewhere", "status 302"),
        (200, json.dumps({"schema": "{}", "references": many}).encode(), "more than 100 others"),
        (
            200,
            json.dumps({"schema": "{}", "references": [{**reference, "version": 5}]}).encode(),
            "no version 5",
        ),
        (200, b'{"schema": "{}", "references": 7}', "references that cannot be read"),
        (200, b'{"schema": "{}", "references": [{"name": "r"}]}', "references that cannot be read"),
    ]
    for number, (status, body, said) in enumerate(wrong, 1):
        registry.answers[f"/schemas/ids/{number}"] = status, body
        with pytest.raises(RegistryError, match=said):
            asking(registry).schema_of(number)
    assert sum("ids/5" in path for path in registry.asked) == RegistrySettings(url=registry.url).tries
    with pytest.raises(RegistryError, match="has no subject 'nothing'"):
        asking(registry).latest("nothing")


def test_schemas_that_refer_to_each_other_in_a_circle_are_read_once(registry: Registry) -> None:
    reference = {"name": "a", "subject": "a", "version": 1}
    registry.register("a", {"schema": "{}", "references": [{**reference, "name": "b", "subject": "b"}]})
    registry.register("b", {"schema": "{}", "references": [reference]})
    assert set(asking(registry).schema_of(1).references) == {"a", "b"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"valueFormat": "protobuf"}, "needs schemaRegistryUrl"),
        ({"valueFormat": "json", "schemaRegistryUrl": "http://x"}, "valueFormat=avro or protobuf"),
        ({"valueFormat": "avro", "schemaIdIn": "header"}, "schemaIdIn needs schemaRegistryUrl"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "ftp://x"}, "expected an address"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://a:b@x"}, "schemaRegistryUserInfo"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://x", "schemaIdIn": "key"}, "schemaIdIn"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://x", "avroSchemaId": "1"}, "avroSchemaId"),
        ({"valueFormat": "avro", "schemaRegistryUrl": "http://x", "avroFraming": "container"}, "avroFraming"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(wrong: dict[str, str], words: str) -> None:
    with pytest.raises(PayloadError, match=words):
        PayloadOptions.from_options(wrong)


def test_a_schema_that_is_no_descriptor_is_told() -> None:
    for text in ("syntax = 'proto3';", "AAAA"):
        with pytest.raises(PayloadError, match=r"format=serialized|no message"):
            registered_type(WriterSchema("PROTOBUF", text, {}))


def test_spark_reads_a_topic_by_its_registry(
    registry: Registry,
    client: SchemaRegistryClient,
    broker: Broker,
    make_topic: Callable[..., str],
    produce: Callable[..., None],
    read: Callable[..., DataFrame],
) -> None:
    registry.user_info = "ada:secret"
    login = {"schemaRegistryUrl": registry.url, "schemaRegistryUserInfo": "ada:secret"}
    secured = SchemaRegistryClient({"url": registry.url, "basic.auth.user.info": "ada:secret"})
    topic = make_topic()
    context = SerializationContext(topic, MessageField.VALUE)
    serialize = AvroSerializer(secured, json.dumps(ORDER))
    produce(topic, [serialize({"id": n, "name": f"n{n}"}, context) for n in range(20)] + [b"junk"])
    frame = read(topic, valueFormat="avro", badRecords="null", **login)
    kind = frame.schema["value"].dataType
    assert isinstance(kind, StructType)
    assert kind.simpleString() == "struct<id:bigint,name:string>"
    found = frame.orderBy("offset").select("value.*").collect()
    assert [tuple(row) for row in found] == [(n, f"n{n}") for n in range(20)] + [(None, None)]
    with pytest.raises(PySparkException, match="check schemaRegistryUserInfo"):
        read(topic, valueFormat="avro", schemaRegistryUrl=registry.url)
