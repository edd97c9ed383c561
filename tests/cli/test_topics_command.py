"""`penstock topics` against a broker."""

import json
from collections.abc import Callable

from .conftest import Cli, succeeded

Unique = Callable[[str], str]


def test_a_created_topic_is_listed_described_and_gone_after_delete(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("topics", "create", name, "--partitions", "3", "--config", "retention.ms=60000"))
    listed = json.loads(succeeded(cli("topics", "list", name, "--json")).stdout)
    assert listed == [{"topic": name, "partitions": 3, "replicas": 1}]
    [described] = json.loads(succeeded(cli("topics", "describe", name, "--json")).stdout)
    assert described["configs"] == {"retention.ms": "60000"}
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    succeeded(cli("topics", "delete", name, "--yes"))
    assert json.loads(succeeded(cli("topics", "list", name, "--json")).stdout) == []


def test_describe_for_people_shows_offsets_and_settings(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("topics", "create", name, "--config", "retention.ms=60000"))
    succeeded(cli("produce", name, stdin="one\ntwo\n"))
    page = succeeded(cli("topics", "describe", name)).stdout
    assert name in page
    assert "retention.ms" in page
    row = next(line for line in page.splitlines() if line.split()[:1] == ["0"])
    assert row.split()[-3:] == ["0", "2", "2"]
    assert "\x1b" not in page


def test_creating_an_existing_topic_fails_unless_it_is_allowed(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("topics", "create", name))
    again = cli("topics", "create", name)
    assert again.exit_code == 1
    assert "--if-not-exists" in again.stderr
    assert "exists already" in succeeded(cli("topics", "create", name, "--if-not-exists")).stderr


def test_deleting_a_missing_topic_fails_unless_it_is_allowed(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    result = cli("topics", "delete", name, "--yes")
    assert result.exit_code == 1
    assert "penstock topics list" in result.stderr
    succeeded(cli("topics", "delete", name, "--yes", "--if-exists"))


def test_alter_changes_settings_and_adds_partitions(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("topics", "create", name, "--config", "retention.ms=60000"))
    succeeded(
        cli(
            "topics",
            "alter",
            name,
            "--partitions",
            "4",
            "--set",
            "segment.bytes=2000000",
            "--unset",
            "retention.ms",
        )
    )
    [described] = json.loads(succeeded(cli("topics", "describe", name, "--json")).stdout)
    assert described["configs"] == {"segment.bytes": "2000000"}
    assert len(described["partitions"]) == 4


def test_an_unknown_setting_is_named(cli: Cli, unique: Unique) -> None:
    result = cli("topics", "create", unique("orders"), "--config", "no.such.setting=1")
    assert result.exit_code == 1
    assert "no.such.setting" in result.stderr


def test_a_mistyped_setting_is_answered_with_the_nearest(cli: Cli, unique: Unique) -> None:
    result = cli("topics", "create", unique("orders"), "--config", "retention.msx=1")
    assert result.exit_code == 1
    assert "Unknown topic config name: retention.msx" in result.stderr
    assert "did you mean retention.ms?" in result.stderr


def test_an_unknown_setting_cannot_be_unset(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("topics", "create", name))
    refused = cli("topics", "alter", name, "--set", "retention.ms=1000", "--unset", "retention.msx")
    assert refused.exit_code == 1
    assert "unknown config retention.msx; did you mean retention.ms?" in refused.stderr
    [described] = json.loads(succeeded(cli("topics", "describe", name, "--json")).stdout)
    assert described["configs"] == {}, "and nothing changed"


def test_internal_topics_are_listed_only_when_asked(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("produce", name, "--acks", "1", stdin="x\n"))
    succeeded(cli("consume", name, "--group", unique("readers"), "--from-beginning", "--exit"))
    assert "__consumer_offsets" not in succeeded(cli("topics", "list")).stdout
    assert "__consumer_offsets" in succeeded(cli("topics", "list", "--internal")).stdout
