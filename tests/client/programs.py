"""Programs that use the client, as processes of their own: they are sent signals, and killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

SOON = 60.0
LOOK_AGAIN_SECONDS = 0.02


class Program:
    """A Python script. Its standard error goes where its standard output goes."""

    def __init__(self, script: str, *arguments: str, ignores_interrupts: bool = False) -> None:
        command = [sys.executable, "-u", "-c", script, *arguments]
        if ignores_interrupts:  # as a shell starts background jobs
            command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ}
        )
        self.lines: list[str] = []

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, text: str) -> str:
        """The first line that has this text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"ended without {text!r}:\n" + "".join(self.lines))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_until_default(self, number: signal.Signals) -> None:
        """Waits until the program has no handler for the signal any more: it has got the first one."""
        deadline = time.monotonic() + SOON
        while _is_caught(self.pid, number):
            assert time.monotonic() < deadline, "the program still has its handler"
            time.sleep(LOOK_AGAIN_SECONDS)

    def end(self) -> int:
        """Its exit code, once it has ended; the rest of its output is in `lines`."""
        rest, _ = self.process.communicate(timeout=SOON)
        self.lines += rest.splitlines(keepends=True)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=SOON)


def _is_caught(pid: int, number: signal.Signals) -> bool:
    facts = Path(f"/proc/{pid}/status").read_text()
    [mask] = [line.split()[1] for line in facts.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)
