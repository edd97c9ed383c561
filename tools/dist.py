"""Builds the source distribution and a wheel for each Python, and installs each wheel in an empty environment.

    python -m tools.dist [--out dist] [--python PATH]...

Without --python it takes every Python from 3.11 on that it finds: `python3.N` on PATH, and those of pyenv. It makes
  - the source distribution, from which everything below is built
  - for each Python a wheel with compiled loops over records, if there is a C compiler
  - a wheel in pure Python for all others
and checks, with a clean environment of each Python: `penstock --version`, a broker that real clients write to and read
from, a queue, and the advice for an optional part that is not installed. With the newest Python it also installs the
pure wheel, and the source distribution as on a machine without a C compiler. Where a container engine runs, it builds
the image of deploy/Dockerfile. It needs the package index.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = (3, 11)
PURE = {"PENSTOCK_PURE_PYTHON": "1"}
NO_COMPILER = {"CC": "/bin/false", "CXX": "/bin/false"}
ROUND_TRIP = """
import penstock
from confluent_kafka import Consumer, Producer
from penstock.client import Client

with penstock.Broker() as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(100):
        producer.produce("orders", b"%d" % number)
    assert producer.flush(60) == 0
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap_servers, "group.id": "check", "auto.offset.reset": "earliest"
    })
    consumer.subscribe(["orders"])
    values = []
    while len(values) < 100:
        message = consumer.poll(60)
        assert message is not None and message.error() is None, message
        values.append(message.value())
    consumer.close()
    assert sorted(values, key=int) == [b"%d" % number for number in range(100)]
    with Client(broker.bootstrap_servers) as client:
        client.admin.create_queue("jobs")
        client.publish("jobs", b"one")
        with client.queue("jobs") as queue:
            job = queue.receive(timeout=60)
            assert job.value == b"one"
            job.ack()
print("100 records and one job went through the broker")
"""
MISSING_PART = """
import penstock.spark.java
print(penstock.spark.java.why_not())
"""


class Failed(Exception):
    """A step that did not end well, and the end of its output."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", action="append", type=Path, default=[])
    options = parser.parse_args()
    pythons = options.python or find_pythons()
    try:
        make(pythons, options.out)
    except Failed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    return 0


def make(pythons: list[Path], out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    newest = pythons[-1]
    with tempfile.TemporaryDirectory() as scratch:
        source = build_source(Path(scratch), out)
        pure = build_wheel(newest, source, out, PURE)
        wheels = {python: build_wheel(python, source, out, {}) for python in pythons}
        for python, wheel in wheels.items():
            check(python, wheel, is_compiled=wheel != pure)
        check(newest, pure, is_compiled=False)
        check(newest, source, is_compiled=False, environment=NO_COMPILER)
    build_image()
    print(f"\n{out}:")
    for made in sorted(out.iterdir()):
        print(f"  {made.name}  {made.stat().st_size / 1000:,.0f} kB")


def find_pythons() -> list[Path]:
    """Every Python that Penstock supports here, oldest first, one of each minor version."""
    folders = [Path(one) for one in os.environ.get("PATH", "").split(os.pathsep) if one]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += sorted(pyenv.glob("versions/*/bin"))
    found: dict[tuple[int, ...], Path] = {(*sys.version_info[:2],): Path(sys.executable)}
    for folder in folders:
        for python in folder.glob("python3.[0-9]*"):
            number = python.name.removeprefix("python3.")
            if number.isdigit() and (3, int(number)) >= OLDEST and _starts(python):
                found.setdefault((3, int(number)), python)
    return [found[version] for version in sorted(found)]


def _starts(python: Path) -> bool:
    """A shim of pyenv may stand for a version that is not chosen."""
    return subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0


def build_source(scratch: Path, out: Path) -> Path:
    """The source distribution, from the files that git knows: nothing that an earlier build left gets into it."""
    tree = scratch / "tree"
    files = run("reading the list of files", ["git", "ls-files", "-z"], cwd=ROOT).split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    environment = scratch / "build"
    run("making an environment", [sys.executable, "-m", "venv", str(environment)])
    python = environment / "bin" / "python"
    run("installing the build tool", [str(python), "-m", "pip", "install", "-q", "build>=1.2,<2"])
    run("building the source distribution", [str(python), "-m", "build", "-s", "-o", str(out), str(tree)])
    [source] = out.glob("*.tar.gz")
    return source


def build_wheel(python: Path, source: Path, out: Path, environment: dict[str, str]) -> Path:
    with tempfile.TemporaryDirectory() as scratch:
        command = [str(python), "-m", "pip", "wheel", "-q", "--no-deps", "-w", scratch, str(source)]
        run(
            f"building a wheel with {python.name}{' in pure Python' if environment else ''}",
            command,
            environment,
        )
        [wheel] = Path(scratch).glob("*.whl")
        return Path(shutil.move(wheel, out / wheel.name))


def check(
    python: Path, package: Path, *, is_compiled: bool, environment: dict[str, str] | None = None
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        empty = Path(scratch) / "empty"
        empty.mkdir()
        target = Path(scratch) / "environment"
        run(f"checking {package.name} with {python.name}", [str(python), "-m", "venv", str(target)])
        installed = target / "bin"
        run(
            "  installing it", [str(installed / "pip"), "install", "-q", str(package)], environment, cwd=empty
        )
        said = run("  asking its version", [str(installed / "penstock"), "--version"], cwd=empty).strip()
        if ("pure Python" in said) == is_compiled:
            raise Failed(
                f"{package.name} says {said!r}: expected {'compiled' if is_compiled else 'pure Python'}"
            )
        run("  using a broker", [str(installed / "python"), "-c", ROUND_TRIP], cwd=empty)
        advice = run("  asking for Spark", [str(installed / "python"), "-c", MISSING_PART], cwd=empty)
        if "penstock[spark]" not in advice:
            raise Failed(f"without PySpark it says {advice!r}: expected the name of the extra to install")


def build_image() -> None:
    engine = shutil.which("docker")
    if engine is None or subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
        print("no container engine runs here: the image was not built")
        return
    run("building the image", ["docker", "build", "-f", "deploy/Dockerfile", "-t", "penstock", "."], cwd=ROOT)
    said = run("  asking its version", ["docker", "run", "--rm", "penstock", "--version"]).strip()
    if "pure Python" in said:
        raise Failed(f"the image says {said!r}: expected compiled loops")


def run(
    step: str, command: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    print(step, flush=True)
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "PENSTOCK_PURE_PYTHON")
    }
    done = subprocess.run(
        command, env={**known, **(environment or {})}, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Failed(f"{step.strip()}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
