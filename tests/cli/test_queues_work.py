"""`penstock queues receive`, `work` and `reset`, and timed messages of `penstock produce`."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker
from penstock.client import Client
from tests.web.workers import working

from .conftest import Cli, succeeded

Unique = Callable[[str], str]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def queue(cli: Cli, unique: Unique) -> str:
    """A queue with the messages one, two and three."""
    name = unique("mail")
    succeeded(cli("queues", "create", name))
    succeeded(cli("produce", name, stdin="one\ntwo\nthree\n"))
    return name


def counts(cli: Cli, queue: str) -> tuple[int, int, int]:
    """Undone, leased and deferred messages."""
    [facts] = json.loads(succeeded(cli("queues", "describe", queue, "--json")).stdout)
    rows = facts["partitions"]
    names = ("undone", "leased", "deferred")
    undone, leased, deferred = (sum(row[name] for row in rows) for name in names)
    return undone, leased, deferred


# --- receive


def test_receive_leases_messages_or_settles_them(cli: Cli, queue: str) -> None:
    leased = succeeded(cli("queues", "receive", queue))
    assert leased.stdout == "one\n"
    assert "come again" in leased.stderr
    assert counts(cli, queue) == (3, 1, 0)
    assert succeeded(cli("queues", "receive", queue, "--accept")).stdout == "two\n"
    assert counts(cli, queue) == (2, 1, 0)
    assert succeeded(cli("queues", "receive", queue, "--release")).stdout == "three\n"
    assert succeeded(cli("queues", "receive", queue, "--max", "5", "--reject")).stdout == "three\n"
    empty = cli("queues", "receive", queue, "--wait", "1ms")
    assert empty.exit_code == 1
    assert "no message" in empty.stderr


def test_receive_as_json_has_receipts(cli: Cli, queue: str) -> None:
    found = json.loads(succeeded(cli("queues", "receive", queue, "--json", "--consumer", "me")).stdout)
    assert (found["consumer"], [job["value"] for job in found["jobs"]]) == ("me", ["one"])
    assert found["jobs"][0]["receipt"]


# --- work


def test_work_without_a_command_prints_and_accepts(cli: Cli, queue: str) -> None:
    done = succeeded(cli("queues", "work", queue, "--max", "2"))
    assert done.stdout == "one\ntwo\n"
    assert "2 accepted" in done.stderr
    assert succeeded(cli("queues", "work", queue, "--exit")).stdout == "three\n"
    assert counts(cli, queue) == (0, 0, 0)


def script(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def test_work_runs_a_command_whose_exit_code_settles_the_message(
    cli: Cli, queue: str, tmp_path: Path
) -> None:
    succeeded(cli("queues", "alter", queue, "--retry-delay", "1h", "--retry-delay-max", "1h"))
    seen = tmp_path / "seen"
    command = script(
        "import os, sys",
        "value = sys.stdin.read()",
        "facts = [os.environ['PENSTOCK_' + name] for name in ('QUEUE', 'TOPIC', 'OFFSET', 'DELIVERIES')]",
        f"open({str(seen)!r}, 'a').write(' '.join([value, *facts]) + chr(10))",
        "sys.exit({'one': 0, 'two': 65, 'three': 7}[value])",
    )
    done = succeeded(cli("queues", "work", queue, "--exit", "--", *command))
    assert "1 accepted, 1 to be tried again, 1 rejected" in done.stderr
    lines = sorted(seen.read_text().split("\n"))
    assert f"one {queue} {queue} 0 1" in lines
    assert counts(cli, queue)[2] == 1, "the third one waits for its retry"


def test_work_takes_any_key_and_the_dead_letter_has_the_exit_code(
    cli: Cli, broker: Broker, unique: Unique
) -> None:
    """A key with a zero byte, which no environment variable can have, once ended the command."""
    name = unique("keys")
    with Client(broker.bootstrap_servers, http=broker.http_url) as client:
        client.admin.create_queue(name, topic=name)
        client.publish(name, b"1", key=b"a\0b\xff")
        done = succeeded(
            cli("queues", "work", name, "--max", "1", "--", *script("import sys", "sys.exit(65)"))
        )
        assert "1 rejected" in done.stderr
        deadline = time.monotonic() + 60
        while not (letters := client.admin.dead_letters(name)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert letters[0].error_text == "the command failed with exit code 65"


def test_work_kills_a_command_after_its_timeout(cli: Cli, queue: str) -> None:
    succeeded(cli("queues", "alter", queue, "--retry-delay", "1h", "--retry-delay-max", "1h"))
    slow = script("import time", "time.sleep(600)")
    done = succeeded(cli("queues", "work", queue, "--max", "1", "--timeout", "1s", "--", *slow))
    assert "not done after 1 s" in done.stderr
    assert "1 to be tried again" in done.stderr


class Lifeline:
    """A pipe that has a writer as long as one process of a command lives."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lifeline"
        os.mkfifo(self.path)
        self._reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    def command(self, *, trap: str = "") -> list[str]:
        """A shell whose child sleeps, and holds the pipe open."""
        child = f"{trap}echo begun; sleep 600"
        return ["sh", "-c", f"({child}) > {shlex.quote(str(self.path))} & {trap}wait; sleep 600"]

    def wait_for_begin(self) -> None:
        assert select.select([self._reader], [], [], PATIENCE_SECONDS)[0]
        assert os.read(self._reader, 100) == b"begun\n"

    def wait_for_end(self) -> None:
        assert select.select([self._reader], [], [], PATIENCE_SECONDS)[0], "a process is still running"
        assert os.read(self._reader, 100) == b""


@pytest.fixture
def lifeline(tmp_path: Path) -> Lifeline:
    return Lifeline(tmp_path)


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "], ids=["on SIGTERM", "on SIGKILL"])
def test_work_ends_all_processes_of_a_command_after_its_timeout(
    trap: str, cli: Cli, queue: str, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It killed the shell alone, whose child went on to work on the message."""
    if trap:
        monkeypatch.setattr("penstock.cli.queues_work.GRACE_SECONDS", 0.2)
    succeeded(cli("queues", "alter", queue, "--retry-delay", "1h", "--retry-delay-max", "1h"))
    command = lifeline.command(trap=trap)
    done = succeeded(cli("queues", "work", queue, "--max", "1", "--timeout", "4s", "--", *command))
    assert "1 to be tried again" in done.stderr
    lifeline.wait_for_begin()
    lifeline.wait_for_end()


def test_a_second_signal_ends_all_processes_of_running_commands(
    broker: Broker, queue: str, lifeline: Lifeline
) -> None:
    words = ["queues", "work", queue, "-b", broker.bootstrap_servers, "--", *lifeline.command()]
    code = f"from penstock.cli.app import main; main({words!r})"
    worker = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    try:
        lifeline.wait_for_begin()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while worker.poll() is None:  # two signals that come at once count as one
            assert time.monotonic() < deadline
            worker.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        lifeline.wait_for_end()
        assert worker.returncode != 0
    finally:
        worker.kill()
        worker.wait()


def test_work_with_a_command_that_does_not_exist_is_an_error(cli: Cli, queue: str) -> None:
    result = cli("queues", "work", queue, "no-such-command-here")
    assert result.exit_code == 1
    assert "cannot run no-such-command-here" in result.stderr


def test_work_ends_after_the_running_command_when_it_is_told_to(
    cli: Cli, broker: Broker, queue: str, tmp_path: Path
) -> None:
    begun, told, done = (shlex.quote(str(tmp_path / name)) for name in ("begun", "told", "done"))
    command = f"touch {begun}; while [ ! -e {told} ]; do sleep 0.1; done; sleep 1; touch {done}"
    words = ["penstock", "queues", "work", queue, "-b", broker.bootstrap_servers, "--", "sh", "-c", command]
    code = f"from penstock.cli.app import main; main({words[1:]!r})"
    worker = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        worker.send_signal(signal.SIGTERM)
        (tmp_path / "told").touch()
        assert worker.wait(PATIENCE_SECONDS) == 0
    finally:
        worker.kill()
        worker.wait()
    assert (tmp_path / "done").exists()
    assert counts(cli, queue) == (2, 0, 0)


# --- reset


def moves(text: str) -> list[Any]:
    return [(row["from"], row["to"]) for row in json.loads(text)["partitions"]]


def test_reset_shows_first_and_then_delivers_done_messages_again(cli: Cli, queue: str) -> None:
    succeeded(cli("queues", "work", queue, "--exit"))
    dry = succeeded(cli("queues", "reset", queue, "--to-earliest"))
    assert "add --execute" in dry.stderr
    assert counts(cli, queue) == (0, 0, 0)
    done = succeeded(cli("queues", "reset", queue, "--to-earliest", "--execute", "--json"))
    assert moves(done.stdout) == [(3, 0)]
    assert counts(cli, queue) == (3, 0, 0)
    to_one = ("--topic", queue, "--partition", "0", "--to-offset", "1")
    assert moves(succeeded(cli("queues", "reset", queue, *to_one, "--execute", "--json")).stdout) == [(0, 1)]
    assert succeeded(cli("queues", "work", queue, "--exit")).stdout == "two\nthree\n"
    beyond = succeeded(cli("queues", "reset", queue, "--to-timestamp", "2999-01-01T00:00:00Z", "--json"))
    assert moves(beyond.stdout) == [(3, 3)]


def test_reset_is_refused_while_consumers_are_connected(cli: Cli, broker: Broker, queue: str) -> None:
    with working(broker.http_url, queue, queue, credit=1, name="mailer") as worker:
        worker.hear("working")
        refused = cli("queues", "reset", queue, "--to-latest", "--execute")
        assert refused.exit_code == 1
        assert "mailer" in refused.stderr
        succeeded(cli("queues", "reset", queue, "--to-latest"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one of --to-earliest"),
        (("--to-latest", "--to-offset", "3"), "give one of --to-earliest"),
        (("--to-latest", "--topic", "elsewhere"), "is not on topic elsewhere"),
        (("--to-latest", "--partition", "9"), "is not on partition 9"),
    ],
)
def test_mistakes_in_a_reset_are_named(arguments: tuple[str, ...], said: str, cli: Cli, queue: str) -> None:
    result = cli("queues", "reset", queue, *arguments)
    assert result.exit_code in (1, 2)
    assert said in result.stderr


# --- timed messages


def test_produce_sets_when_messages_are_delivered(cli: Cli, unique: Unique) -> None:
    name = unique("mail")
    succeeded(cli("queues", "create", name))
    succeeded(cli("produce", name, "--delay", "1h", stdin="later\n"))
    succeeded(
        cli("produce", name, "--deliver-at", "2999-01-01T00:00:00Z", "--ttl", "5d", stdin="much later\n")
    )
    succeeded(cli("produce", name, "--deliver-at", "0", stdin="now\n"))
    assert succeeded(cli("queues", "work", name, "--exit")).stdout == "now\n"
    assert counts(cli, name) == (2, 0, 2)
    succeeded(cli("produce", name, "--ttl", "1ms", stdin="gone\n"))
    both = cli("produce", name, "--delay", "1s", "--deliver-at", "0", stdin="x\n")
    assert both.exit_code == 2


def test_produce_with_a_message_id_stores_a_message_once(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("topics", "create", name, "-p", "4", "--config", "dedup.window.ms=600000"))
    for _ in range(3):
        succeeded(cli("produce", name, "--message-id", "order-7-{n}", stdin="a\nb\n"))
    read = succeeded(cli("consume", name, "--from-beginning", "--exit")).stdout
    assert sorted(read.split()) == ["a", "b"]
    twice = cli("produce", name, "--message-id", "same", stdin="c\nd\n")
    assert twice.exit_code == 1
    assert "--message-id same-{n}" in twice.stderr


def test_produce_with_a_message_id_to_a_missing_topic_or_broker_names_commands(
    plain_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.topic_cache.CREATION_SECONDS", 0.0)
    monkeypatch.setattr("penstock.client.topic_cache.FIRST_SECONDS", 0.5)
    words = ("produce", "orders", "--message-id", "a", "--bootstrap")
    with Broker(auto_create_topics=False) as strict:
        missing = plain_cli(*words, strict.bootstrap_servers, stdin="a\n")
    assert "penstock topics create" in missing.stderr
    unreachable = plain_cli(*words, "127.0.0.1:9", stdin="a\n")
    assert "penstock serve" in unreachable.stderr
    assert "--bootstrap" in unreachable.stderr
    for refused in (missing, unreachable):
        assert refused.exit_code == 1
        assert not re.search("client|Client", refused.stderr)


def test_produce_refuses_ids_and_delays_that_the_topic_does_not_honour(cli: Cli, unique: Unique) -> None:
    name = unique("orders")
    succeeded(cli("topics", "create", name))
    for option, reason in (
        ("--message-id=order-7-{n}", "does not deduplicate"),
        ("--delay=30d", "retention.ms"),
    ):
        refused = cli("produce", name, option, stdin="a\n")
        assert refused.exit_code == 1
        assert reason in refused.stderr
        assert "client." not in refused.stderr
        assert not succeeded(cli("consume", name, "--from-beginning", "--exit")).stdout
        advice = refused.stderr.partition("try:")[2].split()
        succeeded(cli(*advice[1:]))  # without the word penstock
        succeeded(cli("produce", name, option, stdin="a\n"))
        succeeded(cli("topics", "delete", name, "--yes"))
        succeeded(cli("topics", "create", name))
    queue = unique("orders")
    succeeded(cli("queues", "create", queue, "--dedup", "10m"))
    succeeded(cli("produce", queue, "--message-id=order-7-{n}", "--delay=30d", stdin="a\n"))
