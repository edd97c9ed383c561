"""`penstock demo`, small: all its steps, with a real kill -9 of a broker, and of the leader of a cluster."""

import json
import re
import signal
from pathlib import Path

import httpx
import pytest

from penstock.cli import demo
from penstock.cli.demo_chapters import crash, spark, start
from penstock.spark.java import why_not
from tests.spark.conftest import JVM_OPTIONS

from .conftest import Cli, succeeded


@pytest.mark.xdist_group("jvms")
def test_the_demo_runs_all_steps_and_leaves_nothing(
    plain_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", JVM_OPTIONS)
    result = succeeded(plain_cli("demo", "--messages", "2000", "--data-dir", str(tmp_path)))
    said = " ".join(result.stdout.split())
    assert re.search(r"all [\d,]+ acknowledged messages are there: none lost, none twice", said)
    assert re.search(r"a third worker joined under load; .*one \d+, three \d+, two \d+", said)
    assert re.search(r"\d payments: none lost, in order for each customer", said)
    assert re.search(r"kill -9 of node \d, which led \d of 6 partitions", said)
    assert "500 messages acknowledged, 500 found with one node gone: none lost, none twice" in said
    if not why_not():
        assert "every purchase is in the Delta table once" in said
    assert list(tmp_path.iterdir()) == []


def test_scripts_get_the_figures(plain_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "CHAPTERS", (start.play, crash.play))
    result = succeeded(plain_cli("demo", "--messages", "1000", "--data-dir", str(tmp_path), "--json"))
    figures = json.loads(result.stdout)
    assert (figures["lost"], figures["stored_twice"]) == (0, 0)
    assert figures["restart_ms"] > 0
    assert figures["gap_ms"] > 0
    assert list(tmp_path.iterdir()) == []


def test_without_java_the_demo_says_what_it_skips(
    plain_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "CHAPTERS", (spark.play,))
    result = succeeded(plain_cli("demo", "--data-dir", str(tmp_path)))
    said = " ".join(result.stdout.split())
    assert "skipped: there is no Java" in said
    assert "openjdk-17-jre-headless" in said


def test_with_keep_the_broker_stays_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chapters have been tested above: none is played but the first."""
    monkeypatch.setattr(demo, "CHAPTERS", (start.play,))
    seen: list[str] = []

    def look() -> None:
        """In the place of waiting for a signal, which then comes."""
        [address] = re.findall(r"http://127[^ ]+/console/", console_lines[-1])
        seen.append(httpx.get(address).text)
        signal.raise_signal(signal.SIGINT)

    console_lines: list[str] = []
    monkeypatch.setattr(demo, "show", lambda *parts: console_lines.append(str(parts[-1])))
    monkeypatch.setattr(signal, "pause", look)
    assert demo.demo.callback is not None
    demo.demo.callback(messages=1000, data_dir=str(tmp_path), keep=True, as_json=True)
    assert "<title>Penstock</title>" in seen[0]
    assert list(tmp_path.iterdir()) == []
