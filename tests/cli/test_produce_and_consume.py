"""`penstock produce` and `penstock consume` against a broker."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Broker
from tests.transactional import ALL, COMMITTED, TransactionalTopic

from .conftest import Cli, succeeded

Unique = Callable[[str], str]


@pytest.fixture
def topic(cli: Cli, unique: Unique) -> str:
    name = unique("orders")
    succeeded(cli("topics", "create", name, "--partitions", "2"))
    return name


def everything(cli: Cli, topic: str) -> list[dict[str, Any]]:
    out = succeeded(cli("consume", topic, "--from-beginning", "--exit", "--json")).stdout
    return [json.loads(line) for line in out.splitlines()]


def test_lines_come_back_as_lines(cli: Cli, topic: str) -> None:
    sent = succeeded(cli("produce", topic, "--partition", "0", stdin="one\ntwo\n\nlast without newline"))
    assert "4 messages" in sent.stderr
    assert sent.stdout == ""
    read = succeeded(cli("consume", topic, "--from-beginning", "--exit"))
    assert read.stdout == "one\ntwo\n\nlast without newline\n"


def test_only_the_newline_is_taken_off_a_line(cli: Cli, topic: str) -> None:
    succeeded(cli("produce", topic, "--partition", "0", stdin=b"from windows\r\n\r\n"))
    assert [message["value"] for message in everything(cli, topic)] == ["from windows\r", "\r"]


def test_keys_headers_and_partition_arrive(cli: Cli, topic: str) -> None:
    succeeded(cli("produce", topic, "-K", ":", "-H", "source=test", "-p", "1", stdin="a:1\nb:2:3\n"))
    [first, second] = everything(cli, topic)
    assert (first["key"], first["value"], second["key"], second["value"]) == ("a", "1", "b", "2:3")
    assert first["headers"] == [{"name": "source", "value": "test"}]
    assert (first["partition"], first["offset"], second["offset"]) == (1, 0, 1)
    assert first["timestamp_ms"] > 1_600_000_000_000


def test_a_line_without_its_key_separator_is_an_error_that_names_the_line(cli: Cli, topic: str) -> None:
    result = cli("produce", topic, "-K", ":", stdin="a:1\nnothing here\n")
    assert result.exit_code == 1
    assert "line 2" in result.stderr
    assert [message["value"] for message in everything(cli, topic)] == ["1"]


def test_a_null_marker_becomes_a_tombstone(cli: Cli, topic: str) -> None:
    succeeded(
        cli("produce", topic, "--acks", "1", "--key", "k", "--null-marker", "NULL", stdin="NULL\nNULLs\n")
    )
    assert [message["value"] for message in everything(cli, topic)] == [None, "NULLs"]


def test_bytes_that_are_not_text_are_base64_in_json_and_themselves_otherwise(cli: Cli, topic: str) -> None:
    succeeded(cli("produce", topic, "--acks", "1", stdin=b"\xff\xfe\n"))
    [message] = everything(cli, topic)
    assert base64.b64decode(message["value_base64"]) == b"\xff\xfe"
    assert "value" not in message
    assert succeeded(cli("consume", topic, "--from-beginning", "--exit")).stdout_bytes == b"\xff\xfe\n"


@pytest.mark.parametrize(
    ("codec", "acks"),
    [
        ("none", "0"),
        ("none", "1"),
        ("none", "all"),
        ("gzip", "1"),
        ("snappy", "1"),
        ("lz4", "1"),
        ("zstd", "1"),
    ],
)
def test_every_codec_and_acks_level_delivers(codec: str, acks: str, cli: Cli, topic: str) -> None:
    succeeded(cli("produce", topic, "--acks", acks, "-z", codec, "-p", "0", stdin="same\n" * 50))
    # acks=0 returns before the broker has the message, so the reader waits for messages instead of the end.
    read = succeeded(cli("consume", topic, "--from-beginning", "--max", "50"))
    assert read.stdout == "same\n" * 50


def test_the_report_of_produce_can_be_json(cli: Cli, topic: str) -> None:
    report = json.loads(succeeded(cli("produce", topic, "--json", stdin="ab\nc\n")).stdout)
    assert report == {"topic": topic, "messages": 2, "bytes": 3}


def test_offsets_say_where_to_start(cli: Cli, topic: str) -> None:
    succeeded(
        cli("produce", topic, "--acks", "1", "-p", "0", stdin="".join(f"{number}\n" for number in range(10)))
    )
    assert succeeded(cli("consume", topic, "-p", "0", "--offset", "8", "--exit")).stdout == "8\n9\n"
    assert succeeded(cli("consume", topic, "-p", "0", "--offset=-3", "--exit")).stdout == "7\n8\n9\n"
    assert succeeded(cli("consume", topic, "--exit")).stdout == ""
    assert succeeded(cli("consume", topic, "--from-beginning", "--max", "2")).stdout == "0\n1\n"


def test_a_group_continues_where_it_stopped(cli: Cli, topic: str, unique: Unique) -> None:
    group = unique("billing")
    succeeded(
        cli("produce", topic, "--acks", "1", "-p", "0", stdin="".join(f"{number}\n" for number in range(10)))
    )
    first = succeeded(cli("consume", topic, "--group", group, "--from-beginning", "--max", "4"))
    rest = succeeded(cli("consume", topic, "--group", group, "--from-beginning", "--exit"))
    assert (first.stdout + rest.stdout).split() == [str(number) for number in range(10)]
    assert first.stdout == "0\n1\n2\n3\n"


def test_reading_without_a_group_leaves_no_trace(cli: Cli, topic: str) -> None:
    succeeded(cli("produce", topic, "--acks", "1", stdin="x\n"))
    everything(cli, topic)
    groups = [group["group"] for group in json.loads(succeeded(cli("groups", "list", "--json")).stdout)]
    assert "penstock-cli" not in groups


def test_consuming_a_missing_topic_says_how_to_create_it(cli: Cli, unique: Unique) -> None:
    result = cli("consume", unique("nowhere"))
    assert result.exit_code == 1
    assert "penstock topics create" in result.stderr


def test_a_missing_partition_is_refused_by_produce_and_consume(cli: Cli, topic: str) -> None:
    read = cli("consume", topic, "--partition", "9")
    assert read.exit_code == 2
    assert "partitions 0 to 1" in read.stderr
    sent = cli("produce", topic, "--partition", "9", stdin="x\n")
    assert sent.exit_code == 1
    assert "partition" in sent.stderr.lower()


def test_a_message_beyond_the_limit_fails_and_says_which_setting(cli: Cli, topic: str) -> None:
    result = cli("produce", topic, stdin="x" * 1_200_000)
    assert result.exit_code == 1
    assert "max.message.bytes" in result.stderr


def test_markers_of_transactions_are_no_messages_and_do_not_keep_it_from_ending(
    cli: Cli, broker: Broker, unique: Unique
) -> None:
    made = TransactionalTopic(broker, unique("marked"))
    made.fill()
    made.send(1, "open")
    assert {message["offset"]: message["value"] for message in everything(cli, made.name)} == COMMITTED
    last = succeeded(cli("consume", made.name, "--offset=-4", "--exit")).stdout
    assert last == "b1\n", "the other three offsets before the open transaction are markers"


def test_read_uncommitted_prints_aborted_and_open_transactions_too(
    cli: Cli, broker: Broker, unique: Unique
) -> None:
    made = TransactionalTopic(broker, unique("marked"))
    made.fill()
    made.send(1, "open")
    options = ("--exit", "--isolation", "read_uncommitted")
    printed = succeeded(cli("consume", made.name, "--from-beginning", *options)).stdout
    assert printed.splitlines() == [*ALL.values(), "open"]
    assert succeeded(cli("consume", made.name, "--offset=-1", *options)).stdout == "open\n"
