"""Profiles in ~/.config/penstock/config.toml, --quiet, and shell completion."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker
from penstock.cli import profiles

from .conftest import Cli, succeeded

Unique = Callable[[str], str]
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def config(plain_cli: Cli) -> Callable[[str], None]:
    """Writes the config file."""

    def write(text: str) -> None:
        profiles.path().parent.mkdir(parents=True, exist_ok=True)
        profiles.path().write_text(text)

    return write


@pytest.fixture
def two(config: Callable[[str], None], broker: Broker) -> None:
    """A profile of the shared broker, and one of a broker that does not run."""
    config(
        f"""
        [profiles.here]
        bootstrap = "{broker.bootstrap_servers}"
        http = "{broker.http_url}"

        [profiles.gone]
        bootstrap = "{NOWHERE}"
        http = "127.0.0.1:2"
        """
    )


@pytest.mark.usefixtures("two")
def test_a_profile_names_the_addresses_for_both_protocols(plain_cli: Cli) -> None:
    for command in (("topics", "list"), ("queues", "list")):
        succeeded(plain_cli(*command, "--profile", "here"))
        succeeded(plain_cli("--profile", "here", *command))
        gone = plain_cli(*command, "--profile", "gone")
        assert gone.exit_code == 1
        assert "127.0.0.1:" in gone.stderr


@pytest.mark.usefixtures("two")
def test_flags_win_over_variables_and_variables_over_the_default_profile(
    plain_cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_PROFILE", "gone")
    assert plain_cli("topics", "list").exit_code == 1
    succeeded(plain_cli("topics", "list", "-b", broker.bootstrap_servers))
    succeeded(
        plain_cli("queues", "list", "-b", broker.bootstrap_servers)
    )  # and not with the profile's --http
    succeeded(plain_cli("topics", "list", "--profile", "here"))
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", broker.bootstrap_servers)
    succeeded(plain_cli("queues", "list"))
    assert plain_cli("queues", "list", "--profile", "gone").exit_code == 1, "a flag, so it wins"
    monkeypatch.setenv("PENSTOCK_HTTP_URL", broker.http_url)
    assert plain_cli("queues", "list", "--profile", "gone").exit_code == 1


def test_the_file_may_name_a_default_and_librdkafka_settings(
    plain_cli: Cli, broker: Broker, config: Callable[[str], None]
) -> None:
    config(
        f"""
        profile = "work"
        [profiles.work]
        bootstrap = "{broker.bootstrap_servers}"
        [profiles.work.kafka]
        "client.id" = "from-the-profile"
        """
    )
    succeeded(plain_cli("topics", "list"))
    config(profiles.path().read_text().replace('"client.id"', '"no.such.setting"'))
    refused = plain_cli("topics", "list")
    assert (refused.exit_code, "no.such.setting" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.staging]", "there is no profile 'stagin'; did you mean staging?"),
        ("[profiles.stagin]\nadress = 'x'", "adress"),
        ("profiles = [", "config.toml"),
        ("", "it has no profiles"),
    ],
)
def test_mistakes_are_usage_errors_that_name_the_file(
    text: str, said: str, plain_cli: Cli, config: Callable[[str], None]
) -> None:
    config(text)
    result = plain_cli("topics", "list", "--profile", "stagin")
    assert result.exit_code == 2
    assert said in result.stderr
    assert str(profiles.path()) in result.stderr


def test_the_file_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert profiles.path() == tmp_path / "penstock" / "config.toml"
    monkeypatch.setenv("HOME", str(tmp_path))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", unset)
        assert profiles.path() == tmp_path / ".config" / "penstock" / "config.toml"


def test_quiet_leaves_out_notes_and_keeps_results_and_errors(cli: Cli, unique: Unique) -> None:
    first, second = unique("orders"), unique("orders")
    assert "created" in succeeded(cli("topics", "create", first)).stderr
    assert succeeded(cli("topics", "create", second, "--quiet")).stderr == ""
    assert first in succeeded(cli("--quiet", "topics", "list")).stdout
    assert "error:" in cli("-q", "topics", "create", first).stderr


def test_topics_create_prints_the_topic_as_json(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    [made] = json.loads(succeeded(cli("topics", "create", name, "-p", "2", "--json")).stdout)
    assert (made["topic"], made["created"], len(made["partitions"])) == (name, True, 2)
    [again] = json.loads(succeeded(cli("topics", "create", name, "--if-not-exists", "--json")).stdout)
    assert (again["topic_id"], again["created"]) == (made["topic_id"], False)


# --- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(shell: str, plain_cli: Cli) -> None:
    script = succeeded(plain_cli("completion", shell)).stdout
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in script


def completed(*words: str) -> list[str]:
    """The words that bash would be offered after these."""
    line = " ".join(("penstock", *words))
    environment = os.environ | {
        "_PENSTOCK_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
    }
    code = (
        "import sys\n"
        "from penstock.cli.app import main\n"
        "try:\n"
        "    main([])\n"
        "finally:\n"
        "    print('loaded', 'confluent_kafka' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.split()


def test_commands_and_options_are_completed_and_the_first_without_loading_a_client() -> None:
    found = completed("sub")
    assert "plain,subscriptions" in found
    assert found[-2:] == ["loaded", "False"]
    assert "plain,describe" in completed("queues", "de")
    assert "plain,--message-id" in completed("produce", "--mess")
