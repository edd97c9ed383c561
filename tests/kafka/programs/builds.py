"""The programs as commands: fetched and compiled into `.cache/`, once."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import kafka_launcher  # noqa: E402

LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel="
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
"""The tools live for seconds: what starts sooner is faster."""


def kafka_jars() -> Path:
    """Kafka's clients, tools and MirrorMaker."""
    try:
        return kafka_launcher.fetch_tools()
    except kafka_launcher.Unavailable as missing:
        pytest.fail(str(missing))


def java(main: str, *arguments: str, classes: Path | None = None, log_level: str = "error") -> list[str]:
    """The command that runs a class of Kafka's jars, or of `classes`."""
    path = f"{kafka_jars()}/*" if classes is None else f"{classes}:{kafka_jars()}/*"
    return ["java", *SMALL_JVM, LOG_LEVEL + log_level, "-cp", path, main, *arguments]


def java_client() -> list[str]:
    _require("javac", "a JDK of version 17 or newer")
    jars = kafka_jars()
    source = HERE / "java" / "ClientProgram.java"
    folder = _built_in("java-client", [source])
    if not (folder / "complete").exists():
        _run(["javac", "-cp", f"{jars}/*", "-d", str(folder), str(source)])
        (folder / "complete").touch()
    return java("ClientProgram", classes=folder)


def franz_go_client() -> list[str]:
    _require("go", "Go of the version in tests/kafka/programs/franz_go/go.mod or newer")
    folder = HERE / "franz_go"
    program = _built_in("franz-go-client", sorted(folder.iterdir())) / "client"
    if not program.exists():
        _run(["go", "build", "-C", str(folder), "-buildvcs=false", "-o", str(program), "."])
    return [str(program)]


def _built_in(name: str, sources: list[Path]) -> Path:
    """A folder of the cache for what is built from these files: another one when they change."""
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder: Path = kafka_launcher.CACHE / f"{name}-{state}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _require(tool: str, what: str) -> None:
    if shutil.which(tool) is None:
        pytest.fail(f"there is no `{tool}`: install {what}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{command[0]} failed (does it need the network?):\n{done.stdout}{done.stderr}")
