"""A command line that talks to a broker which requires login."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import Broker
from penstock.cli.app import penstock

PASSWORDS = {"admin": "admin-password-1", "alice": "alice-password-1"}

As = Callable[..., Result]
"""Runs a command as a user: the name, and the command's words."""


@contextmanager
def secured_broker() -> Iterator[Broker]:
    with Broker(users=PASSWORDS) as broker:
        yield broker


def run_as(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, passwords: dict[str, str] | None = None
) -> As:
    for variable in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    known = {**PASSWORDS, **(passwords or {})}

    def run(user: str, *words: str, stdin: str | None = None) -> Result:
        file = tmp_path / f"password-{user}"
        file.write_text(known[user] + "\n")
        login = ("-b", broker.bootstrap_servers, "--user", user, "--password-file", str(file))
        return CliRunner().invoke(penstock, [*words, *login], input=stdin, prog_name="penstock")

    return run
