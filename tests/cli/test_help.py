"""Help and usage, without a broker."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from penstock.cli.app import penstock

from .conftest import Cli, succeeded


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


@pytest.mark.parametrize("path", [(), *every_command(penstock)], ids=" ".join)
def test_every_help_page_shows_examples_that_start_with_the_command(
    path: tuple[str, ...], plain_cli: Cli
) -> None:
    page = succeeded(plain_cli(*path, "--help")).stdout
    assert "Examples:" in page
    assert " ".join(("penstock", *path)) in page.split("Examples:")[1]


def test_help_is_quick_because_it_loads_no_broker_and_no_client() -> None:
    code = (
        "import sys\n"
        "from penstock.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'confluent_kafka', 'uvloop', 'rich', 'starlette', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_command_is_a_usage_error(plain_cli: Cli) -> None:
    result = plain_cli("frobnicate")
    assert result.exit_code == 2
    assert "frobnicate" in result.stderr


def test_the_version_is_the_packages(plain_cli: Cli) -> None:
    import penstock as package

    assert succeeded(plain_cli("--version")).stdout == f"penstock {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topics", "create"), "NAME..."),
        (("topics", "create", "x", "--partitions", "0"), "--partitions"),
        (("topics", "create", "x", "--config", "retention.ms"), "NAME=VALUE"),
        (("topics", "alter", "x"), "nothing to change"),
        (("topics", "delete", "x"), "--yes"),
        (("topics", "list", "(["), "regular expression"),
        (("topics", "list", "--bootstrap", "nowhere"), None),
        (("topics", "list", "--bootstrap", "host:notaport"), "HOST:PORT"),
        (("produce", "x", "--key", "a", "--key-separator", ":"), "exclude"),
        (("produce", "x", "--acks", "2"), "--acks"),
        (("consume", "x", "--group", "g", "--offset", "5"), "--group"),
        (("consume", "x", "--from-beginning", "--offset", "5"), "exclude"),
        (("groups", "reset", "g", "--topic", "x"), "--to-earliest"),
        (("groups", "reset", "g", "--to-earliest", "--to-offset", "4", "--topic", "x"), "--to-earliest"),
        (("groups", "reset", "g", "--to-earliest"), "--all-topics"),
        (("groups", "reset", "g", "--topic", "x", "--to-timestamp", "yesterday"), "ISO 8601"),
        (("groups", "delete", "g"), "--yes"),
        (("bench", "produce", "--size", "3"), "--size"),
        (("serve", "--config", "/no/such/file.toml"), "/no/such/file.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_command_line_ends_with_2_and_says_why(
    arguments: tuple[str, ...], said: str | None, plain_cli: Cli
) -> None:
    result = plain_cli(*arguments)
    if said is None:  # a name that does not resolve is no usage error
        assert result.exit_code == 1
        return
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
