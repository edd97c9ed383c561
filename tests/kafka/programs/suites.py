"""The test suites that clients bring along, fetched into `.cache/` and run against a Penstock.

kafka-python's are in its source package. That lacks `test/__init__.py`, and `test/service.py` with the classes that
start brokers: stubs take their places, since the suite is given a broker that runs. franz-go's are in its module.
"""

import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.kafka.programs.builds import CACHE, HERE, built_in, require, run

KAFKA_VERSION = "4.3.0"
"""The broker's version, as kafka-python's suite is told."""
SERVICES = """class SpawnedService:
    pass


class ExternalService:
    def __init__(self, host, port):
        pass
"""


def kafka_python_suite() -> Path:
    """The folder of the package's source, of the version that is installed."""
    version = importlib.metadata.version("kafka-python")
    folder = CACHE / f"kafka-python-{version}"
    if not (folder / "complete").exists():
        _download_source("kafka-python", version, folder)
        (folder / "test" / "__init__.py").touch()
        (folder / "test" / "service.py").write_text(SERVICES)
        (folder / "servers" / KAFKA_VERSION / "kafka-bin").mkdir(parents=True, exist_ok=True)
        (folder / "complete").touch()
    return folder


def _download_source(package: str, version: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--no-binary", package, "--dest", str(folder), f"{package}=={version}"])
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            member.path = member.path.partition("/")[2] or "."
            opened.extract(member, folder, filter="data")


def run_kafka_python_suite(bootstrap_servers: str, *arguments: str) -> str:
    """What pytest prints for these tests of its `test/integration`; all must pass."""
    told = {"KAFKA_URI": f"kafka://{bootstrap_servers}", "KAFKA_VERSION": KAFKA_VERSION}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=120", "-v", *arguments]
    return _run_suite(command, cwd=kafka_python_suite(), told=told)


def franz_go_suite() -> Path:
    """The tests of `pkg/kgo` as a program."""
    require("go", "Go of the version in tests/kafka/programs/franz_go/go.mod or newer")
    module = HERE / "franz_go"
    program = built_in("franz-go-suite", [module / "go.mod", module / "go.sum"]) / "kgo.test"
    if not program.exists():
        run(["go", "test", "-C", str(module), "-c", "-o", str(program), "github.com/twmb/franz-go/pkg/kgo"])
    return program


def run_franz_go_suite(bootstrap_servers: str, *, tests: str, records: int) -> str:
    """What Go prints for the tests whose names match; all must pass. Each of its pipelines copies so many records."""
    told = {"KGO_SEEDS": bootstrap_servers, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(records)}
    program = franz_go_suite()
    command = [str(program), "-test.v", f"-test.run={tests}", "-test.timeout=7m"]
    return _run_suite(command, cwd=program.parent, told=told)


def _run_suite(command: list[str], *, cwd: Path, told: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-20_000:]}")
    return done.stdout
