"""`penstock subscriptions` against a broker."""

import json
from collections.abc import Callable

from penstock import Broker
from tests.web.pushing import subscriber

from .conftest import Cli, succeeded

Unique = Callable[[str], str]


def test_subscriptions_are_listed_described_and_deleted(cli: Cli, broker: Broker, unique: Unique) -> None:
    topic, name = unique("news"), unique("dashboard")
    succeeded(cli("topics", "create", topic))
    succeeded(cli("produce", topic, stdin="one\ntwo\n"))
    with subscriber(broker.http_url) as reader:
        reader.subscribe(name, topic, read_old=True, credit=1)
        listed = json.loads(succeeded(cli("subscriptions", "list", "--json")).stdout)
        [row] = [row for row in listed if row["subscription"] == name]
        assert (row["topics"], row["attached"], row["lag"]) == ([topic], True, 2)
        assert name in succeeded(cli("subscriptions", "list")).stdout
        [facts] = json.loads(succeeded(cli("subscriptions", "describe", name, "--json")).stdout)
        assert [(place["topic"], place["lag"]) for place in facts["positions"]] == [(topic, 2)]
        assert "a subscriber is attached" in succeeded(cli("subscriptions", "describe", name)).stdout
        refused = cli("subscriptions", "delete", name, "--yes")
        assert refused.exit_code == 1
        assert "--force" in refused.stderr
        assert "deleted" in succeeded(cli("subscriptions", "delete", name, "--force", "--yes")).stderr
    gone = cli("subscriptions", "describe", name)
    assert gone.exit_code == 1
    assert "penstock subscriptions list" in gone.stderr


def test_deleting_asks_for_confirmation(cli: Cli, unique: Unique) -> None:
    result = cli("subscriptions", "delete", unique("dashboard"))
    assert result.exit_code == 2
    assert "--yes" in result.stderr
