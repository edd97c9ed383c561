"""Runs commands, each in a process group of its own, and ends all processes of a group.

A command is often a shell script. To kill the shell alone would leave its children running: they would go on to work on
a message that is being tried again elsewhere. Ctrl-C in a terminal does not reach these groups, so that commands can
finish after it."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

POLL_SECONDS = 0.02


class ProcessGroups:
    """The commands that are running now. Used by several threads."""

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: how long processes may take to end after SIGTERM, before SIGKILL."""
        self._grace_s = grace_s
        self._running: set[subprocess.Popen[bytes]] = set()

    def run(
        self, command: Sequence[str], stdin: bytes, environment: Mapping[str, str], timeout_s: float | None
    ) -> int | None:
        """The exit code; None if the command took too long and was ended. OSError if it cannot be started."""
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, env=environment, start_new_session=True
        ) as process:
            self._running.add(process)
            try:
                process.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired:
                end_groups([process], self._grace_s)
                return None
            finally:
                self._running.discard(process)
            return process.returncode

    def end(self) -> None:
        """Ends all commands that are running."""
        end_groups(list(self._running), self._grace_s)


def end_groups(leaders: Iterable[subprocess.Popen[bytes]], grace_s: float) -> None:
    """Sends SIGTERM to the groups of these processes, and SIGKILL to those that have not ended after the grace."""
    alive = [leader for leader in leaders if _signal(leader, signal.SIGTERM)]
    deadline = time.monotonic() + grace_s
    while (alive := [leader for leader in alive if _is_alive(leader)]) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for leader in alive:
        _signal(leader, signal.SIGKILL)


def _is_alive(leader: subprocess.Popen[bytes]) -> bool:
    leader.poll()  # a process that has ended counts as a member of its group until its status is read
    return _signal(leader, 0)


def _signal(leader: subprocess.Popen[bytes], number: int) -> bool:
    """False if the group has no process any more."""
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, number)
        return True
    return False
