"""`penstock demo`, small: all its steps, with a real kill -9 of a broker, and of the leader of a cluster."""

import json
import re
from pathlib import Path

import pytest

from penstock.spark.java import why_not
from tests.spark.conftest import JVM_OPTIONS

from .conftest import Cli, succeeded


@pytest.mark.xdist_group("jvms")
def test_the_demo_runs_all_steps_and_leaves_nothing(
    plain_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", JVM_OPTIONS)
    result = succeeded(plain_cli("demo", "--messages", "5000", "--data-dir", str(tmp_path), "--json"))
    figures = json.loads(result.stdout)
    assert (figures["lost"], figures["stored_twice"]) == (0, 0)
    assert figures["restart_ms"] > 0
    assert figures["gap_ms"] > 0
    assert figures["clique_lost"] == 0
    assert figures["clique_failover_ms"] > 0
    assert (figures["cluster_acknowledged"], figures["cluster_lost"]) == (1250, 0)
    assert figures["failover_ms"] > 0
    if not why_not():
        assert figures["spark_records"] == 2500
    assert list(tmp_path.iterdir()) == []


def test_without_java_the_demo_says_what_it_skips(
    plain_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = succeeded(plain_cli("demo", "--messages", "1000", "--data-dir", str(tmp_path)))
    said = " ".join(result.stdout.split())
    assert re.search(r"a third worker joined under load; .*one \d+, three \d+, two \d+", said)
    assert re.search(r"\d payments: none lost, in order for each customer", said)
    assert re.search(r"kill -9 of node \d, which led 2 of 6 partitions", said)
    assert "250 messages acknowledged, 250 found with one node gone: none lost, none twice" in said
    assert "skipped: there is no Java" in said
    assert "openjdk-17-jre-headless" in said
