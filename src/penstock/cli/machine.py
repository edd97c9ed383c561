"""`penstock serve --processes N`: the nodes of one machine, each in a process of its own.

This process reads the configuration once, derives that of each node (`config/processes.py`), and hands it over when it
starts the node's process (`machine_child.py`). It serves nothing itself.

1. A process that has been ready once and ends is started again with the configuration of the command, after a growing
   delay if it dies young. The others go on.
2. A process that ends with an exit code before it was ever ready has a reason that another start would not change (a
   port that is taken, a folder of another cluster): all others are stopped, and the command ends with its code.
3. SIGTERM or Ctrl-C stops all nodes at the same time. The command ends when all have ended.
"""

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import msgspec
from msgspec.structs import replace

from penstock.cli.announcing import warn_of_open_ports
from penstock.cli.cluster_plan import free_port
from penstock.cli.machine_child import ProcessReport, ProcessTask
from penstock.cli.problem import Misconfigured, Problem
from penstock.cli.serve import check_folders, configure_logging
from penstock.config import NodeConfig
from penstock.config.processes import first_process, process_configs
from penstock.errors import ConfigError
from penstock.worker.processes import ProcessSupervisor, SupervisedProcess

log = logging.getLogger("penstock.serve")

KILL_SECONDS: Final = 30.0
"""How long nodes may take to stop."""
KEY_FILE: Final = "processes.key"
KEY_BYTES: Final = 32


@dataclass(kw_only=True)
class NodeProcess(SupervisedProcess):
    """One of the machine's processes."""

    config: NodeConfig
    lines: tuple[str, ...] = ()
    """Its listeners, in words."""
    was_ready: bool = False
    """In any of its runs."""


def run_processes(config: NodeConfig, *, resets_admin: bool) -> int:
    """Runs the nodes until a signal comes; returns the exit code."""
    check_folders(config)
    try:
        configs = process_configs(_with_key(config), free_port)
    except ConfigError as failure:
        raise Misconfigured(
            str(failure), "docs/cluster.md says what the processes of a machine share"
        ) from None
    configure_logging(config.log_level)
    return Machine(configs, resets_admin=resets_admin).run()


def remaining_process(config: NodeConfig) -> NodeConfig:
    """One process on a folder that had more: it still needs an inter-node port to lead what they have left to it."""
    if config.memory or config.cluster is not None or not (Path(config.data_dir) / KEY_FILE).exists():
        return config
    return first_process(_with_key(config), free_port)


def _with_key(config: NodeConfig) -> NodeConfig:
    """Other programs of this machine reach an inter-node port of it, and must not pass for nodes: without a key of the
    operator's, the machine makes one."""
    is_local = config.cluster is None or config.cluster.is_loopback
    if config.memory or config.cluster_key_file is not None or not is_local:
        return config
    path = Path(config.data_dir).absolute() / KEY_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _write_key(path)
    except OSError as failure:
        hint = "choose another folder with --data-dir, or give --cluster-key-file"
        raise Problem(f"{failure.filename or path}: {failure.strerror}", hint) from None
    return replace(config, cluster_key_file=str(path))


def _write_key(path: Path) -> None:
    """Under another name first: a key that is not whole must never be found."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(KEY_BYTES) + "\n")
    unfinished.rename(path)


class Machine(ProcessSupervisor[NodeProcess]):
    def __init__(self, configs: Sequence[NodeConfig], *, resets_admin: bool) -> None:
        places = [NodeProcess(number=number, config=config) for number, config in enumerate(configs, 1)]
        super().__init__(places, kill_after_s=KILL_SECONDS)
        self._resets_admin = resets_admin
        self._began_seconds = time.perf_counter()
        self._is_announced = False

    def run(self) -> int:
        code = super().run()
        click.echo("stopped")
        return code

    # --- what the supervisor asks and tells

    def command(self, place: NodeProcess, report_fd: int) -> list[str]:
        return [sys.executable, "-m", "penstock.cli.machine_child", str(report_fd)]

    def first_input(self, place: NodeProcess) -> bytes:
        """One node of the cluster resets the password, at its first start."""
        resets_admin = self._resets_admin and place.number == 1 and not place.restarts
        task = ProcessTask(number=place.number, config=place.config, resets_admin=resets_admin)
        return msgspec.json.encode(task) + b"\n"

    def gives_up(self, place: NodeProcess, exit_code: int) -> bool:
        return exit_code > 0 and not place.was_ready

    def on_report(self, place: NodeProcess, line: bytes) -> None:
        report = msgspec.json.decode(line, type=ProcessReport)
        if report.lines and not place.lines:
            place.lines = report.lines
            self._show_listeners()
        if report.first_user is not None:
            user, password = report.first_user
            click.echo(f"{user} password: {password}")
            sys.stdout.flush()
        if report.is_ready:
            self._take_ready(place)

    def on_ended(self, place: NodeProcess, delay_s: float | None) -> None:
        code = place.exit_code or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if delay_s is not None:
            again = f"in {delay_s:g} s" if delay_s else "now"
            log.warning("process %d (%s) %s; it is started again %s", place.number, _node(place), how, again)
        elif code:
            log.warning("process %d (%s) %s", place.number, _node(place), how)

    def on_stopping(self) -> None:
        log.info("stopping all processes; a second signal kills them")

    # --- what the operator sees

    def _show_listeners(self) -> None:
        """In order, when all listen."""
        if all(place.lines for place in self.places):
            for place in self.places:
                for line in place.lines:
                    click.echo(f"{line}  (process {place.number}, {_node(place)})")

    def _take_ready(self, place: NodeProcess) -> None:
        place.was_ready, place.state = True, "running"
        if self._is_announced:
            log.info("process %d (%s) is ready again", place.number, _node(place))
        elif all(one.was_ready for one in self.places):
            self._is_announced = True
            warn_of_open_ports(*(one.config for one in self.places))
            after_ms = (time.perf_counter() - self._began_seconds) * 1000
            ports = ", ".join(
                str(listener.bind) for one in self.places for listener in one.config.kafka_listeners
            )
            click.echo(
                f"ready   {len(self.places)} processes in {after_ms:.0f} ms: kafka {ports}; Ctrl-C stops them"
            )
            sys.stdout.flush()


def _node(place: NodeProcess) -> str:
    return f"node {place.config.node_id}"
