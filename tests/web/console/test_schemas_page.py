"""Messages whose schemas are in a registry, in the browser: Avro and Protobuf as JSON, in columns and filters too."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from playwright.sync_api import expect

from penstock import Broker
from penstock.web import schema_values
from tests.schema_registry.orders import ORDER, message_class
from tests.schema_registry.registry_server import Registry, running
from tests.web.console.conftest import OpenPage, TakePicture

INT64, STRING = 3, 9


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """On a busy machine a registry that works may need longer than a scan would wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_values, "WAIT_SECONDS", 60.0)
        yield


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with running() as registry:
        yield registry


@pytest.fixture(scope="module")
def decoding(registry: Registry) -> Iterator[Broker]:
    """A broker that knows the registry, with 20 orders in Avro, one in Protobuf and one that is cut off."""
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext("orders", MessageField.VALUE)
    avro = AvroSerializer(client, json.dumps(ORDER))
    order = message_class(("id", INT64), ("name", STRING))
    protobuf = ProtobufSerializer(order, client, {"use.deprecated.format": False})
    with Broker(schema_registry=registry.url) as broker:
        producer = Producer(broker.client_settings())
        for number in range(20):
            producer.produce("orders", avro({"id": 2**62 + number, "name": f"order {number}"}, context))
        producer.produce("orders", protobuf(order(id=5, name="by Protobuf"), context))
        producer.produce("orders", avro({"id": 1, "name": "cut off"}, context)[:8])
        producer.flush()
        yield broker


def test_avro_and_protobuf_are_shown_by_their_schemas(
    decoding: Broker, open_page: OpenPage, take_picture: TakePicture
) -> None:
    page = open_page("topics/orders/messages?columns=id,name", at=decoding)
    expect(page.get_by_role("cell", name=str(2**62 + 7), exact=True)).to_be_visible()  # all digits of it
    expect(page.get_by_role("cell", name="by Protobuf", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name="not decoded: the value ends before its fields do")).to_be_visible()
    take_picture(page, "schemas")
    page.get_by_role("button", name="Open the message at offset 7 ").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Avro · shop.Order · id 1")
    expect(dialog.get_by_label("Value")).to_contain_text(f'"id": {2**62 + 7},')
    take_picture(page, "message-avro")
    dialog.get_by_role("button", name="Hex").click()
    expect(dialog.get_by_label("Value")).to_contain_text("00 00 00 00 01")


def test_a_filter_looks_into_decoded_values(decoding: Broker, open_page: OpenPage) -> None:
    page = open_page("topics/orders/messages?field=name&field_value=order%203", at=decoding)
    expect(page.get_by_text("1 message, 22 of 22 scanned")).to_be_visible()
    expect(page.locator("tbody tr")).to_contain_text(str(2**62 + 3))


def test_a_value_that_does_not_fit_its_schema_says_why(decoding: Broker, open_page: OpenPage) -> None:
    page = open_page(
        "topics/orders/messages?start=offset&offset=21&partition=0&limit=1&show=message", at=decoding
    )
    expect(page.get_by_role("dialog")).to_contain_text(
        "The value is not decoded: the value ends before its fields do."
    )


def test_without_a_registry_the_page_says_which_setting_is_needed(
    broker: Broker, open_page: OpenPage
) -> None:
    producer = Producer(broker.client_settings())
    producer.produce("framed", b"\0\0\0\0\x07payload")
    producer.flush()
    page = open_page("topics/framed/messages?start=oldest&limit=1&show=message")
    expect(page.get_by_role("dialog")).to_contain_text("(schema 7)")
    expect(page.get_by_role("dialog")).to_contain_text("schema_registry.url")
