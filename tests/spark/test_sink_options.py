"""Options of a writer: those of Kafka's sink are accepted, invalid ones are refused with a helpful error."""

import pytest

from penstock.errors import ConfigError
from penstock.spark.payloads import PayloadError
from penstock.spark.sink_options import SinkOptions

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def parse(**options: str) -> SinkOptions:
    return SinkOptions.from_options(
        SERVERS | {name.replace("__", "."): value for name, value in options.items()}
    )


def test_options_of_kafkas_sink_are_accepted_unchanged() -> None:
    found = parse(
        topic=" orders ",
        includeHeaders="true",
        checkpointLocation="/somewhere",
        queryName="orders-out",
        kafka__acks="1",
        kafka__retries="3",
        kafka__enable__idempotence="false",
        kafka__linger__ms="5",
        kafka__client__id="me",
        kafka__compression__type="ZSTD",
        kafka__delivery__timeout__ms="5000",
        kafka__request__timeout__ms="2000",
        kafka__max__request__size="5000000",
        kafka__batch__size="0",
        kafka__buffer__memory="1000",
        kafka__max__block__ms="700",
        kafka__max__in__flight__requests__per__connection="10",
        kafka__security__protocol="plaintext",
    )
    assert (found.topic, found.compression, found.delivery_timeout_ms) == ("orders", 4, 5000)
    assert (found.max_request_bytes, found.batch_bytes, found.buffer_bytes) == (5_000_000, 1, 1000)
    assert found.max_in_flight == 5
    assert (found.client.client_id, found.client.request_timeout_ms, found.client.retry_for_ms) == (
        "me",
        2000,
        700,
    )


def test_very_large_timeouts_are_accepted() -> None:
    found = parse(
        kafka__max__block__ms=str(2**63 - 1), kafka__retry__backoff__ms="0", kafka__buffer__memory="9" * 12
    )
    assert (found.client.retry_for_ms, found.client.retry_backoff_ms) == (2**31 - 1, 1)
    assert found.buffer_bytes == 1 << 30


def test_names_of_options_do_not_depend_on_case() -> None:
    found = SinkOptions.from_options(
        {"Kafka.Bootstrap.Servers": "h:1", "TOPIC": "Orders", "usetimestamps": "True"}
    )
    assert (found.client.bootstrap_servers, found.topic, found.use_timestamps) == ("h:1", "Orders", True)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("kafka.transactional.id", "t", "the sink makes transactions by itself"),
        ("kafka.ssl.engine.factory.class", "x", "no JVM client here"),
        ("kafka.security.protocol", "TLS", "one of PLAINTEXT, SSL"),
        ("kafka.key.serializer", "x", "cast in the query"),
        ("kafka.partitioner.class", "x", "the column partition"),
        ("kafka.compresion.type", "lz4", r"did you mean kafka\.compression\.type\?"),
        ("kafka.compression.type", "lzma", "one of none, uncompressed, gzip, snappy, lz4, zstd"),
        ("kafka.max.request.size", "many", "a whole number"),
        ("kafka.max.request.size", "5", "a whole number from 2048"),
        ("kafka.bootstrap.servers", "nowhere", "HOST:PORT"),
        ("topic", "  ", "one topic's name"),
        ("topic", "a,b", "one topic's name"),
        ("topic", "örders", "topic names of letters, digits"),
        ("topics", "a", r"a known option; did you mean topic\?"),
        ("path", "/x", "the option topic says where"),
        ("useTimestamps", "yes", "true or false"),
    ],
)
def test_an_invalid_option_is_refused_by_name(option: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option}='{value}': expected .*{words}"):
        SinkOptions.from_options({**SERVERS, option: value})


def test_brokers_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers=''"):
        SinkOptions.from_options({"topic": "t"})


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(ConfigError, match=r"mode='overwrite': expected append"):
        SinkOptions.from_options(SERVERS, overwrite=True)


def test_an_unknown_value_format_is_refused() -> None:
    with pytest.raises(PayloadError, match="valueFormat='xml'"):
        parse(valueFormat="xml")
