"""Python processes for Spark that are forked from one that has loaded all that they need.

Spark starts a Python process for every streaming query, which imports for about a second of a core. On a busy machine
that is more than the ten seconds that Spark waits for it, and it is a third of the time that these tests take. `Forks`
gives Spark a command to use as its Python (PYSPARK_PYTHON): `COMMAND -m MODULE ARGUMENTS` hands its environment, folder
and standard streams to the process that forks, and ends when the fork has ended.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

STREAMS = (0, 1, 2)
LOADED = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.types",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.worker",
    "pyspark_penstock",
    "penstock.spark.payloads",
    "penstock.spark.sink",
    "penstock.spark.task",
)
COMMAND = """#!/bin/sh
[ "$1" = -m ] || exec {python} "$@"
exec {python} -I -S {here} ask {address} "$@"
"""


class Forks:
    """The process that forks, and the command for Spark."""

    def __init__(self, folder: Path) -> None:
        self.command = folder / "python"
        address = folder / "forks"
        self.command.write_text(COMMAND.format(python=sys.executable, here=__file__, address=address))
        self.command.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(address)], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def ask(address: str, arguments: list[str]) -> None:
    """Has a process forked that runs `-m MODULE ...` in place of this one, and waits until it ends."""
    wish = json.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [len(wish.encode()).to_bytes(4)], STREAMS)
        connection.sendall(wish.encode())
        connection.recv(1)


def serve(address: str) -> None:
    import importlib
    import signal

    for name in LOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended are not waited for
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    run(connection)


def run(connection: socket.socket) -> None:
    """Runs in the fork. The connection is open until it ends."""
    import runpy

    length, streams, _, _ = socket.recv_fds(connection, 4, len(STREAMS))
    with connection.makefile("rb") as file:
        wish = json.loads(file.read(int.from_bytes(length)))
    for stream, number in zip(streams, STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(wish["environment"])
    os.chdir(wish["folder"])
    _, module, *arguments = wish["arguments"]
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # runpy runs it as __main__, and warns where it was imported before
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        ask(sys.argv[2], sys.argv[3:])
