"""`penstock status`: the status log, past and live."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Broker
from penstock.cli import status as module
from penstock.cli.app import penstock
from penstock.cli.status import line_of
from tests.node.processes import BrokerProcess
from tests.node.status.status_events import PATIENCE_SECONDS, TOPIC, Event, events_until, has, told

from .conftest import Cli, succeeded


@pytest.fixture(scope="module")
def watched() -> Iterator[Broker]:
    """A broker on which thirty topics were created, one after the other."""
    with Broker(status_topic=TOPIC) as running:
        # A consumer asks for its group's coordinator, even if it does not need one.
        events_until(running.bootstrap_servers, has("topic.created", topic="__consumer_offsets"))
        for number in range(30):
            create(running, f"topic-{number}")
        events_until(running.bootstrap_servers, has("topic.created", topic="topic-29"))
        yield running


def create(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_SECONDS)


@pytest.fixture
def status(watched: Broker, plain_cli: Cli) -> Cli:
    return lambda *arguments: succeeded(
        plain_cli("status", "--bootstrap", watched.bootstrap_servers, *arguments)
    )


def topics_of(out: str) -> list[str]:
    return [json.loads(line)["topic"] for line in out.splitlines()]


def test_the_last_twenty_are_shown_and_then_it_ends(status: Cli) -> None:
    assert len(status().stdout.splitlines()) == 20


def test_a_line_has_time_node_kind_and_facts(status: Cli) -> None:
    [line] = status("--kind", "topic.created", "-n", "1").stdout.splitlines()
    time, node, kind, *facts = line.split()
    assert time.endswith("Z")
    assert (node, kind) == ("1", "topic.created")
    assert facts == ["topic=topic-29", "partitions=1", "replication_factor=1"]


def test_the_last_events_of_a_kind_are_found_however_old_they_are(status: Cli) -> None:
    out = status("--kind", "topic.*", "-n", "30", "--json").stdout
    assert topics_of(out) == [f"topic-{number}" for number in range(30)]
    assert [line.split()[2] for line in status("--kind", "broker.*").stdout.splitlines()] == [
        "broker.started",
        "broker.ready",
    ]


def kinds_of(out: str) -> set[str]:
    return {line.split()[2].split(".")[0] for line in out.splitlines()}


def test_it_does_not_show_its_own_connections(status: Cli, watched: Broker) -> None:
    def is_buried(events: list[Event]) -> bool:
        since = [event["kind"] for event in events[-20:]]
        if len(since) == 20 and all(kind.startswith("connection") for kind in since):
            return True
        if len(events) == seen[0]:  # all that was written is read
            status()
        seen[0] = len(events)
        return False

    seen = [0]
    events_until(watched.bootstrap_servers, is_buried)
    assert kinds_of(status().stdout) == {"topic", "audit"}
    assert not kinds_of(status("--kind", "!topic.*").stdout) & {"connection", "connections"}


def test_connections_are_shown_on_request(status: Cli) -> None:
    assert kinds_of(status("--kind", "connection.*").stdout) == {"connection"}
    assert {"connection", "topic"} <= kinds_of(status("--connections", "--since", "1h").stdout)


def test_a_kind_is_found_among_any_number_of_other_events(
    status: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WINDOW", 1)
    assert topics_of(status("--kind", "topic.created", "-n", "30", "--json").stdout)[0] == "topic-0"
    assert len(status("--kind", "broker.*").stdout.splitlines()) == 2


def test_audit_events_are_shown(status: Cli) -> None:
    out = status("--kind", "audit.*", "-n", "1").stdout
    assert "audit.changed" in out
    assert "principal=User:ANONYMOUS" in out


def test_kinds_can_be_left_out(status: Cli) -> None:
    out = status("--kind", "!topic.*", "--kind", "!group.*", "--kind", "!audit.*").stdout
    assert {line.split()[2].split(".")[0] for line in out.splitlines()} == {"broker"}


def test_since_shows_everything_from_then_on(status: Cli) -> None:
    assert topics_of(status("--since", "1h", "--kind", "topic.*", "--json").stdout)[-1] == "topic-29"
    assert len(status("--since", "1h", "--connections").stdout.splitlines()) > 60
    assert len(status("--since", "1h").stdout.splitlines()) > 30
    assert status("--since", "0s", "--kind", "topic.*").stdout == ""


def test_json_prints_the_records_of_the_topic(status: Cli, watched: Broker) -> None:
    shown = [json.loads(line) for line in status("--json", "--kind", "broker.*").stdout.splitlines()]
    held = events_until(watched.bootstrap_servers, has("broker.ready"))
    assert shown == [event for event in held if event["kind"].startswith("broker.")]


def test_serve_writes_the_status_log_by_default_and_it_survives_a_kill(
    tmp_path: Path, plain_cli: Cli
) -> None:
    served = BrokerProcess(tmp_path)
    served.start()
    try:
        events_until(served.bootstrap_servers, has("broker.ready"))
        served.kill()
        served.start()
        events_until(served.bootstrap_servers, lambda events: len(told(events, "broker.ready")) == 2)
        command = ["--bootstrap", served.bootstrap_servers, "--kind", "broker.*", "--json"]
        out = succeeded(plain_cli("status", *command)).stdout
        kinds = [json.loads(line)["kind"] for line in out.splitlines()]
        assert kinds == ["broker.started", "broker.ready"] * 2
    finally:
        served.stop()


def test_follow_shows_new_events_until_ctrl_c(watched: Broker) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "status", "--follow", "-n", "1", "--kind", "topic.*", "--json"]
        + ["--bootstrap", watched.bootstrap_servers],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert topics_of(process.stdout.readline())[0].startswith("topic-")
    create(watched, "late")
    assert topics_of(process.stdout.readline()) == ["late"]
    process.send_signal(2)
    assert process.wait(60) == 0
    process.stdout.close()


def test_a_missing_status_log_is_distinguished_from_an_empty_one(broker: Broker, plain_cli: Cli) -> None:
    result = plain_cli("status", "--bootstrap", broker.bootstrap_servers)
    assert result.exit_code == 1
    assert f"there is no topic {TOPIC}" in result.stderr
    assert "status_topic" in result.stderr


def test_a_record_that_is_no_event_is_reported_and_skipped(
    broker: Broker, plain_cli: Cli, unique: Callable[[str], str]
) -> None:
    topic = unique("mixed")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for value in (b"hello", b"[1]", b'{"kind": 7}', b'{"kind": "mine", "x": 1}'):
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_SECONDS) == 0
    result = succeeded(plain_cli("status", "--bootstrap", broker.bootstrap_servers, "--topic", topic))
    assert [line.split()[2:] for line in result.stdout.splitlines()] == [["mine", "x=1"]]
    assert result.stderr.count("is not an event") == 3


def test_control_characters_in_a_client_id_do_not_reach_the_terminal() -> None:
    line = line_of(
        {"time": "t", "kind": "x.y", "node_id": 1, "client_id": "\x1b[2Jgone\n", "reason": "so what"}
    )
    assert "\x1b" not in line
    assert "\n" not in line
    assert 'reason="so what"' in line


def test_colour_is_for_terminals_and_not_with_no_color(
    watched: Broker, status: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["status", "--bootstrap", watched.bootstrap_servers, "--kind", "broker.*"]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" not in status("--kind", "broker.*").stdout
    assert "\x1b[32m" in CliRunner().invoke(penstock, command, color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(penstock, command, color=True).stdout
