"""`penstock groups` against a broker."""

import json
from collections.abc import Callable

import pytest

from penstock.cli.groups import parse_timestamp

from .conftest import Cli, succeeded

Unique = Callable[[str], str]


@pytest.fixture
def names(cli: Cli, unique: Unique) -> tuple[str, str]:
    """A topic with ten messages in partition 0 of two, and a group that has read four of them."""
    topic, group = unique("orders"), unique("billing")
    succeeded(cli("topics", "create", topic, "--partitions", "2"))
    succeeded(cli("produce", topic, "--acks", "1", "-p", "0", stdin="x\n" * 10))
    succeeded(cli("consume", topic, "--group", group, "--from-beginning", "--max", "4"))
    return topic, group


def offsets(cli: Cli, group: str) -> dict[int, tuple[int, int]]:
    [found] = json.loads(succeeded(cli("groups", "describe", group, "--json")).stdout)
    return {place["partition"]: (place["committed"], place["lag"]) for place in found["offsets"]}


def test_lag_is_what_is_left_to_read(cli: Cli, names: tuple[str, str]) -> None:
    topic, group = names
    assert offsets(cli, group)[0] == (4, 6)
    page = succeeded(cli("groups", "describe", group)).stdout
    row = next(line.split() for line in page.splitlines() if line.startswith(topic))
    assert row[1:5] == ["0", "4", "10", "6"]
    listed = json.loads(succeeded(cli("groups", "list", "--json")).stdout)
    assert {"group": group, "state": "empty", "type": "classic"} in listed


def test_reset_changes_nothing_until_told_to(cli: Cli, names: tuple[str, str]) -> None:
    topic, group = names
    dry = succeeded(cli("groups", "reset", group, "--topic", topic, "--to-earliest"))
    assert "--execute" in dry.stderr
    assert offsets(cli, group)[0] == (4, 6)
    succeeded(cli("groups", "reset", group, "--topic", topic, "--to-earliest", "--execute"))
    assert offsets(cli, group)[0] == (0, 10)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-latest",), 10),
        (("--to-offset", "7"), 7),
        (("--to-offset", "999"), 10),
        (("--to-timestamp", "0"), 0),
        (("--to-timestamp", "2999-01-01T00:00:00Z"), 10),
    ],
)
def test_reset_goes_where_it_is_told_within_what_there_is(
    target: tuple[str, ...], expected: int, cli: Cli, names: tuple[str, str]
) -> None:
    topic, group = names
    succeeded(cli("groups", "reset", group, "--topic", f"{topic}:0", *target, "--execute"))
    assert offsets(cli, group)[0][0] == expected


def test_all_topics_means_those_the_group_has_offsets_for(cli: Cli, names: tuple[str, str]) -> None:
    topic, group = names
    moved = json.loads(
        succeeded(cli("groups", "reset", group, "--all-topics", "--to-latest", "--execute", "--json")).stdout
    )
    assert moved["executed"] is True
    assert {"topic": topic, "partition": 0, "from": 4, "to": 10} in moved["moves"]


def test_an_offset_that_the_partition_does_not_have_is_said_to_be_replaced(
    cli: Cli, names: tuple[str, str]
) -> None:
    topic, group = names
    beyond = succeeded(cli("groups", "reset", group, "--topic", f"{topic}:0", "--to-offset", "999"))
    assert f"{topic}-0 has offsets 0 to 10: 10 instead of 999" in beyond.stderr
    within = succeeded(cli("groups", "reset", group, "--topic", f"{topic}:0", "--to-offset", "9"))
    assert "instead" not in within.stderr


@pytest.mark.parametrize("execute", [[], ["--execute"]], ids=["dry run", "execute"])
def test_a_group_that_is_not_there_is_reset_only_when_a_new_one_is_wanted(
    execute: list[str], cli: Cli, names: tuple[str, str], unique: Unique
) -> None:
    topic, group = names[0], unique("mistyped")
    wish = ["groups", "reset", group, "--topic", f"{topic}:0", "--to-latest", *execute]
    refused = cli(*wish)
    assert refused.exit_code == 1
    assert f"there is no group {group}" in refused.stderr
    succeeded(cli(*wish, "--new-group"))
    assert (cli("groups", "describe", group).exit_code == 0) is bool(execute)


def test_a_partition_that_is_not_there_is_refused(cli: Cli, names: tuple[str, str]) -> None:
    topic, group = names
    result = cli("groups", "reset", group, "--topic", f"{topic}:7", "--to-earliest")
    assert result.exit_code == 2
    assert "partitions 0 to 1" in result.stderr


def test_a_deleted_group_is_gone(cli: Cli, names: tuple[str, str]) -> None:
    _, group = names
    succeeded(cli("groups", "delete", group, "--yes"))
    described = cli("groups", "describe", group)
    assert described.exit_code == 1
    assert "penstock groups list" in described.stderr
    assert cli("groups", "delete", group, "--yes").exit_code == 1


def test_timestamps_are_read_with_zone_without_and_as_milliseconds() -> None:
    assert parse_timestamp("1700000000000") == 1_700_000_000_000
    assert parse_timestamp("2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert parse_timestamp("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
