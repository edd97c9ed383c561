"""`penstock serve`: runs one node until a signal stops it."""

import asyncio
import ctypes
import logging
import os
import re
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.announcing import Announcer
from penstock.cli.help import examples
from penstock.cli.key_values import key_values
from penstock.cli.long_lived import LongLivedObjects, loading_modules
from penstock.cli.problem import Misconfigured, Problem
from penstock.cli.table_writer import check_lake, writing_tables
from penstock.config import NodeConfig
from penstock.config.loading import load_node_config
from penstock.config.node import SERVER_REBALANCE_DELAY_MS
from penstock.config.processes import ID_STEP, process_folder
from penstock.errors import (
    ConfigError,
    CorruptLog,
    DataFolderInUse,
    DiskFull,
    NotAdmitted,
    PenstockError,
    StorageError,
    TooManyOpenFiles,
    UnknownFormat,
)

if TYPE_CHECKING:
    from penstock.service import Service

log = logging.getLogger("penstock.serve")

START_HINTS: dict[type[PenstockError], str] = {
    DataFolderInUse: "another broker has this folder: stop it, or choose another with --data-dir",
    UnknownFormat: "use the version that wrote this folder, or another folder with --data-dir",
    StorageError: "look at the folder's permissions and at the disk's free space",
    CorruptLog: "the disk returned wrong bytes, or none: check it, or restore the folder from a backup",
    DiskFull: "free some space on the disk, or choose another folder with --data-dir",
    TooManyOpenFiles: "let the process open more files (ulimit -n)",
}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h."""
FREED_BYTES_KEPT = 128 * 1024 * 1024
LARGEST_KEPT_BYTES = 32 * 1024 * 1024
"""The most that glibc allows."""
SWITCH_INTERVAL_SECONDS = 0.0005


@click.command(
    epilog=examples(
        "penstock serve",
        "penstock serve --memory --kafka 127.0.0.1:0 --http none",
        "penstock serve --data-dir /srv/penstock --kafka 0.0.0.0:9092 --advertise broker.example.org:9092",
        "penstock serve --tls-cert broker.pem --tls-key broker.key --require-login",
        "penstock serve --config penstock.toml --set num_partitions=6 --set limits.max_connections=500",
        "penstock serve --config cluster.toml --node-id 2",
        "penstock serve --data-dir /srv/penstock --processes 4",
    )
)
@click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              envvar="PENSTOCK_CONFIG", show_envvar=True,
              help="A TOML file with these and more settings.")  # fmt: skip
@click.option("--data-dir", metavar="DIR", help="The folder of all data.  [default: penstock-data]")
@click.option("--memory", is_flag=True, default=None,
              help="Keep everything in memory instead; nothing survives.")  # fmt: skip
@click.option("--processes", type=int, metavar="N",
              help="Run N nodes on this machine, each in a process of its own.  [default: 1]")  # fmt: skip
@click.option("--node-id", type=int, help="This node's number.  [default: 1]")
@click.option("--kafka", metavar="HOST:PORT", help="Where Kafka clients connect.  [default: 127.0.0.1:9092]")
@click.option("--advertise", metavar="HOST:PORT",
              help="The address for clients to connect to, if it is another one.")  # fmt: skip
@click.option("--http", metavar="HOST:PORT|none",
              help="The HTTP API, WebSockets, health and metrics.  [default: 127.0.0.1:8080]")  # fmt: skip
@click.option("--tls-cert", metavar="FILE", help="TLS on the Kafka and the HTTP port: the certificate, PEM.")
@click.option("--tls-key", metavar="FILE", help="The certificate's private key.")
@click.option("--tls-ca", metavar="FILE", help="Clients need a certificate that one of these has signed.")
@click.option("--require-login", is_flag=True, default=None,
              help="Clients must log in, and may do only what a rule allows.")  # fmt: skip
@click.option("--reset-admin-password", "resets_admin", is_flag=True,
              help="Give the user admin a new password and print it, once. Not for every start.")  # fmt: skip
@click.option("--cluster", metavar="HOST:PORT",
              help="Where other nodes connect.  [default: none, this node is alone]")  # fmt: skip
@click.option("--seeds", metavar="HOST:PORT,...",
              help="Nodes to found a cluster with, or to join one through.")  # fmt: skip
@click.option("--rack", metavar="NAME", help="Nodes that fail together: replicas are spread over racks.")
@click.option("--cluster-key-file", metavar="FILE",
              help="The secret that the cluster's nodes share; may be left out on loopback only.")  # fmt: skip
@click.option("--no-auto-create", is_flag=True, help="Do not create topics when clients use them.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
              help="Any other setting, as often as needed.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error", "none"]),
              help="Lines of the log on stderr.  [default: info]")  # fmt: skip
def serve(
    config_file: Path | None,
    no_auto_create: bool,
    settings: tuple[str, ...],
    resets_admin: bool,
    **flags: object,
) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints its listeners, then a line that starts with "ready" when clients can use it. Flags win over
    PENSTOCK_* variables, these over the config file. Port 0 means any free port.

    With --require-login, a cluster without users gets the user admin, who may do everything; the line
    "admin password: ..." shows the password, once. --reset-admin-password gives it another one: for a
    lone node, or for one node of a cluster while the others run.

    With --processes N, N nodes use N cores. Process K has the node id + 100 (K - 1), the ports + K - 1, and
    its data in DIR/process-K. They count as one machine: it holds one replica of a partition at most. A
    process that ends is started again.
    """
    flags["auto_create_topics"] = False if no_auto_create else None
    given = {name: value for name, value in flags.items() if value is not None}
    config = _load(config_file, {**key_values(settings), **given})
    if resets_admin and not config.require_login:
        raise Misconfigured("--reset-admin-password: without --require-login there are no passwords")
    check_lake(config.lake)
    from penstock.cli.machine import remaining_process, run_processes  # it imports this module

    if config.processes > 1:
        return run_processes(config, resets_admin=resets_admin)
    check_folders(config)
    run(remaining_process(config), resets_admin=resets_admin)
    return 0


def _load(config_file: Path | None, flags: dict[str, object]) -> NodeConfig:
    try:
        return load_node_config(
            flags=flags,
            environment=os.environ,
            toml_text=config_file.read_text() if config_file else "",
            toml_name=str(config_file or ""),
            defaults={"groups.initial_rebalance_delay_ms": SERVER_REBALANCE_DELAY_MS},
        )
    except (OSError, UnicodeDecodeError) as failure:
        raise Misconfigured(f"cannot read {config_file}: {failure}") from None
    except ConfigError as failure:
        raise Misconfigured(
            str(failure), "`penstock serve --help`; docs/configuration.md has every setting"
        ) from None


def run(
    config: NodeConfig, *, announcer: Announcer | None = None, resets_admin: bool = False, label: str = ""
) -> None:
    """Serves until a signal comes. `label` names this process in its log."""
    import uvloop

    configure_logging(config.log_level, label)
    _own_the_process()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            serving = _serve(config, announcer or Announcer(), time.perf_counter(), resets_admin=resets_admin)
            runner.run(serving)
    except NotAdmitted as refused:
        raise Problem(str(refused), refused.hint) from None
    except PenstockError as failure:
        raise Problem(str(failure), START_HINTS.get(type(failure), "")) from None


def check_folders(config: NodeConfig) -> None:
    """A machine whose processes are fewer than before would serve without the partitions of the others."""
    pattern = re.compile(r"process-(\d+)")
    found = [int(match[1]) for name in _names_in(config.data_dir) if (match := pattern.fullmatch(name))]
    last = max(found, default=1)
    if config.memory or last <= config.processes:
        return
    folder, node_id = process_folder(config.data_dir, last), config.node_id + ID_STEP * (last - 1)
    raise Misconfigured(
        f"{folder} has data of process {last}, and there would be only {config.processes}",
        f"start it with --processes {last}; to have fewer, `penstock cluster decommission {node_id}`, then stop it "
        "and delete that folder",
    )


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # the node will say what is wrong with it, or make it
        return []


def configure_logging(level: str, label: str = "") -> None:
    if level == "none":  # a handler that drops them: without one, Python prints warnings itself
        logging.basicConfig(handlers=[logging.NullHandler()])
        return
    name = f"{label} %(name)s" if label else "%(name)s"
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format=f"%(asctime)s %(levelname)s {name}: %(message)s"
    )


def _own_the_process() -> None:
    """Settings for a process that is only a broker; an embedded broker does not change its host's."""
    # The flush thread needs the interpreter for microseconds, and with the default of 5 ms a busy loop lets it wait
    # that long before acks=all can be answered.
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    _keep_freed_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS has a hard limit that cannot be asked for
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Keeps freed memory in the process. glibc returns the memory of each large frame to the system, and every page of
    the next one costs a fault: half of the CPU of receiving it. Other allocators have no such setting."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_TRIM_THRESHOLD, FREED_BYTES_KEPT)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)


async def _serve(
    config: NodeConfig, announcer: Announcer, began_seconds: float, *, resets_admin: bool
) -> None:
    with loading_modules():
        from penstock.service import Service

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    objects = LongLivedObjects()
    first = _FirstUser(announcer)
    service = Service(config, on_growth=objects.exclude, on_first_user=first.show)
    try:
        await service.start()
        objects.exclude(replicas=0)
    except OSError as failure:  # before the first log is open there is no StorageError
        raise StorageError(f"{failure.filename or 'starting'}: {failure.strerror or failure}") from None
    try:
        announcer.listening(config, service)
        if service.max_connections < config.limits.max_connections:
            log.info(
                "at most %d connections: the system does not allow this process more files (raise `ulimit -n`)",
                service.max_connections,
            )
        if await _is_ready(service, stop):
            if resets_admin and not first.is_new:
                await first.reset(service)
            announcer.ready((time.perf_counter() - began_seconds) * 1000)
            async with writing_tables(config, service):
                await stop.wait()
    finally:
        await service.stop()
    announcer.stopped()


class _FirstUser:
    """Tells the password of `admin`."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self.is_new = False
        """Whether this run has made the user."""

    def show(self, user: str, password: str) -> None:
        """Called when the cluster has no users yet."""
        self.is_new = True
        self._announcer.first_user(user, password)

    async def reset(self, service: "Service") -> None:
        node = service.node
        assert node is not None
        user, password = await node.access_admin.reset_first_user()
        node.audit.password_reset(user)
        log.warning(
            "the password of %s was reset, as --reset-admin-password says: leave it out next time", user
        )
        self.show(user, password)


async def _is_ready(service: "Service", stop: asyncio.Event) -> bool:
    """Waits until clients are served, or a signal comes."""
    loop = asyncio.get_running_loop()
    ready, stopped = loop.create_task(service.wait_ready()), loop.create_task(stop.wait())
    await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not ready.done():
        ready.cancel()
        return False
    ready.result()
    return True
