"""Every API, every version, both directions: our bytes are those of Kafka's schemas, as kio writes them.

Kafka may have newer versions than kio: `test_newer_than_kio.py` checks those with Kafka's own code.
"""

import random

import pytest
from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32
from msgspec.structs import astuple

from penstock.kafka.wire import (
    ApiKey,
    Message,
    decode_message,
    decode_request_header,
    encode_message,
    encode_request,
    is_flexible,
    join,
    request_class,
    response_class,
    schema_range,
)
from penstock.kafka.wire.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from penstock.kafka.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from tests.kafka.wire.kio_oracle import kio_bytes, kio_class, kio_versions, random_instance, to_ours

EXAMPLES = 10


def check(kio_type: type, cls: type[Message], version: int, chance: random.Random) -> None:
    instance = random_instance(kio_type, chance)
    expected = kio_bytes(instance)
    assert encode_message(to_ours(instance, cls), version) == expected
    assert encode_message(decode_message(cls, version, expected), version) == expected


@pytest.mark.parametrize("api_key", list(ApiKey), ids=lambda key: key.name.lower())
def test_requests_and_responses_have_kios_bytes_in_every_version(api_key: ApiKey) -> None:
    for direction, cls in (("request", request_class(api_key)), ("response", response_class(api_key))):
        for version in kio_versions(api_key):
            chance = random.Random(f"{api_key} {version} {direction}")
            for _ in range(EXAMPLES):
                check(kio_class(api_key, version, direction), cls, version, chance)


@pytest.mark.parametrize("cls", [ConsumerProtocolSubscription, ConsumerProtocolAssignment])
def test_consumer_protocol_blobs_have_kios_bytes_in_every_version(cls: type[Message]) -> None:
    name = cls.__module__.rpartition(".")[2]
    for version in schema_name_map[name]:
        chance = random.Random(f"{name} {version}")
        for _ in range(EXAMPLES):
            check(load_entity_schema(name, version, EntityType.data), cls, version, chance)


@pytest.mark.parametrize("api_key", list(ApiKey), ids=lambda key: key.name.lower())
def test_versions_and_flexibility_are_kios(api_key: ApiKey) -> None:
    versions = kio_versions(api_key)
    first, last = schema_range(api_key)
    assert first == (0 if api_key == ApiKey.PRODUCE else versions[0])
    assert last >= versions[-1]
    for version in versions:
        assert is_flexible(api_key, version) == kio_class(api_key, version, "request").__flexible__  # type: ignore[attr-defined]


@pytest.mark.parametrize("client_id", [None, "", "a client with ünïcode"])
@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS])
def test_request_headers_have_kios_bytes(api_key: ApiKey, client_id: str | None) -> None:
    for version in kio_versions(api_key):
        header_class = kio_class(api_key, version, "request").__header_schema__  # type: ignore[attr-defined]
        assert header_class in (HeaderV1, HeaderV2)
        expected = kio_bytes(
            header_class(
                request_api_key=i16(api_key),
                request_api_version=i16(version),
                correlation_id=i32(77),
                client_id=client_id,
            )
        )
        frame = join(encode_request(api_key, version, 77, client_id, request_class(api_key)()))[4:]
        assert frame[: len(expected)] == expected
        assert astuple(decode_request_header(frame)) == (api_key, version, 77, client_id, len(expected))
