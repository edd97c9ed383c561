"""Spark's processes load the client part of Penstock, and no more than they need."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.java import why_not

BROKER = (
    "penstock.node",
    "penstock.log",
    "penstock.service",
    "penstock.kafka.handlers",
    "penstock.kafka.server",
)
HEAVY = ("asyncio", "uvloop", "starlette", "confluent_kafka", "click", "rich", "fastavro", "pyarrow.compute")
NOT_FOR_ANSWERS = ("pyarrow", "numpy", "http.client", "penstock.batch", "penstock.kafka.wire")
"""Modules that a process does without that neither reads nor writes records."""


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_an_executor_never_loads_the_broker() -> None:
    loaded = loaded_by(
        "import pyspark_penstock, penstock.spark.sink, penstock.spark.sink_attempts, penstock.spark.sink_sender,"
        "penstock.spark.task, penstock.spark.payloads"
    )
    assert "penstock.client.wire.fetch" in loaded
    assert not [name for name in loaded if name.startswith(BROKER)]


def test_planning_a_read_loads_nothing_heavy() -> None:
    assert not loaded_by("import pyspark_penstock, penstock.spark.batch_reader") & set(HEAVY)


@pytest.mark.parametrize(
    ("process", "statement"),
    [
        ("looks for data sources", "import pyspark_penstock"),
        (
            "asks for the columns",
            "from pyspark_penstock import DefaultSource;"
            "DefaultSource({'subscribe': 'orders', 'kafka.bootstrap.servers': 'here:9092'}).schema()",
        ),
        ("commits", "import penstock.spark.sink"),
    ],
)
def test_a_process_without_records_loads_neither_arrow_nor_the_protocol(process: str, statement: str) -> None:
    found = loaded_by(statement) - loaded_by("import pyspark.sql.datasource")
    assert not [name for name in found if name.startswith(NOT_FOR_ANSWERS)], process


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ""),
        ('openjdk version "21" 2023-09-19', ""),
        ('java version "1.8.0_402"', "is Java 8, and Spark wants 17 or later"),
        ("whatever", "does not say its version"),
    ],
)
def test_a_too_old_java_is_named_with_what_to_do(
    version: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = why_not()
    assert expected in found
    assert bool(found) == bool(expected)
    if found:
        assert "openjdk-17-jre-headless" in found


def test_a_missing_java_is_reported_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no Java" in why_not()
    assert "JAVA_HOME" in why_not()
