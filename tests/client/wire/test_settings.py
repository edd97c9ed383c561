"""Which settings a client accepts, and which it refuses."""

import pytest

from penstock.client.wire import ClientSettings
from penstock.client.wire.settings import ServerAddress, parse_servers
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        ("a:1,a:1", [("a", 1)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_addresses_are_read_as_kafka_users_write_them(text: str, expected: list[tuple[str, int]]) -> None:
    assert list(parse_servers(text)) == expected


def test_an_address_is_shown_as_it_is_written() -> None:
    assert str(ServerAddress("::1", 9092)) == "[::1]:9092"
    assert str(ServerAddress("host", 9092)) == "host:9092"


@pytest.mark.parametrize(
    "text", ["", " , ", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "::1:9092", "host:-1"]
)
def test_an_invalid_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap_servers=.*expected HOST:PORT"):
        ClientSettings(bootstrap_servers=text).validate()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_timeout_ms", 0),
        ("retry_for_ms", -1),
        ("retry_backoff_ms", 0),
        ("max_response_bytes", 100),
        ("max_response_bytes", 1 << 31),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(field: str, value: int) -> None:
    settings = ClientSettings(bootstrap_servers="a:1", **{field: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{field}={value}"):
        settings.validate()


def test_a_client_id_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="client_id"):
        ClientSettings(bootstrap_servers="a:1", client_id="x" * 1001).validate()
