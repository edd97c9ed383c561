"""`penstock queues alter` against a broker."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Broker

from .conftest import Cli, succeeded

Unique = Callable[[str], str]


@pytest.fixture
def queues(cli: Cli, broker: Broker) -> Cli:
    """`penstock queues ...` with the shared broker's HTTP port."""
    return lambda *arguments, **rest: cli("queues", *arguments, **rest)


@pytest.fixture
def queue(queues: Cli, unique: Unique) -> str:
    name = unique("mail")
    succeeded(queues("create", name, "--lease", "60s", "--limit", "3"))
    return name


def settings(queues: Cli, queue: str) -> Any:
    [facts] = json.loads(succeeded(queues("describe", queue, "--json")).stdout)
    return facts["settings"]


def test_alter_changes_only_the_named_settings(queues: Cli, queue: str) -> None:
    changed = queues("alter", queue, "--lease", "2m", "--retry-delay", "5s", "--exclusive")
    assert f"changed {queue}" in succeeded(changed).stderr
    found = settings(queues, queue)
    assert (found["lease_ms"], found["retry_backoff_ms"], found["exclusive"]) == (120_000, 5_000, True)
    assert found["delivery_limit"] == 3


def test_a_setting_is_returned_to_its_default(queues: Cli, queue: str) -> None:
    succeeded(queues("alter", queue, "--exclusive"))
    succeeded(queues("alter", queue, "--shared", "--unset", "share.delivery.count.limit"))
    found = settings(queues, queue)
    assert (found["delivery_limit"], found["exclusive"], found["lease_ms"]) == (5, False, 60_000)


def test_naming_a_dead_letter_topic_enables_dead_letters_again(queues: Cli, queue: str) -> None:
    succeeded(queues("alter", queue, "--no-dead-letters"))
    assert settings(queues, queue)["dead_letters"] is False
    changed = json.loads(succeeded(queues("alter", queue, "--dead-letters", "lost", "--json")).stdout)
    assert (changed["settings"]["dead_letters"], changed["settings"]["dead_letter_topic"]) == (True, "lost")


def test_nothing_to_change_is_a_usage_error(queues: Cli, queue: str) -> None:
    assert queues("alter", queue).exit_code == 2
    assert queues("alter", queue, "--dead-letters", "x", "--no-dead-letters").exit_code == 2


def test_a_queue_cannot_have_its_own_topic_for_dead_letters(queues: Cli, queue: str, unique: Unique) -> None:
    refused = queues("alter", queue, "--dead-letters", queue)
    assert refused.exit_code == 1
    assert "name another topic" in refused.stderr
    name = unique("mail")
    assert queues("create", name, "--dead-letters", name).exit_code == 1


def test_an_unknown_setting_cannot_be_unset(queues: Cli, queue: str) -> None:
    refused = queues("alter", queue, "--unset", "lease")
    assert refused.exit_code == 1
    assert "unknown config lease; expected one of " in refused.stderr
    assert "penstock.dead.letter.enable, " in refused.stderr


# --- errors use the names of the command line's options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--lease", "1ms"), "'--lease': '1ms': expected at least 1s"),
        (("--lease", "2h"), "'--lease': '2h': expected at most 1h"),
        (("--retry-delay", "8d"), "'--retry-delay': '8d': expected at most 7d"),
        (("--lease", "soon"), "without a unit it is seconds"),
    ],
)
def test_an_invalid_time_is_refused_with_its_option_and_its_bounds(
    given: tuple[str, str], expected: str, queues: Cli, queue: str
) -> None:
    refused = queues("alter", queue, *given)
    assert refused.exit_code == 2
    assert expected in refused.stderr


def test_a_refusal_by_the_broker_names_the_option(queues: Cli, queue: str) -> None:
    refused = queues("alter", queue, "--dead-letters", "no topic")
    assert "error: --dead-letters: expected a topic's name" in refused.stderr
    assert "error: NAME: no topic can be named 'a b': name one with --topic" in queues("create", "a b").stderr
    assert "expected --topic as well" in queues("peek", queue, "--partition", "0").stderr


def test_hints_contain_the_name_of_the_queue(queues: Cli, queue: str, unique: Unique) -> None:
    absent = unique("absent queue")
    assert f"`penstock queues create '{absent}'` makes one" in queues("describe", absent).stderr
    assert f"`penstock queues describe {queue}` shows it" in queues("create", queue).stderr


def test_without_a_broker_the_error_says_how_to_start_one(plain_cli: Cli) -> None:
    refused = plain_cli("queues", "list", "--http", "127.0.0.1:1")
    assert refused.exit_code == 1
    assert "`penstock serve` starts one" in refused.stderr
