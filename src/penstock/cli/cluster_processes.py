"""The processes of a local cluster: started, watched, and stopped one after the other, with this process at the
latest."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

from penstock.cli.broker_process import clean_environment
from penstock.cli.cluster_plan import LocalCluster, LocalNode
from penstock.cli.problem import Problem
from penstock.cli.stopping import Stop

READY_SECONDS = 60.0
ROLLING_SECONDS = 5.0
"""How long the stop of one node may delay that of the next."""
STOP_SECONDS = 20.0
LOOK_SECONDS = 0.1
SHOWN_LINES = 5
MAX_SHOWN_BYTES = 8192

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Child:
    """One node's process."""

    def __init__(self, node: LocalNode, cluster: LocalCluster, flags: tuple[str, ...]) -> None:
        self.node = node
        self.told_dead = False
        self.log_file = cluster.log_file(node)
        serve = ["serve", "--config", str(cluster.file), "--node-id", str(node.node_id), *flags]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli.cluster_child", *serve],
                stdin=subprocess.PIPE,  # see cluster_child
                stdout=log,
                stderr=log,
                env=clean_environment(),
                start_new_session=True,  # Ctrl-C is for us to pass on, to one after the other
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def is_ready(self) -> bool:
        try:
            with _direct.open(f"http://{self.node.http}/ready", timeout=1.0) as answer:
                return bool(json.load(answer)["ready"])
        except (OSError, ValueError, KeyError):
            return False

    def death(self) -> str:
        """How it ended, and the last lines of its log."""
        code = self.process.returncode
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        said = self.last_lines()
        return how + (
            f"; its log, {self.log_file}, ends with\n" + "\n".join(f"  {line}" for line in said)
            if said
            else ""
        )

    def last_lines(self) -> list[str]:
        with self.log_file.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - MAX_SHOWN_BYTES))
            return log.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]

    def ask_to_stop(self) -> None:
        if self.alive:
            self.process.terminate()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if self.alive:
            self.process.kill()
        self.process.wait()


class Children:
    """All nodes. Leaving the `with` block kills those that still run."""

    def __init__(self, cluster: LocalCluster, flags: tuple[str, ...]) -> None:
        self._cluster = cluster
        self._flags = flags
        self.all: list[Child] = []

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *trouble: object) -> None:
        for child in self.all:
            child.kill()

    def start(self) -> None:
        for node in self._cluster.nodes:
            self.all.append(Child(node, self._cluster, self._flags))

    def await_ready(self, tell: Callable[[str], None] = lambda _: None, stop: Stop | None = None) -> bool:
        """Whether all nodes serve; False if the person interrupted it. Problem if one died, or is not ready in time."""
        began = time.monotonic()
        waiting = list(self.all)
        while waiting:
            for child in self.newly_dead():
                raise Problem(f"node {child.node.node_id} {child.death()}")
            for child in [one for one in waiting if one.is_ready()]:
                waiting.remove(child)
                tell(f"node {child.node.node_id} is ready after {time.monotonic() - began:.1f} s")
            if stop:
                return False
            if waiting and time.monotonic() - began > READY_SECONDS:
                names = ", ".join(str(child.node.node_id) for child in waiting)
                said = "\n".join(f"  {line}" for line in waiting[0].last_lines())
                raise Problem(
                    f"node {names} is not ready after {READY_SECONDS:.0f} s; the log of the first ends with\n{said}"
                )
            time.sleep(LOOK_SECONDS if waiting else 0.0)
        return True

    def newly_dead(self) -> Iterator[Child]:
        for child in self.all:
            if not child.alive and not child.told_dead:
                child.told_dead = True
                yield child

    @property
    def any_alive(self) -> bool:
        return any(child.alive for child in self.all)

    def stop(self, tell: Callable[[str], None]) -> None:
        """One after the other, so that leaders can move; the last ones have no majority left."""
        for child in self.all:
            if child.alive:
                tell(f"stopping node {child.node.node_id}")
                child.ask_to_stop()
                child.wait(ROLLING_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        for child in self.all:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                tell(f"node {child.node.node_id} does not stop: killing it")
                child.kill()
