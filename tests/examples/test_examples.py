"""Every example runs, ends by itself, and prints its documented output."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Broker

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_SECONDS = 100

SHOWS = {
    "publish_and_read": [
        r"stored in partition \d at offset 0",
        "1000 more are stored",
        "read 1001 messages, 499512 in all",
    ],
    "work_queue": [
        "10 jobs wait",
        r"first worker: picture-4.png \.\.\. \(crash\)",
        "the first worker died with status 1",
        "second worker: picture-4.png, for the second time",
        "the second worker did 7; 0 jobs are left",
    ],
    "exactly_once": [
        "10 jobs wait",
        r"order 4: acked and not committed \.\.\. \(crash\)",
        "the first worker died with status 1",
        "order 4: done, at delivery 2",
        "10 invoices, 10 different ones",
    ],
    "push_subscriber": [
        "billing: order 3",
        "mailing: order 6",
        "billing reconnects",
        "billing: order 3\n  billing: order 4",
        "billing: order 7",
        r"billing-\w+ lags 0 messages behind",
        r"mailing-\w+ lags 1 messages behind",
    ],
    "delayed_and_deduplicated": [
        "stored once: the answers have offsets 0 and 0",
        r"after \d+ s: welcome, alice\n.*after \d+ s: how do you like it\?",
    ],
    "clique": [
        r"after \d+ payments: w1 has 100 customers",
        r"w1 has \d+ customers, w2 has \d+ customers, w3 has \d+ customers, w4 has \d+ customers",
        r"all 100 totals are right: \d+ payments, \d+ cents",
        r"4 workers have left, with exit codes \[0, 0, 0, 0\]",
    ],
    "async_workers": [
        r"40 jobs, 4 of them at the second attempt, up to [2-8] at once",
        "all handlers have finished: True",
        "dead letter: 13",
    ],
}


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - {"example_broker"}
    assert scripts == set(SHOWS)


@pytest.mark.parametrize("name", sorted(SHOWS))
def test_an_example_prints_its_documented_output(name: str) -> None:
    shown = run(name)
    position = 0
    for line in SHOWS[name]:
        found = re.compile(line).search(shown, position)
        assert found, f"{line!r} is not in {shown[position:]!r}"
        position = found.end()


def test_an_example_can_use_a_running_broker(broker: Broker) -> None:
    assert f"using the broker at {broker.bootstrap_servers}" in run(
        "publish_and_read", "--bootstrap", broker.bootstrap_servers
    )
