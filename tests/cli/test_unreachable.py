"""No broker: every command says so at once, and what to do."""

import socket

import pytest

from .conftest import Cli


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
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
def test_a_missing_broker_is_said_at_once_with_what_to_do(
    arguments: tuple[str, ...], nobody: str, plain_cli: Cli
) -> None:
    result = plain_cli(*arguments, "--bootstrap", nobody, stdin="")
    assert result.exit_code == 1
    assert f"no broker answers at {nobody}" in result.stderr
    assert "penstock serve" in result.stderr
    assert result.stdout == ""


def test_any_reachable_address_of_the_list_will_do(nobody: str, cli: Cli, broker: object) -> None:
    address = getattr(broker, "bootstrap_servers")  # noqa: B009
    assert cli("topics", "list", "--bootstrap", f"{nobody},{address}").exit_code == 0


def test_an_unknown_librdkafka_setting_is_a_usage_error(cli: Cli) -> None:
    result = cli("topics", "list", "-X", "no.such.setting=1")
    assert result.exit_code == 2
    assert "no.such.setting" in result.stderr
