"""The connection of commands to a broker: the shared options, and librdkafka without its log.

librdkafka retries an unreachable broker until its timeout, and writes to stderr meanwhile. If the broker is not
running, or refuses the login, the command should say so at once, so it makes a connection of its own first."""

import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import click
import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ClusterMetadata

from penstock.cli import login, profiles
from penstock.cli.common_options import PROFILE_OPTION, QUIET_OPTION, Command, hand_over
from penstock.cli.kafka_problems import UNREACHABLE, explain, no_controller, not_ready, unreachable
from penstock.cli.key_values import key_values
from penstock.cli.problem import Problem

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 15.0
SECOND_LOOK_S = 3.0
"""How long the command tries to find out why there was no answer."""
RETRY_S = 15.0
RETRY_PAUSE_S = 0.5
"""How long, and how often, a request is repeated while the cluster has no controller: a new cluster begins without one,
and librdkafka does not repeat requests to the controller."""

T = TypeVar("T")

_silence = logging.getLogger("penstock.cli.librdkafka")
_silence.addHandler(logging.NullHandler())
_silence.propagate = False


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """The broker that a command talks to, and the client settings to do it with."""

    bootstrap: str
    settings: dict[str, str] = {}
    """librdkafka's, with the password."""

    def __repr__(self) -> str:
        return f"Connection({self.bootstrap!r})"

    @property
    def servers(self) -> str:
        """The addresses with their ports, as our own client wants them."""
        pairs = [_host_and_port(text) for text in self.bootstrap.split(",")]
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in pairs)

    def config(self, **settings: Any) -> dict[str, Any]:
        """librdkafka's configuration: the command's settings, then those of the user (-X)."""
        base = {"bootstrap.servers": self.bootstrap, "client.id": "penstock-cli", "log_level": 0}
        ours = {name.replace("_", "."): value for name, value in settings.items()}
        return {**base, **ours, **self.settings, "logger": _silence}

    def admin(self) -> AdminClient:
        self.check_reachable()
        return self._build(AdminClient, self.config())

    def producer(self, **settings: Any) -> Producer:
        self.check_reachable()
        return self._build(Producer, self.config(**settings))

    def consumer(self, **settings: Any) -> Consumer:
        self.check_reachable()
        return self._build(Consumer, self.config(**settings))

    def check_reachable(self) -> None:
        """Raises a Problem unless one of the addresses accepts a TCP connection, and the login if there is one."""
        self._reachable_address()
        if "security.protocol" in self.settings and (problem := self.refusal()) is not None:
            raise problem

    def _reachable_address(self) -> tuple[str, int]:
        reason = ""
        for text in self.bootstrap.split(","):
            address = _host_and_port(text)
            try:
                with socket.create_connection(address, CONNECT_TIMEOUT_S):
                    return address
            except OSError as failure:
                reason = failure.strerror or str(failure)
        raise unreachable(self.bootstrap, reason)

    def refusal(self) -> Problem | None:
        """Why the broker does not let this command in, if that can be said."""
        from penstock.cli.login_probe import find_problem  # loads Kafka's messages

        host, port = self._reachable_address()
        return find_problem(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", self.settings)

    def _build(self, client: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
        try:
            return client(config)
        except KafkaException as failure:  # an -X that librdkafka does not know
            raise click.UsageError(str(failure.args[0].str())) from None

    def metadata(self, admin: AdminClient, doing: str) -> ClusterMetadata:
        """Brokers and topics as the broker knows them, or a Problem that says what failed."""
        try:
            return admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as failure:
            if failure.args[0].code() in UNREACHABLE:
                raise self._no_answer() from None
            raise explain(failure, doing, self.bootstrap) from None

    def wait(self, future: "Future[T]", doing: str) -> T:
        """The future's result, or a Problem that says what failed."""
        try:
            return self._result(future, doing)
        except KafkaException as failure:
            raise explain(failure, doing, self.bootstrap) from None

    def change(self, ask: "Callable[[], Future[Any]]", doing: str, *, tolerated: int | None = None) -> bool:
        """Sends a request to the controller, again while there is none. False: it was refused with the tolerated
        code."""
        deadline = time.monotonic() + RETRY_S
        while True:
            try:
                self._result(ask(), doing)
            except KafkaException as failure:
                code = failure.args[0].code()
                if code == tolerated:
                    return False
                if code != KafkaError.NOT_CONTROLLER or time.monotonic() > deadline:
                    raise explain(failure, doing, self.bootstrap) from None
                time.sleep(RETRY_PAUSE_S)
            else:
                return True

    def _result(self, future: "Future[T]", doing: str) -> T:
        try:
            return future.result(REQUEST_TIMEOUT_S)
        except KafkaException as failure:
            if failure.args[0].code() in UNREACHABLE:
                raise self._no_answer() from None
            raise
        except TimeoutError:
            raise self._no_answer() from None
        except ValueError as failure:  # confluent-kafka checks some arguments itself
            raise click.UsageError(f"{doing}: {failure}") from None

    def _no_answer(self) -> Problem:
        """Why there was no answer: no broker, no login, a node that is starting, or no controller."""
        try:
            found = self.admin().list_topics(timeout=SECOND_LOOK_S)
        except Problem as unreachable_now:
            return unreachable_now
        except KafkaException:
            return self.refusal() or not_ready(self.bootstrap)
        if found.controller_id < 0:
            return no_controller(self.bootstrap, len(found.brokers))
        return unreachable(self.bootstrap, "no answer in time")


def _host_and_port(address: str) -> tuple[str, int]:
    """Reads HOST:PORT, [IPv6]:PORT or HOST."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or port.endswith("]"):
        return address.strip().strip("[]"), DEFAULT_PORT
    with suppress(ValueError):
        if 0 < int(port) < 65536 and host:
            return host.strip("[]"), int(port)
    raise click.UsageError(f"--bootstrap {address!r}: expected HOST:PORT")


def _settings(ctx: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    return key_values(pairs, parameter)


_bootstrap_option = click.option(
    "-b", "--bootstrap", metavar="HOST:PORT", envvar="PENSTOCK_BOOTSTRAP", default=DEFAULT_BOOTSTRAP,
    show_default=True, show_envvar=True, callback=profiles.address, help="The broker to talk to.",
)  # fmt: skip


def BOOTSTRAP_OPTION(command: Command) -> Command:
    """--bootstrap, and the options that go with it: the login, --profile and --quiet."""
    return _bootstrap_option(PROFILE_OPTION(QUIET_OPTION(login.LOGIN_OPTIONS(command))))


CONNECTION_OPTIONS = [
    BOOTSTRAP_OPTION,
    click.option("-X", "settings", multiple=True, metavar="NAME=VALUE", callback=_settings,
                 help="A librdkafka setting, as often as needed."),
]  # fmt: skip


def connect_to(bootstrap: str, settings: dict[str, str]) -> Connection:
    """`settings` are those of -X, which win over the login and the profile."""
    return Connection(bootstrap=bootstrap, settings=profiles.applied().kafka | login.settings() | settings)


connects = hand_over("connection", connect_to, CONNECTION_OPTIONS)
"""Gives a command --bootstrap and -X, and hands them over as `connection`."""
