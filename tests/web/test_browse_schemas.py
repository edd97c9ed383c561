"""Keys and values whose schemas are in a registry, over /v1/browse: written by Confluent's own serializers, decoded by
the node. And registries that are down, slow or hostile, which hold nothing up."""

import asyncio
import base64
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2

from penstock import Broker
from penstock.config import SchemaRegistrySettings
from penstock.errors import ConfigError
from penstock.schema_registry import decoder
from penstock.web import browse_frames, schema_values
from penstock.web.schema_values import RegistryValues
from tests.schema_registry.orders import ORDER, message_class
from tests.schema_registry.registry_server import Registry, running
from tests.web.browsing import PATIENCE_SECONDS, scan

Unique = Callable[[str], str]
INT64, STRING = 3, 9


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """On a busy machine a registry that works may need longer than a scan would wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_values, "WAIT_SECONDS", PATIENCE_SECONDS)
        yield


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running() as registry:
        yield registry


@pytest.fixture(scope="module")
def broker(registry: Registry) -> Iterator[Broker]:
    with Broker(schema_registry=registry.url) as broker:
        yield broker


@pytest.fixture
def topic(unique: Unique) -> str:
    return unique("orders")


@pytest.fixture
def client(registry: Registry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


def write(broker: Broker, topic: str, *values: bytes, key: bytes | None = None, headers: Any = None) -> None:
    producer = Producer(broker.client_settings())
    for value in values:
        producer.produce(topic, value, key, headers=headers)
    producer.flush()


def browse(broker: Broker, topic: str, **filters: str) -> list[dict[str, Any]]:
    with scan(broker.http_url, topic, start="oldest", filter=filters) as one:
        one.until("end")
        return one.messages


def decoded(broker: Broker, topic: str) -> dict[str, Any]:
    """The value of the first message, by its schema."""
    found: dict[str, Any] = browse(broker, topic)[0]["value_decoded"]
    return found


def problem(broker: Broker, topic: str) -> str:
    found = decoded(broker, topic)
    assert found["json"] is None
    text: str = found["problem"]
    return text


def context(topic: str, field: str = MessageField.VALUE) -> SerializationContext:
    return SerializationContext(topic, field)


# --- Confluent's serializers


def test_avro_is_shown_as_json_with_the_name_of_its_schema(
    broker: Broker, client: SchemaRegistryClient, topic: str
) -> None:
    serialize = AvroSerializer(client, json.dumps(ORDER))
    value = serialize({"id": 7, "name": "tea"}, context(topic))
    write(broker, topic, value, b"plain")
    first, second = browse(broker, topic)
    number = str(int.from_bytes(value[1:5], "big"))
    assert first["value_decoded"] == {
        "schema_id": number,
        "schema_type": "AVRO",
        "schema_name": "shop.Order",
        "json": '{"id":7,"name":"tea"}',
        "truncated": False,
        "problem": None,
    }
    assert first["value"].encode() == value  # as it is stored
    assert second["value_decoded"] is None


def test_protobuf_is_shown_as_json(broker: Broker, client: SchemaRegistryClient, topic: str) -> None:
    order = message_class(("id", INT64), ("name", STRING))
    made = order(id=2**60, name="x", tags={"a": 1})
    made.lines.add(sku="s1")
    made.at.FromJsonString("2024-02-29T12:00:00Z")
    serialize = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    write(broker, topic, serialize(made, context(topic)))
    found = decoded(broker, topic)
    assert (found["schema_type"], found["schema_name"]) == ("PROTOBUF", "shop.Order")
    assert json.loads(found["json"]) == {
        "id": str(2**60),
        "name": "x",
        "tags": {"a": 1},
        "lines": [{"sku": "s1"}],
        "at": "2024-02-29T12:00:00Z",
        "kind": "SMALL",
    }


def test_a_nested_protobuf_message_is_found_by_its_indexes(
    broker: Broker, client: SchemaRegistryClient, topic: str
) -> None:
    order = message_class(("id", INT64))
    line = type(order().lines.add(sku="nested"))
    serialize = ProtobufSerializer(line, client, {"use.deprecated.format": False})
    write(broker, topic, serialize(line(sku="nested"), context(topic)))
    found = decoded(broker, topic)
    assert (found["schema_name"], json.loads(found["json"])) == ("shop.Order.Line", {"sku": "nested"})


def test_json_schema_is_shown_without_its_frame(broker: Broker, registry: Registry, topic: str) -> None:
    schema = {"schema": '{"title": "Order", "type": "object"}', "schemaType": "JSON"}
    write(broker, topic, framed(registry, topic, schema, b'{"id": 1}'))
    found = decoded(broker, topic)
    assert (found["schema_type"], found["json"]) == ("JSON", '{"id":1}')


def test_schemas_in_headers_for_key_and_value(
    broker: Broker, client: SchemaRegistryClient, topic: str
) -> None:
    settings = {"schema.id.serializer": header_schema_id_serializer}
    serialize = AvroSerializer(client, json.dumps(ORDER), conf=settings)
    headers: list[tuple[str, bytes]] = []
    value = serialize({"id": 1, "name": None}, SerializationContext(topic, MessageField.VALUE, headers))
    key = serialize({"id": 2, "name": None}, SerializationContext(topic, MessageField.KEY, headers))
    write(broker, topic, value, key=key, headers=headers)
    [message] = browse(broker, topic)
    assert json.loads(message["value_decoded"]["json"])["id"] == 1
    assert json.loads(message["key_decoded"]["json"])["id"] == 2
    assert len(message["value_decoded"]["schema_id"]) == 36  # a GUID


def test_a_schema_that_refers_to_another(broker: Broker, client: SchemaRegistryClient, topic: str) -> None:
    client.register_schema("city", _schema({"type": "record", "name": "City", "fields": [_string("name")]}))
    reference = SchemaReference(name="City", subject="city", version=1)
    person = {"type": "record", "name": "Person", "fields": [{"name": "home", "type": "City"}]}
    serialize = AvroSerializer(client, _schema(person, [reference]))
    write(broker, topic, serialize({"home": {"name": "Ulm"}}, context(topic)))
    assert json.loads(decoded(broker, topic)["json"]) == {"home": {"name": "Ulm"}}


def _schema(schema: dict[str, Any], references: list[SchemaReference] | None = None) -> Any:
    return Schema(json.dumps(schema), "AVRO", references or [])


def _string(name: str) -> dict[str, str]:
    return {"name": name, "type": "string"}


def test_filters_look_into_decoded_keys_and_values(
    broker: Broker, client: SchemaRegistryClient, topic: str
) -> None:
    serialize = AvroSerializer(client, json.dumps(ORDER))
    write(broker, topic, *[serialize({"id": n, "name": f"n{n}"}, context(topic)) for n in range(20)])
    write(broker, topic, b'{"id": 7}', key=serialize({"id": 99, "name": "k"}, context(topic)))
    assert [one["offset"] for one in browse(broker, topic, field="id", field_value="7")] == [7, 20]
    assert [one["offset"] for one in browse(broker, topic, value='"id":12,')] == [12]
    assert [one["offset"] for one in browse(broker, topic, key='"id":99')] == [20]
    assert [one["offset"] for one in browse(broker, topic, field="nothing")] == []


# --- values that do not fit


def test_bytes_that_only_look_framed_are_shown_as_they_are(
    broker: Broker, registry: Registry, topic: str
) -> None:
    write(broker, topic, b"\0\0\1\0\0and more", b"\0\0")
    first, second = browse(broker, topic)
    assert first["value_decoded"]["problem"] == f"the registry at {registry.url} has no schema 65536"
    assert first["value"] == "\0\0\1\0\0and more"
    assert second["value_decoded"] is None


@pytest.mark.parametrize("cut", [6, 7, 9])
def test_a_truncated_value_says_so_and_the_others_are_shown(
    broker: Broker, client: SchemaRegistryClient, topic: str, cut: int
) -> None:
    value = AvroSerializer(client, json.dumps(ORDER))({"id": 7, "name": "tea"}, context(topic))
    write(broker, topic, value[:cut], value)
    first, second = browse(broker, topic)
    assert "the value ends before its fields do" in first["value_decoded"]["problem"]
    assert first["value_decoded"]["schema_name"] == "shop.Order"
    assert json.loads(second["value_decoded"]["json"])["id"] == 7


def test_a_truncated_protobuf_message_says_so(
    broker: Broker, client: SchemaRegistryClient, topic: str
) -> None:
    order = message_class(("id", INT64), ("name", STRING))
    serialize = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    value = serialize(order(id=5, name="some name"), context(topic))
    write(broker, topic, value[:-3], value[:5])
    first, second = browse(broker, topic)
    assert "not a Protobuf message shop.Order" in first["value_decoded"]["problem"]
    assert "ends before its message indexes do" in second["value_decoded"]["problem"]


def framed(registry: Registry, subject: str, schema: dict[str, Any], payload: bytes) -> bytes:
    number = registry.register(subject, schema)["id"]
    return b"\0" + int(number).to_bytes(4, "big") + payload


@pytest.mark.parametrize(
    ("schema", "payload", "words"),
    [
        ({"schema": "{"}, b"", "is not JSON"),
        ({"schema": '"Unheard"'}, b"", "which is not known"),
        (
            {"schema": '{"type":"record","name":"N","fields":[{"name":"n","type":["null","N"]}]}'},
            b"\2" * 100_000,
            "nested more than",
        ),
        (
            {"schema": '{"type": "array", "items": "null"}'},
            b"\xfe\xff\xff\xff\x0f",
            "more than 100000 fields",
        ),
        ({"schema": "no base64!", "schemaType": "PROTOBUF"}, b"\0", "no serialized Protobuf schema"),
        ({"schema": "AAAA", "schemaType": "PROTOBUF"}, b"\0", "no serialized Protobuf schema"),
        ({"schema": "", "schemaType": "PROTOBUF"}, b"\0", "is this a schema registry"),
        ({"schema": "{}", "schemaType": "THRIFT"}, b"", "schema type 'THRIFT' are not decoded"),
        ({"schema": "{}", "schemaType": "JSON"}, b"{", "not JSON"),
    ],
)
def test_hostile_schemas_are_told_in_words(
    broker: Broker, registry: Registry, topic: str, schema: dict[str, Any], payload: bytes, words: str
) -> None:
    write(broker, topic, framed(registry, topic, schema, payload))
    assert words in problem(broker, topic)


def test_a_protobuf_file_with_its_own_timestamp_does_no_harm(
    broker: Broker, registry: Registry, topic: str
) -> None:
    """JSON of Google's types is made by methods that this type does not have."""
    file = descriptor_pb2.FileDescriptorProto(name="own.proto", package="google.protobuf", syntax="proto3")
    for name in ("Timestamp", "Any", "Struct"):
        file.message_type.add(name=name).field.add(name="x", number=1, type=STRING, label=1)
    text = base64.b64encode(file.SerializeToString()).decode()
    schema = {"schema": text, "schemaType": "PROTOBUF"}
    values = [framed(registry, topic, schema, bytes([2, 2 * index]) + b"\x0a\1a") for index in range(3)]
    write(broker, topic, *values)
    for message in browse(broker, topic):
        assert message["value_decoded"]["schema_type"] == "PROTOBUF"


def test_long_values_are_cut_or_left_alone(
    broker: Broker, client: SchemaRegistryClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialize = AvroSerializer(client, json.dumps(ORDER))
    monkeypatch.setattr(browse_frames, "SHOWN_BYTES_MAX", 100)
    monkeypatch.setattr(decoder, "MAX_VALUE_BYTES", 1_000)
    names = ("ä" * 80, "n" * 2_000)
    write(broker, topic, *[serialize({"id": 1, "name": name}, context(topic)) for name in names])
    first, second = (one["value_decoded"] for one in browse(broker, topic))
    assert first["truncated"]
    assert len(first["json"].encode()) in (99, 100)
    assert first["json"].startswith('{"id":1,"name":"ää')
    assert "at most 1000 are decoded" in second["problem"]


def test_protobuf_that_is_not_installed_is_named(
    broker: Broker, client: SchemaRegistryClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = message_class(("id", INT64), file="not_installed.proto")
    serialize = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    write(broker, topic, serialize(order(id=1), context(topic)))
    monkeypatch.setitem(sys.modules, "penstock.schema_registry.protobuf_values", None)
    assert "pip install 'penstock[protobuf]'" in problem(broker, topic)


# --- registries that fail


@contextmanager
def silent_server() -> Iterator[tuple[str, threading.Event]]:
    """Accepts connections, and never answers. The event: somebody has asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked = threading.Event()
    accepted: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                accepted.append(listener.accept()[0])
            except OSError:
                return
            asked.set()

    thread = threading.Thread(target=accept)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    for one in accepted:
        one.close()


def test_a_registry_that_never_answers_holds_up_one_scan_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema_values, "WAIT_SECONDS", 0.2)
    with silent_server() as (url, asked), Broker(schema_registry=url) as broker:
        write(broker, "t", b"\0\0\0\0\7a", b"\0\0\0\0\x08b")
        assert "does not answer" in problem(broker, "t")
        assert asked.wait(PATIENCE_SECONDS)
        # It is not asked again for a while: this scan would otherwise never end.
        monkeypatch.setattr(schema_values, "WAIT_SECONDS", 1_000_000.0)
        assert "does not answer" in problem(broker, "t")


def test_a_registry_that_fails_is_left_alone_for_a_while() -> None:
    with running() as registry, Broker(schema_registry=registry.url) as broker:
        registry.answers["/schemas/ids/1"] = 500, b"{}"
        write(broker, "t", b"\0\0\0\0\1\2a")
        assert "does not answer: status 500" in problem(broker, "t")
        assert "does not answer: status 500" in problem(broker, "t")
        assert len(registry.asked) == 1


def test_a_registry_that_failed_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_values, "REST_SECONDS", 0.0)
    with running() as registry, Broker(schema_registry=registry.url) as broker:
        write(broker, "t", b"\0\0\0\0\1\2a")
        registry.answers["/schemas/ids/1"] = 500, b"{}"
        assert "does not answer: status 500" in problem(broker, "t")
        del registry.answers["/schemas/ids/1"]
        assert "has no schema 1" in problem(broker, "t")
        registry.register("s", {"schema": '"string"'})
        assert decoded(broker, "t")["json"] == '"a"'


def test_ids_that_the_registry_has_not_are_asked_for_once_and_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema_values, "MAX_UNKNOWN", 20)
    with running() as registry, Broker(schema_registry=registry.url) as broker:
        write(broker, "t", *[b"\0" + (1000 + n).to_bytes(4, "big") + b"x" for n in range(500)])
        for _ in range(3):
            with scan(broker.http_url, "t", limit=500) as one:
                one.until("end")
                assert len(one.messages) == 500
        assert len(registry.asked) < 20 + schema_values.MAX_LOADS
        assert len(set(registry.asked)) == len(registry.asked)


def test_only_the_configured_address_is_asked(topic: str) -> None:
    """A registry that sends elsewhere is not followed."""
    with running() as elsewhere, running() as registry:
        registry.answers["/schemas/ids/1"] = 302, f"{elsewhere.url}/schemas/ids/1".encode()
        with Broker(schema_registry=registry.url) as broker:
            write(broker, topic, b"\0\0\0\0\1a")
            assert "status 302" in problem(broker, topic)
        assert elsewhere.asked == []


def test_without_a_registry_nothing_is_decoded(unique: Unique) -> None:
    with Broker() as broker:
        write(broker, "t", b"\0\0\0\0\1a")
        [message] = browse(broker, "t")
        assert message["value_decoded"] is None


def test_the_node_logs_in_to_the_registry_by_the_file(tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("ada:secret\n")
    framed_text = b"\0\0\0\0\1\2a"

    with running() as registry:

        async def read(file: str) -> str:
            values = RegistryValues(SchemaRegistrySettings(url=registry.url, user_info_file=file))
            await values.load([1])
            found = values.decode(framed_text, None, set())
            assert found is not None
            return found.problem or str(found.value)

        registry.register("s", {"schema": '"string"'})
        registry.user_info = "ada:secret"
        assert asyncio.run(read(str(login))) == "a"
        assert "status 401: check schema_registry.user_info_file" in asyncio.run(read(""))
        with pytest.raises(ConfigError, match="a file with USER:PASSWORD"):
            asyncio.run(read(str(tmp_path / "nothing")))
