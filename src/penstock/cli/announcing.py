"""How a node tells its operator that it serves: its listeners, the first password, and warnings."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.build import pure_python
from penstock.config import DEFAULT_LISTENER, Listener, NodeConfig

if TYPE_CHECKING:
    from penstock.service import Service


class Announcer:
    """Prints what happens to the node of this process."""

    def listening(self, config: NodeConfig, service: "Service") -> None:
        for line in listener_lines(config, service):
            click.echo(line)
        warn_of_open_ports(config)

    def first_user(self, user: str, password: str) -> None:
        """The password is kept nowhere."""
        click.echo(f"{user} password: {password}")
        sys.stdout.flush()

    def ready(self, after_ms: float) -> None:
        click.echo(f"ready   in {after_ms:.0f} ms; Ctrl-C stops it")

    def stopped(self) -> None:
        click.echo("stopped")


def listener_lines(config: NodeConfig, service: "Service") -> Iterator[str]:
    """One line for each port, in words that scripts may read, and for the data."""
    for listener in service.listeners:
        yield f"kafka   {listener.bind}{_shown(listener)}"
        if listener.advertise is not None:
            yield f"        advertised as {listener.advertise}"
    if service.http_url is not None:
        yield f"http    {service.http_url}"
        yield f"console {service.http_url}/console/"
    if service.cluster_address is not None:
        yield f"cluster {service.cluster_address}"
    yield f"data    {'in memory' if config.memory else os.path.abspath(config.data_dir)}"
    if note := pure_python():
        yield f"build   {note}"


def _shown(listener: Listener) -> str:
    """What a client must know to use the listener, beside its address."""
    facts = [] if listener.name == DEFAULT_LISTENER else [listener.name]
    facts += [] if listener.protocol == "PLAINTEXT" else [listener.protocol, *(listener.mechanisms or ())]
    return f"  ({', '.join(facts)})" if facts else ""


def warn_of_open_ports(config: NodeConfig, *others: NodeConfig) -> None:
    """Other machines can use these ports, and no port asks who they are; or passwords go there as they are. `others`
    are further processes of this machine."""
    http = config.http
    if config.require_login and http is not None and not http.is_loopback and config.http_encryption is None:
        line = f"WARNING: clients send passwords and tokens to the HTTP port {http} without TLS"
        click.secho(line, err=True, fg="red", bold=True)
    ports = [port for one in (config, *others) for port in open_ports(one)]
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
