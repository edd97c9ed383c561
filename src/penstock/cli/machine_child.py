"""One process of `penstock serve --processes`: a node, which ends with the process that supervises it.

It reads one line from its standard input, its task. After that the supervisor only holds the other end: when the
supervisor ends in any way, this process stops in order. It writes its reports to the file that it was given, a line
each.
"""

import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import click
import msgspec

from penstock.cli.announcing import Announcer, listener_lines
from penstock.cli.cluster_child import EXIT_ORPHANED, end_with_parent
from penstock.cli.serve import run
from penstock.config import NodeConfig

if TYPE_CHECKING:
    from penstock.service import Service


class ProcessTask(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    config: NodeConfig
    resets_admin: bool = False


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has just happened."""

    lines: tuple[str, ...] = ()
    """It listens: the lines that `penstock serve` prints about it."""
    first_user: tuple[str, str] | None = None
    """A user that was made, and the password."""
    is_ready: bool = False


class Reporter(Announcer):
    """Tells the supervisor instead of the operator."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def _tell(self, report: ProcessReport) -> None:
        with suppress(OSError):  # the supervisor has died
            os.write(self._fd, msgspec.json.encode(report) + b"\n")

    def listening(self, config: NodeConfig, service: "Service") -> None:
        self._tell(ProcessReport(lines=tuple(listener_lines(config, service))))

    def first_user(self, user: str, password: str) -> None:
        self._tell(ProcessReport(first_user=(user, password)))

    def ready(self, after_ms: float) -> None:
        self._tell(ProcessReport(is_ready=True))

    def stopped(self) -> None:
        """The supervisor sees that the process ends."""


def main(report_fd: int) -> int:
    line = sys.stdin.buffer.readline()
    if not line:
        return EXIT_ORPHANED
    task = msgspec.json.decode(line, type=ProcessTask)
    threading.Thread(target=end_with_parent, name="penstock-parent", daemon=True).start()
    label = f"process {task.number}"
    try:
        run(task.config, announcer=Reporter(report_fd), resets_admin=task.resets_admin, label=label)
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
