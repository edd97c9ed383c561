"""The programs as commands: fetched and compiled into `.cache/`, once."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import kafka_launcher  # noqa: E402

CACHE: Path = kafka_launcher.CACHE
LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel="
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
"""The tools live for seconds: what starts sooner is faster."""


def kafka_jars() -> Path:
    """Kafka's clients, tools and MirrorMaker."""
    return _fetched(kafka_launcher.fetch_tools)


def _fetched(fetch: Callable[[], Path]) -> Path:
    try:
        return fetch()
    except kafka_launcher.Unavailable as missing:
        pytest.fail(str(missing))


def _newest_client_jars() -> str:
    """The newest Java client, for programs of our own. The tools' jars have libraries that it can use."""
    return f"{_fetched(kafka_launcher.fetch_clients)}/*:{kafka_jars()}/*"


def java(main: str, *arguments: str, log_level: str = "error") -> list[str]:
    """The command that runs a class of Kafka's jars."""
    return _java(f"{kafka_jars()}/*", main, *arguments, log_level=log_level)


def _java(classpath: str, main: str, *arguments: str, log_level: str = "error") -> list[str]:
    return ["java", *SMALL_JVM, LOG_LEVEL + log_level, "-cp", classpath, main, *arguments]


def java_client(*, log_level: str = "error") -> list[str]:
    jars = _newest_client_jars()
    classpath = f"{_compiled(HERE / 'java', jars)}:{jars}"
    return _java(classpath, "ClientProgram", log_level=log_level)


def word_count(*arguments: str) -> list[str]:
    """The program that counts words with Kafka Streams."""
    jars = f"{_fetched(kafka_launcher.fetch_streams)}/*"
    return _java(f"{_compiled(HERE / 'java_streams', jars)}:{jars}", "WordCount", *arguments)


def franz_go_client() -> list[str]:
    require("go", "Go of the version in tests/kafka/programs/franz_go/go.mod or newer")
    folder = HERE / "franz_go"
    program = built_in("franz-go-client", sorted(folder.iterdir())) / "client"
    if not program.exists():
        run(["go", "build", "-C", str(folder), "-buildvcs=false", "-o", str(program), "."])
    return [str(program)]


def _compiled(sources: Path, jars: str) -> Path:
    """The folder with the classes of these programs."""
    require("javac", "a JDK of version 17 or newer")
    files = sorted(sources.glob("*.java"))
    folder = built_in(f"{sources.name}-programs", files)
    if not (folder / "complete").exists():
        run(["javac", "-cp", jars, "-d", str(folder), *map(str, files)])
        (folder / "complete").touch()
    return folder


def built_in(name: str, sources: list[Path]) -> Path:
    """A folder of the cache for what is built from these files: another one when they change."""
    state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = CACHE / f"{name}-{state}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def require(tool: str, what: str) -> None:
    if shutil.which(tool) is None:
        pytest.fail(f"there is no `{tool}`: install {what}")


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{command[0]} failed (does it need the network?):\n{done.stdout}{done.stderr}")
