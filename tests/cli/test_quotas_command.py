"""`penstock quotas`, with a broker that requires login."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from penstock import Broker

from .conftest import succeeded
from .secured import As, run_as, secured_broker


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with secured_broker() as broker:
        yield broker


@pytest.fixture
def run(secured: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> As:
    return run_as(secured, monkeypatch, tmp_path)


def answer(result: Result) -> Any:
    return json.loads(succeeded(result).stdout)


def test_quotas_are_set_listed_and_removed(run: As) -> None:
    rates = ("producer_byte_rate=1048576", "request_percentage=12.5")
    made = succeeded(run("admin", "quotas", "set", "--for-user", "alice", *rates))
    assert "set 2 quotas of user alice" in made.stderr
    succeeded(run("admin", "quotas", "set", "--for-user", "alice", "--default", "client-id", rates[0]))
    page = succeeded(run("admin", "quotas", "list", "--for-user", "alice")).stdout
    assert "producer_byte_rate=1048576" in page
    assert "request_percentage=12.5" in page
    rows = answer(run("admin", "quotas", "list", "--default", "client-id", "--json"))
    assert [(row["user"], row["client_id"]) for row in rows] == [("alice", "<default>")]
    one = run("admin", "quotas", "remove", "--for-user", "alice", "request_percentage", "--yes", "--json")
    assert answer(one)["quotas"] == {"producer_byte_rate": 1048576}
    asked = run("admin", "quotas", "remove", "--for-user", "alice")
    assert "this needs a confirmation" in asked.stderr
    assert "producer_byte_rate=1048576" in asked.stdout
    assert "<default>" not in asked.stdout, "only the quotas that will be removed are shown"
    gone = succeeded(run("admin", "quotas", "remove", "--for-user", "alice", "--yes"))
    assert "removed all quotas of user alice" in gone.stderr
    assert len(answer(run("admin", "quotas", "list", "--json"))) == 1
    both = ("--for-user", "alice", "--default", "client-id")
    succeeded(run("admin", "quotas", "remove", *both, "--yes"))
    assert "no quotas" in succeeded(run("admin", "quotas", "list")).stderr
    gone = run("admin", "quotas", "remove", "--for-user", "alice", "--yes")
    assert (gone.exit_code, "penstock quotas list" in gone.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "producer_byte_rate=1"), "whose quota?"),
        (("remove",), "whose quota?"),
        (("set", "--for-user", "alice", "bytes=1"), "there is no quota 'bytes'"),
        (("set", "--for-user", "alice", "producer_byte_rate"), "expected NAME=VALUE"),
        (("set", "--for-user", "alice", "producer_byte_rate=many"), "expected a number above 0"),
        (("set", "--for-user", "alice", "producer_byte_rate=nan"), "expected a number above 0"),
        (("list", "--for-user", "alice", "--default", "user"), "exclude each other"),
    ],
)
def test_a_wrong_command_line_says_why(run: As, words: tuple[str, ...], said: str) -> None:
    refused = run("admin", "quotas", *words)
    assert refused.exit_code == 2
    assert said in refused.stderr


def test_a_user_without_the_permission_is_told(run: As) -> None:
    refused = run("alice", "quotas", "list")
    assert refused.exit_code == 1
    assert "DESCRIBE_CONFIGS" in refused.stderr
