"""`penstock cluster status`, `rebalance` and `decommission` where there is no cluster, or the wrong one."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from penstock import Broker

from .conftest import Cli, succeeded


@pytest.fixture
def unused_address() -> str:
    """An address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def stranger() -> Iterator[str]:
    """A web server that is not a Penstock node."""

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if self.path == "/v1/cluster" else 200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        do_POST = do_GET

        def log_message(self, *anything: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


COMMANDS = [("status",), ("rebalance",), ("rebalance", "--dry-run"), ("decommission", "3")]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_unreachable_node_is_reported_at_once_with_what_to_do(
    command: tuple[str, ...], unused_address: str, plain_cli: Cli
) -> None:
    result = plain_cli("cluster", *command, "--http", unused_address)
    assert result.exit_code == 1
    assert f"no node answers at http://{unused_address}" in result.stderr
    assert "PENSTOCK_HTTP_URL" in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_server_that_is_not_penstock_is_reported(
    command: tuple[str, ...], stranger: str, plain_cli: Cli
) -> None:
    result = plain_cli("cluster", *command, "--http", f"http://{stranger}/")
    assert result.exit_code == 1
    assert "not as a Penstock node" in result.stderr


def test_the_kafka_port_is_not_the_http_port(broker: Broker, plain_cli: Cli) -> None:
    result = plain_cli("cluster", "status", "--http", broker.bootstrap_servers)
    assert result.exit_code == 1
    assert "HTTP address" in result.stderr


def test_the_address_may_come_from_the_environment(
    unused_address: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP_URL", unused_address)
    assert unused_address in cli("cluster", "status").stderr


def test_the_kafka_address_is_enough(cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(succeeded(cli("cluster", "status", "--json")).stdout)
    assert [node["kafka"] for node in found["nodes"]] == [broker.bootstrap_servers]
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP")
    succeeded(cli("cluster", "status", "--bootstrap", broker.bootstrap_servers))


def test_the_listen_address_of_a_node_is_not_used_as_the_address_of_commands(
    cli: Cli, unused_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for listening in ("0.0.0.0:1", "none", f"http://{unused_address}"):
        monkeypatch.setenv("PENSTOCK_HTTP", listening)
        succeeded(cli("cluster", "status"))


@pytest.mark.parametrize("command", [("cluster", "status"), ("queues", "list")], ids=" ".join)
def test_a_broker_without_an_http_port_is_reported_with_what_to_do(
    command: tuple[str, ...], plain_cli: Cli
) -> None:
    with Broker(http=None) as broker:
        result = plain_cli(*command, "--bootstrap", broker.bootstrap_servers)
    assert result.exit_code == 1
    assert f"the broker at {broker.bootstrap_servers} has no HTTP port" in result.stderr
    assert "start the nodes with `--http HOST:PORT`" in result.stderr


@pytest.mark.parametrize("command", [("cluster", "status"), ("queues", "list")], ids=" ".join)
def test_a_missing_broker_at_the_kafka_address_is_reported_at_once(
    command: tuple[str, ...], unused_address: str, plain_cli: Cli
) -> None:
    result = plain_cli(*command, "--bootstrap", unused_address)
    assert result.exit_code == 1
    assert f"no broker answers at {unused_address}" in result.stderr


@pytest.mark.parametrize("address", ["nowhere", "ftp://127.0.0.1:80", "127.0.0.1:http", "http://127.0.0.1"])
def test_an_invalid_address_is_a_usage_error(address: str, plain_cli: Cli) -> None:
    result = plain_cli("cluster", "status", "--http", address)
    assert result.exit_code == 2
    assert "HOST:PORT" in result.stderr


def test_a_lone_node_is_a_healthy_cluster_of_one(broker: Broker, plain_cli: Cli) -> None:
    result = succeeded(plain_cli("cluster", "status", "--check", "--http", broker.http_url))
    assert "one node, alone" in result.stdout
    assert "healthy" in result.stdout
    found = json.loads(succeeded(plain_cli("cluster", "status", "--json", "--http", broker.http_url)).stdout)
    assert [node["kafka"] for node in found["nodes"]] == [broker.bootstrap_servers]


@pytest.mark.parametrize("command", [("rebalance",), ("decommission", "1")], ids=" ".join)
def test_a_lone_node_has_nothing_to_move(command: tuple[str, ...], broker: Broker, plain_cli: Cli) -> None:
    result = plain_cli("cluster", *command, "--http", broker.http_url)
    assert result.exit_code == 1
    assert "alone" in result.stderr
    assert "--seeds" in result.stderr


def test_a_missing_topic_is_reported(broker: Broker, plain_cli: Cli) -> None:
    result = plain_cli("cluster", "status", "--topic", "nope", "--http", broker.http_url)
    assert result.exit_code == 1
    assert "topics list" in result.stderr
