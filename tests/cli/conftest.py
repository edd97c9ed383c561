"""The command line as tests call it: in this process, with its output apart."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import Broker
from penstock.cli.app import penstock

Cli = Callable[..., Result]


@pytest.fixture
def plain_cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Runs a command line; no broker is named, and there are no profiles."""
    for variable in ("PENSTOCK_BOOTSTRAP", "PENSTOCK_HTTP_URL", "PENSTOCK_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(penstock, list(arguments), input=stdin, prog_name="penstock")

    return invoke


@pytest.fixture
def cli(broker: Broker, plain_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The same, with the shared broker named in the environment."""
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap_servers)
    return plain_cli


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result
