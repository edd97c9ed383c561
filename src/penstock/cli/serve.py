"""`penstock serve`: runs one node until a signal stops it."""

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.build import pure_python
from penstock.cli.connection import key_values
from penstock.cli.help import examples
from penstock.cli.long_lived import LongLivedObjects
from penstock.cli.problem import Misconfigured, Problem
from penstock.cli.table_writer import check_lake, writing_tables
from penstock.config import DEFAULT_LISTENER, Listener, NodeConfig, load_node_config
from penstock.config.node import SERVER_REBALANCE_DELAY_MS
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
    CorruptLog: "the disk returned other bytes than were written: restore the folder from a backup",
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
    )
)
@click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              envvar="PENSTOCK_CONFIG", show_envvar=True,
              help="A TOML file with these and more settings.")  # fmt: skip
@click.option("--data-dir", metavar="DIR", help="The folder of all data.  [default: penstock-data]")
@click.option("--memory", is_flag=True, default=None,
              help="Keep everything in memory instead; nothing survives.")  # fmt: skip
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
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints its listeners, then a line that starts with "ready" when clients can use it. Flags win over
    PENSTOCK_* variables, these over the config file. Port 0 means any free port.

    With --require-login, a cluster without users gets the user admin, who may do everything; the line
    "admin password: ..." shows the password, once. --reset-admin-password gives it another one: for a
    lone node, or for one node of a cluster while the others run.
    """
    auto_create = {"auto_create_topics": False if no_auto_create else None}
    config = _load(config_file, {**key_values(settings), **flags, **auto_create})
    if resets_admin and not config.require_login:
        raise Misconfigured("--reset-admin-password: without --require-login there are no passwords")
    check_lake(config.lake)
    run(config, resets_admin=resets_admin)


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


def run(config: NodeConfig, *, resets_admin: bool = False) -> None:
    """Serves until a signal comes."""
    import uvloop

    _configure_logging(config.log_level)
    _own_the_process()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, time.perf_counter(), resets_admin=resets_admin))
    except NotAdmitted as refused:
        raise Problem(str(refused), refused.hint) from None
    except PenstockError as failure:
        raise Problem(str(failure), START_HINTS.get(type(failure), "")) from None


def _configure_logging(level: str) -> None:
    if level == "none":  # a handler that drops them: without one, Python prints warnings itself
        logging.basicConfig(handlers=[logging.NullHandler()])
        return
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
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


async def _serve(config: NodeConfig, began_seconds: float, *, resets_admin: bool) -> None:
    from penstock.service import Service

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    objects = LongLivedObjects()
    first = _FirstUser()
    service = Service(config, eager_http=True, on_growth=objects.exclude, on_first_user=first.show)
    try:
        await service.start()
        objects.exclude(replicas=0)
    except OSError as failure:  # before the first log is open there is no StorageError
        raise StorageError(f"{failure.filename or 'starting'}: {failure.strerror or failure}") from None
    try:
        _announce(config, service)
        warn_of_open_ports(config)
        if service.max_connections < config.limits.max_connections:
            log.info(
                "at most %d connections: the system does not allow this process more files (raise `ulimit -n`)",
                service.max_connections,
            )
        if await _is_ready(service, stop):
            if resets_admin and not first.is_new:
                await first.reset(service)
            click.echo(f"ready   in {(time.perf_counter() - began_seconds) * 1000:.0f} ms; Ctrl-C stops it")
            async with writing_tables(config, service):
                await stop.wait()
    finally:
        await service.stop()
    click.echo("stopped")


class _FirstUser:
    """Prints the password of `admin`, which is kept nowhere."""

    is_new = False
    """Whether this run has made the user."""

    def show(self, user: str, password: str) -> None:
        """Called when the cluster has no users yet."""
        self.is_new = True
        click.echo(f"{user} password: {password}")
        sys.stdout.flush()

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


def _announce(config: NodeConfig, service: "Service") -> None:
    for listener in service.listeners:
        click.echo(f"kafka   {listener.bind}{_shown(listener)}")
        if listener.advertise is not None:
            click.echo(f"        advertised as {listener.advertise}")
    if service.http_url is not None:
        click.echo(f"http    {service.http_url}")
        click.echo(f"console {service.http_url}/console/")
    if service.cluster_address is not None:
        click.echo(f"cluster {service.cluster_address}")
    click.echo(f"data    {'in memory' if config.memory else os.path.abspath(config.data_dir)}")
    if note := pure_python():
        click.echo(f"build   {note}")


def _shown(listener: Listener) -> str:
    """What a client must know to use the listener, beside its address."""
    facts = [] if listener.name == DEFAULT_LISTENER else [listener.name]
    facts += [] if listener.protocol == "PLAINTEXT" else [listener.protocol, *(listener.mechanisms or ())]
    return f"  ({', '.join(facts)})" if facts else ""


def warn_of_open_ports(config: NodeConfig) -> None:
    """Other machines can use these ports, and no port asks who they are; or passwords go there as they are."""
    http = config.http
    if config.require_login and http is not None and not http.is_loopback and config.http_encryption is None:
        line = f"WARNING: clients send passwords and tokens to the HTTP port {http} without TLS"
        click.secho(line, err=True, fg="red", bold=True)
    ports = open_ports(config)
    if not ports:
        return
    lines = (
        "WARNING: everyone who can reach this machine can read, write and delete everything here:",
        *(f"         {port} needs no login" for port in ports),
        "         start the node with --require-login and TLS (docs/security.md), or listen on 127.0.0.1",
    )
    click.secho("\n".join(lines), err=True, fg="red", bold=True)


def open_ports(config: NodeConfig) -> list[str]:
    """The ports for clients that can be reached from other machines and need no login."""
    ports = [
        f"the Kafka port {listener.bind}"
        for listener in config.kafka_listeners
        if not (listener.bind.is_loopback or config.require_login or listener.has_login)
    ]
    http, tls = config.http, config.http_encryption
    certificates = tls is not None and tls.client_certificates == "required"
    if http is not None and not (http.is_loopback or config.require_login or certificates):
        ports.append(f"the HTTP port {http}")
    return ports
