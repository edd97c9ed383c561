"""`penstock groups` against a broker."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from penstock import Broker
from penstock.cli import share_groups
from penstock.cli.parameters import moment_ms
from penstock.errors import ErrorCode
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.kafka.clients.queues import take
from tests.kafka.clients.queues import worker as share_consumer
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask
from tests.kafka.trio import Trio
from tests.web.workers import working

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


def test_lag_counts_the_unread_messages(cli: Cli, names: tuple[str, str]) -> None:
    topic, group = names
    assert offsets(cli, group)[0] == (4, 6)
    page = succeeded(cli("groups", "describe", group)).stdout
    row = next(line.split() for line in page.splitlines() if line.startswith(topic))
    assert row[1:5] == ["0", "4", "10", "6"]
    listed = json.loads(succeeded(cli("groups", "list", "--json")).stdout)
    assert {"group": group, "state": "empty", "type": "classic", "consumers": 0} in listed


def test_reset_changes_nothing_without_confirmation(cli: Cli, names: tuple[str, str]) -> None:
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
def test_reset_goes_to_the_requested_offset_within_the_log(
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


def test_a_reset_beyond_the_partition_reports_the_offset_used_instead(
    cli: Cli, names: tuple[str, str]
) -> None:
    topic, group = names
    beyond = succeeded(cli("groups", "reset", group, "--topic", f"{topic}:0", "--to-offset", "999"))
    assert f"{topic}-0 has offsets 0 to 10: 10 instead of 999" in beyond.stderr
    within = succeeded(cli("groups", "reset", group, "--topic", f"{topic}:0", "--to-offset", "9"))
    assert "instead" not in within.stderr


@pytest.mark.parametrize("execute", [[], ["--execute"]], ids=["dry run", "execute"])
def test_a_missing_group_is_reset_only_if_creating_it_is_requested(
    execute: list[str], cli: Cli, names: tuple[str, str], unique: Unique
) -> None:
    topic, group = names[0], unique("mistyped")
    wish = ["groups", "reset", group, "--topic", f"{topic}:0", "--to-latest", *execute]
    refused = cli(*wish)
    assert refused.exit_code == 1
    assert f"there is no group {group}" in refused.stderr
    succeeded(cli(*wish, "--new-group"))
    assert (cli("groups", "describe", group).exit_code == 0) is bool(execute)


def test_a_missing_partition_is_refused(cli: Cli, names: tuple[str, str]) -> None:
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
    assert moment_ms("--to-timestamp", "1700000000000") == 1_700_000_000_000
    assert moment_ms("--to-timestamp", "2023-11-14T22:13:20Z") == 1_700_000_000_000
    assert moment_ms("--to-timestamp", "2023-11-14T23:13:20+01:00") == 1_700_000_000_000


@pytest.fixture
def share_group(cli: Cli, broker: Broker, unique: Unique) -> Iterator[str]:
    """One with a consumer."""
    topic, group = unique("orders"), unique("workers")
    succeeded(cli("topics", "create", topic))
    url = f"{broker.http_url}/v1/groups"
    with share_consumer(broker.bootstrap_servers, group, topic) as consumer:
        take(consumer, lambda _: group in [row["group"] for row in httpx.get(url).json()["groups"]])
        yield group


def test_a_share_group_is_listed_with_its_type_among_the_others(
    cli: Cli, names: tuple[str, str], share_group: str
) -> None:
    listed = json.loads(succeeded(cli("groups", "list", "--json")).stdout)
    assert {"group": share_group, "state": "stable", "type": "share", "consumers": 1} in listed
    assert {"group": names[1], "state": "empty", "type": "classic", "consumers": 0} in listed
    assert [row["group"] for row in listed] == sorted(row["group"] for row in listed)
    page = succeeded(cli("groups", "list"))
    assert [share_group, "stable", "share", "1"] in [line.split() for line in page.stdout.splitlines()]
    assert page.stderr == ""


def test_a_share_group_is_found_on_any_node_of_a_cluster(plain_cli: Cli, unique: Unique) -> None:
    with Trio() as trio, ExitStack() as stack:
        succeeded(plain_cli("topics", "create", "orders", "-b", trio.bootstrap_servers))
        groups = [unique("workers") for _ in range(4)]
        members = [
            stack.enter_context(share_consumer(trio.bootstrap_servers, group, "orders")) for group in groups
        ]
        for member in members:
            take(member, lambda _: True)
        take(members[0], lambda _: known(trio) >= set(groups))
        listed = json.loads(
            succeeded(plain_cli("groups", "list", "--json", "-b", trio.bootstrap_servers)).stdout
        )
    assert [(row["group"], row["type"]) for row in listed] == [(group, "share") for group in sorted(groups)]


def known(trio: Trio) -> set[str]:
    """Groups that any node coordinates."""

    def names() -> set[str]:
        return {row.group_id for node_id in trio.running for row in trio.node(node_id).groups.list((), ())}

    return trio.call(names)


def test_a_share_group_is_reported_as_a_queue_with_the_command_for_queues(cli: Cli, share_group: str) -> None:
    reset = cli("groups", "reset", share_group, "--all-topics", "--to-earliest")
    assert reset.exit_code == 1
    assert f"{share_group} is a queue" in reset.stderr
    assert f"penstock queues describe {share_group}" in reset.stderr


def test_describe_shows_the_consumers_of_a_queue(cli: Cli, broker: Broker, unique: Unique) -> None:
    name = unique("mail")
    succeeded(cli("queues", "create", name))
    with working(broker.http_url, name, name, credit=1, name="mailer") as worker:
        worker.hear("working")
        [group] = json.loads(succeeded(cli("groups", "describe", name, "--json")).stdout)
        assert (group["type"], [one["name"] for one in group["consumers"]]) == ("share", ["mailer"])
        page = succeeded(cli("groups", "describe", name)).stdout
        assert "mailer" in page
        assert "websocket" in page
        listed = json.loads(succeeded(cli("groups", "list", "--json")).stdout)
        assert [row["consumers"] for row in listed if row["group"] == name] == [1]


def test_if_share_groups_cannot_be_listed_the_other_groups_are_and_that_is_reported(
    cli: Cli, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "PLAIN", "ssl")  # now a plaintext connection counts as encrypted
    listed = succeeded(cli("groups", "list", "--json", "-X", "security.protocol=plaintext"))
    assert {"group": names[1], "state": "empty", "type": "classic", "consumers": 0} in json.loads(
        listed.stdout
    )
    assert "share groups may be missing" in listed.stderr


def test_a_group_whose_partitions_move_is_rebalancing(broker: Broker, cli: Cli, unique: Unique) -> None:
    topic, group = unique("orders"), unique("moving")
    succeeded(cli("topics", "create", topic, "--partitions", "2"))
    with RawClient(broker) as client:
        for member in ("ann", "bob"):  # ann never gives up anything
            request = ConsumerGroupHeartbeatRequest(
                group_id=group,
                member_id=member,
                rebalance_timeout_ms=600_000,
                subscribed_topic_names=[topic],
                topic_partitions=[],
            )
            key, response = ApiKey.CONSUMER_GROUP_HEARTBEAT, ConsumerGroupHeartbeatResponse
            assert ask(client, key, 1, request, response).error_code == ErrorCode.NONE
    [found] = json.loads(succeeded(cli("groups", "describe", group, "--json")).stdout)
    assert (found["type"], found["state"]) == ("consumer", "rebalancing")
    listed = json.loads(succeeded(cli("groups", "list", "--json")).stdout)
    assert {row["group"]: row["state"] for row in listed}[group] == "rebalancing"
