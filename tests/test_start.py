"""A start loads what everybody needs, and nothing that only some need: each module costs a quarter of a millisecond.

These tests count modules and never milliseconds, so that they say the same on every machine.
`benchmarks/startup.py` measures."""

import subprocess
import sys

import pytest

from penstock.cli.app import COMMANDS

TIMEOUT_SECONDS = 60

LATE_PACKAGES = (
    *("penstock.groups", "penstock.transactions", "penstock.queue.partition", "penstock.ring.coordinator"),
    *(
        "penstock.node.queues",
        "penstock.node.cliques",
        "penstock.node.subscriptions",
        "penstock.node.status.collector",
    ),
    *("penstock.web", "starlette", "uvicorn", "httptools", "websockets", "prometheus_client"),
    *("confluent_kafka", "jwt", "cryptography", "rich"),
)
"""Parts of a node that wait for their first client, the web stack, and what only clients and commands need."""
LATE_MODULES = ("penstock.log.os_disk", "ctypes", "shutil", "pathlib", "tomllib", "difflib")
"""A broker in memory has no files."""
MODULES_MAX = 290
"""Of Penstock, in a broker that is ready. There were 275 when this was written. Before you raise it: does a broker need
the new module before its first client? If not, load it late (`node/late_parts.py`, `kafka/handlers/registry.py`)."""

LIGHT_COMMANDS = sorted(set(COMMANDS) - {"serve", "cluster", "sim"})
"""Those that do not run a node or show its own reports."""


def modules_of(code: str) -> set[str]:
    """The modules that are loaded when the program ends."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('modules', *sys.modules)"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def modules_until_ready() -> set[str]:
    """What `penstock serve` has loaded when it prints that it is ready."""
    command = [*(sys.executable, "-X", "importtime", "-m", "penstock"), "serve", "--memory"]
    command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready"):
            break
    process.terminate()
    _, told = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, told[-500:]
    return {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}


def within(modules: set[str], packages: tuple[str, ...]) -> set[str]:
    return {name for name in modules if any(f"{name}.".startswith(f"{package}.") for package in packages)}


def test_a_broker_in_memory_that_nobody_uses_loads_neither_rare_parts_nor_files() -> None:
    modules = modules_of("from penstock import Broker\nBroker().close()")
    assert within(modules, LATE_PACKAGES + LATE_MODULES) == set()
    own = within(modules, ("penstock",))
    assert len(own) <= MODULES_MAX, f"{len(own)} modules: see MODULES_MAX"


def test_serve_is_ready_without_rare_parts_the_web_stack_and_librdkafka() -> None:
    assert within(modules_until_ready(), LATE_PACKAGES) == set()


@pytest.mark.parametrize("command", LIGHT_COMMANDS)
def test_a_command_loads_no_node(command: str) -> None:
    modules = modules_of(f"from penstock.cli.app import run\nassert run([{command!r}, '--help']) == 0")
    assert within(modules, ("penstock.node", "penstock.cluster", "penstock.log", "penstock.web")) == set()
