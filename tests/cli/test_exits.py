"""How a command ends: a closed pipe, a full disk, Ctrl-C, SIGTERM."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from penstock import Broker

from .conftest import Cli, succeeded

COMMAND = [sys.executable, "-m", "penstock.cli"]


@pytest.fixture
def topic(cli: Cli, unique: Callable[[str], str]) -> str:
    name = unique("endless")
    succeeded(cli("produce", name, stdin="line\n" * 1000))
    return name


def follow(broker: Broker, *arguments: str) -> "subprocess.Popen[bytes]":
    """Starts a command that does not end by itself."""
    return subprocess.Popen(
        [*COMMAND, *arguments, "--bootstrap", broker.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_closed_output_pipe_is_no_failure(broker: Broker, topic: str, cli: Cli) -> None:
    process = follow(broker, "consume", topic, "--from-beginning")
    assert process.stdout is not None
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    succeeded(cli("produce", topic, stdin=("more" * 50 + "\n") * 5000))  # more than any buffer holds
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def in_a_shell(broker: Broker, line: str) -> "subprocess.CompletedProcess[str]":
    """Runs a line of shell in which `penstock` is this one."""
    penstock = f'penstock() {{ {shlex.join(COMMAND)} "$@"; }}; '
    environment = {**os.environ, "PENSTOCK_BOOTSTRAP": broker.bootstrap_servers}
    return subprocess.run(
        ["sh", "-c", penstock + line],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("command", ["topics list", "topics list --json", "--help"])
def test_a_pipe_that_is_closed_from_the_start_is_no_failure(command: str, broker: Broker, topic: str) -> None:
    receiver, sender = os.pipe()
    os.close(receiver)
    done = subprocess.run(
        [*COMMAND, *command.split()],
        env={**os.environ, "PENSTOCK_BOOTSTRAP": broker.bootstrap_servers},
        stdout=sender,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    os.close(sender)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("penstock topics list > /dev/full", "No space left on device"),
        ("penstock topics list --json > /dev/full", "No space left on device"),
        ("penstock --help > /dev/full", "No space left on device"),
        ("penstock topics list >&-", "standard output is closed"),
        ("penstock produce never-made <&-", "standard input is closed"),
        ("penstock topics delete never-made <&-", "--yes"),
    ],
)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has /dev/full")
def test_unusable_output_or_input_is_reported_in_one_line(
    line: str, said: str, broker: Broker, topic: str
) -> None:
    done = in_a_shell(broker, line)
    assert done.returncode == (2 if said == "--yes" else 1)
    assert said in done.stderr
    assert done.stderr.lower().count("error") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consume_in_order_and_its_offsets_are_committed(
    number: signal.Signals, broker: Broker, topic: str, cli: Cli, unique: Callable[[str], str]
) -> None:
    group = unique("readers")
    process = follow(broker, "consume", topic, "--from-beginning", "--group", group)
    assert process.stdout is not None
    for _ in range(1000):
        assert process.stdout.readline() == b"line\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert succeeded(cli("consume", topic, "--group", group, "--from-beginning", "--exit")).stdout == ""


def test_ctrl_c_while_typing_messages_is_quiet_and_130(broker: Broker, topic: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "produce", topic, "--bootstrap", broker.bootstrap_servers, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell without job control starts background processes with Ctrl-C ignored, and tests may run there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    watcher = follow(broker, "consume", topic, "--from-beginning", "--max", "1001")
    assert process.stdin is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert watcher.communicate(timeout=60)[0].endswith(b"one\n")  # so it is past its start
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130  # before its input ends, which would be another exit
    out, err = process.communicate(timeout=60)
    assert out == b""
    assert b"Traceback" not in err
