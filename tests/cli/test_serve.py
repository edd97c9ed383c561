"""`penstock serve` as a process: its listeners, its signals, its refusals."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from penstock import Broker
from penstock.cli.announcing import open_ports, warn_of_open_ports
from penstock.config.loading import load_node_config

COMMAND = [sys.executable, "-m", "penstock.cli", "serve"]
PATIENCE_SECONDS = 60.0
ANYWHERE = ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
Serve = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts `penstock serve`; processes that still run afterwards are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str, **environment: str) -> subprocess.Popen[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        process = subprocess.Popen(
            [*COMMAND, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**clean, **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until_ready(process: "subprocess.Popen[str]") -> dict[str, str]:
    """The lines before `ready`, by their first word."""
    assert process.stdout is not None
    found: dict[str, str] = {}
    for line in process.stdout:
        word, _, rest = line.strip().partition(" ")
        found[word] = rest.strip()
        if word == "ready":
            return found
    raise AssertionError(process.communicate()[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_prints_its_listeners_then_ready_and_stops_on_a_signal(
    number: signal.Signals, serve: Serve, tmp_path: Path
) -> None:
    # A machine that allows fewer files than the default asks for would be warned about.
    process = serve("--data-dir", str(tmp_path / "data"), "--set", "limits.max_connections=10", *ANYWHERE)
    said = until_ready(process)
    assert list(said) == ["kafka", "http", "console", "data", "ready"]
    with urllib.request.urlopen(said["http"] + "/ready", timeout=60) as answer:
        assert json.load(answer)["ready"] is True
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "stopped\n")
    assert [line for line in err.splitlines() if "the event loop was held" not in line] == []


def rebalance_delay_ms(bootstrap: str) -> str | None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    configs = admin.describe_configs([resource])[resource].result(PATIENCE_SECONDS)
    value: str | None = configs["group.initial.rebalance.delay.ms"].value
    return value


@pytest.mark.parametrize(
    ("flags", "delay_ms"), [((), "3000"), (("--set", "groups.initial_rebalance_delay_ms=0"), "0")]
)
def test_a_new_group_waits_for_more_members_as_in_kafka_unless_told_otherwise(
    flags: tuple[str, ...], delay_ms: str, serve: Serve
) -> None:
    said = until_ready(serve("--memory", *ANYWHERE, *flags))
    assert rebalance_delay_ms(said["kafka"]) == delay_ms


def test_a_new_group_of_an_embedded_broker_does_not_wait(broker: Broker) -> None:
    assert rebalance_delay_ms(broker.bootstrap_servers) == "0"


def test_memory_leaves_no_file(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    process = serve("--memory", *ANYWHERE)
    assert until_ready(process)["data"] == "in memory"
    process.terminate()
    process.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_one_line_and_exit_code_1(serve: Serve, broker: Broker) -> None:
    process = serve("--memory", "--kafka", broker.bootstrap_servers, "--http", "none")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert err.startswith("error: kafka=")
    assert "Traceback" not in err


def test_a_data_folder_in_use_is_exit_code_1_and_says_what_to_do(serve: Serve, tmp_path: Path) -> None:
    first = serve("--data-dir", str(tmp_path), *ANYWHERE)
    until_ready(first)
    second = serve("--data-dir", str(tmp_path), *ANYWHERE)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "--data-dir" in err
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_created_is_one_line_and_exit_code_1(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = serve("--data-dir", str(tmp_path / "file" / "data"), *ANYWHERE)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: ")
    assert f"{tmp_path / 'file'}" in err
    assert "Traceback" not in err


def test_wrong_bytes_in_the_identity_are_one_line_and_exit_code_1(serve: Serve, tmp_path: Path) -> None:
    first = serve("--data-dir", str(tmp_path), *ANYWHERE)
    until_ready(first)
    first.kill()
    first.wait()
    identity = tmp_path / "meta" / "identity"
    content = identity.read_bytes()
    identity.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    process = serve("--data-dir", str(tmp_path), *ANYWHERE)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "backup" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--kafka", "nonsense"], "kafka='nonsense'"),
        (["--memory", "--data-dir", "here"], "remove one of them"),
        (["--set", "num_partitons=3"], "num_partitions"),
        (["--set", "node_id=first"], "node_id"),
        (["--kafka", "0.0.0.0:0", "--memory"], "--advertise"),
        (["--seeds", "127.0.0.1:7001"], "--cluster HOST:PORT"),
        (["--cluster", "10.0.0.1:7000"], "--cluster-key-file"),
        (["--cluster", "127.0.0.1:0", "--rack", ""], "rack"),
    ],
)
def test_invalid_settings_are_exit_code_2(flags: list[str], said: str, serve: Serve) -> None:
    process = serve(*flags)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in err
    assert "Traceback" not in err


def test_flags_win_over_the_environment_and_that_over_the_file(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('data_dir = "from-file"\nkafka = "127.0.0.1:1"\nhttp = "none"\n')
    process = serve(
        "--config",
        str(config),
        "--kafka",
        "127.0.0.1:0",
        PENSTOCK_DATA_DIR=str(tmp_path / "from-environment"),
        PENSTOCK_KAFKA="127.0.0.1:2",
        PENSTOCK_BOOTSTRAP="127.0.0.1:3",
        PENSTOCK_HTTP_URL="http://127.0.0.1:4",
    )
    said = until_ready(process)
    assert said["data"] == str(tmp_path / "from-environment")
    assert "http" not in said
    assert said["kafka"] not in ("127.0.0.1:1", "127.0.0.1:2")


def test_a_broken_config_file_is_exit_code_2_and_names_the_file(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text("kafka = [")
    _, err = (process := serve("--config", str(config))).communicate(timeout=60)
    assert process.returncode == 2
    assert "penstock.toml" in err


def test_with_log_level_none_nothing_is_logged(serve: Serve, tmp_path: Path) -> None:
    """A file that ends in the middle of a batch is a warning at any other level."""

    def run(level: str) -> str:
        for log in tmp_path.glob("data/**/*.log"):
            if log.stat().st_size:
                log.write_bytes(log.read_bytes() + b"torn")
        process = serve("--data-dir", str(tmp_path / "data"), *ANYWHERE, "--log-level", level)
        servers = until_ready(process)["kafka"]
        AdminClient({"bootstrap.servers": servers}).list_topics("orders", timeout=PATIENCE_SECONDS)
        process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=PATIENCE_SECONDS)[1]

    run("info")
    assert "WARNING" in run("warning")
    assert run("none") == ""


def test_topics_and_queues_of_the_config_file_are_there_when_it_is_ready(
    serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[[topics]]\nname = "orders"\npartitions = 3\n[[queues]]\nname = "mail"\n')
    process = serve("--memory", "--config", str(file), *ANYWHERE)
    servers = until_ready(process)["kafka"]
    topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=PATIENCE_SECONDS).topics
    assert {name: len(topics[name].partitions) for name in ("orders", "mail")} == {"orders": 3, "mail": 1}
    file.write_text('[[topics]]\nname = "orders"\npartitons = 3\n')
    refused = serve("--memory", "--config", str(file), *ANYWHERE)
    assert refused.wait(PATIENCE_SECONDS) == 2
    assert refused.stderr is not None
    assert "partitons" in refused.stderr.read()


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, []),
        ({"kafka": "0.0.0.0:1", "advertise": "broker:1"}, ["the Kafka port 0.0.0.0:1"]),
        ({"http": "0.0.0.0:2"}, ["the HTTP port 0.0.0.0:2"]),
        ({"http": "0.0.0.0:2", "require_login": True}, []),
        ({"http": "0.0.0.0:2", "tls_cert": "c", "tls_key": "k"}, ["the HTTP port 0.0.0.0:2"]),
        ({"http": "0.0.0.0:2", "tls_cert": "c", "tls_key": "k", "tls_ca": "a"}, []),
    ],
)
def test_ports_that_other_machines_can_use_without_a_login_are_found(
    settings: dict[str, object], ports: list[str]
) -> None:
    assert open_ports(load_node_config(flags=settings)) == ports


def test_it_warns_of_a_port_that_everyone_can_use(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_open_ports(load_node_config(flags={"kafka": "0.0.0.0:1", "advertise": "broker:1"}))
    assert "WARNING: everyone who can reach this machine" in capsys.readouterr().err
    warn_of_open_ports(load_node_config())
    assert capsys.readouterr().err == ""


def test_the_first_start_with_login_prints_the_password_of_admin_once(serve: Serve, tmp_path: Path) -> None:
    flags = [*ANYWHERE, "--data-dir", str(tmp_path / "data"), "--require-login"]
    process = serve(*flags)
    lines = until_ready(process)
    shown = lines["admin"].removeprefix("password: ")
    url = f"{lines['http']}/v1/users"
    assert httpx.get(url, auth=("admin", shown)).status_code == 200
    assert httpx.get(url).status_code == 401
    process.send_signal(signal.SIGTERM)
    said, logged = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert shown not in said + logged
    again = serve(*flags)
    assert "admin" not in until_ready(again)
    again.send_signal(signal.SIGTERM)
    said, logged = again.communicate(timeout=PATIENCE_SECONDS)
    assert "password" not in said + logged


def stop(process: "subprocess.Popen[str]") -> str:
    """All that it has printed since."""
    process.send_signal(signal.SIGTERM)
    said, logged = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    return said + logged


def test_a_lost_password_of_admin_is_reset_once(serve: Serve, tmp_path: Path) -> None:
    flags = [*ANYWHERE, "--data-dir", str(tmp_path / "data"), "--require-login"]
    process = serve(*flags, "--reset-admin-password")
    lost = until_ready(process)["admin"].removeprefix("password: ")
    assert "was reset" not in stop(process), "the first start makes the password"
    process = serve(*flags, "--reset-admin-password")
    lines = until_ready(process)
    found = lines["admin"].removeprefix("password: ")
    url = f"{lines['http']}/v1/users"
    assert httpx.get(url, auth=("admin", lost)).status_code == 401
    assert httpx.get(url, auth=("admin", found)).status_code == 200
    logged = stop(process)
    assert "the password of admin was reset" in logged
    assert found not in logged
    process = serve(*flags)
    lines = until_ready(process)
    assert "admin" not in lines
    assert httpx.get(f"{lines['http']}/v1/users", auth=("admin", found)).status_code == 200


def test_there_is_no_password_to_reset_without_logins(serve: Serve) -> None:
    refused = serve(*ANYWHERE, "--memory", "--reset-admin-password")
    assert refused.wait(PATIENCE_SECONDS) == 2
    assert refused.stderr is not None
    assert "without --require-login there are no passwords" in refused.stderr.read()


def test_the_login_of_commands_is_no_setting_of_a_node(serve: Serve) -> None:
    login = {"PENSTOCK_USER": "alice", "PENSTOCK_PASSWORD": "not for nodes"}
    process = serve(*ANYWHERE, "--memory", **login, PENSTOCK_CLIENT_TLS_CA="/the/nodes/authority.pem")
    until_ready(process)
    process.send_signal(signal.SIGTERM)
    assert "not for nodes" not in "".join(process.communicate(timeout=PATIENCE_SECONDS))
    assert process.returncode == 0
