"""No broker: every command reports it at once, with what to do."""

import socket

import pytest

from .conftest import Cli


@pytest.fixture
def unused_address() -> str:
    """An address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "list"),
        ("topics", "create", "x"),
        ("topics", "describe", "x"),
        ("topics", "alter", "x", "--partitions", "2"),
        ("topics", "delete", "x", "--yes"),
        ("produce", "x"),
        ("consume", "x"),
        ("groups", "list"),
        ("groups", "describe", "x"),
        ("groups", "reset", "x", "--all-topics", "--to-earliest"),
        ("groups", "delete", "x", "--yes"),
        ("bench", "produce"),
    ],
    ids=" ".join,
)
def test_a_missing_broker_is_reported_at_once_with_what_to_do(
    arguments: tuple[str, ...], unused_address: str, plain_cli: Cli
) -> None:
    result = plain_cli(*arguments, "--bootstrap", unused_address, stdin="")
    assert result.exit_code == 1
    assert f"no broker answers at {unused_address}" in result.stderr
    assert "penstock serve" in result.stderr
    assert result.stdout == ""


def test_one_reachable_address_in_the_list_is_enough(unused_address: str, cli: Cli, broker: object) -> None:
    address = getattr(broker, "bootstrap_servers")  # noqa: B009
    assert cli("topics", "list", "--bootstrap", f"{unused_address},{address}").exit_code == 0


def test_an_unknown_librdkafka_setting_is_a_usage_error(cli: Cli) -> None:
    result = cli("topics", "list", "-X", "no.such.setting=1")
    assert result.exit_code == 2
    assert "no.such.setting" in result.stderr
