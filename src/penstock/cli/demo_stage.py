"""Shared by the chapters of the demo: the broker, printing, and the figures for the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from confluent_kafka.admin import NewTopic

from penstock.cli.broker_process import BrokerProcess
from penstock.cli.connection import Connection
from penstock.cli.output import console


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    label: str
    value: int


def create_topics(connection: Connection, *names: str, partitions: int, replicas: int = 1) -> None:
    wanted = [NewTopic(name, partitions, replicas) for name in names]
    admin = connection.admin()  # held: its requests die with it
    for name, future in admin.create_topics(wanted).items():
        connection.wait(future, f"creating {name}")


class Stage:
    def __init__(self, *, folder: Path, messages: int, quiet: bool) -> None:
        self.messages = messages
        self.figures: list[Figure] = []
        self._folder = folder
        self._broker: BrokerProcess | None = None
        self._out = console()
        self._out.quiet = quiet

    @property
    def broker(self) -> BrokerProcess:
        assert self._broker is not None
        return self._broker

    @property
    def connection(self) -> Connection:
        return Connection(bootstrap=self.broker.bootstrap)

    @property
    def scratch(self) -> Path:
        """A folder for the chapters' files; it is deleted at the end."""
        return self._folder

    def start_broker(self) -> BrokerProcess:
        """A new process on the same folder and, once there was one, on the same port."""
        port = self._broker.port if self._broker is not None else 0
        flags = ["--data-dir", str(self._folder / "data"), "--http", "127.0.0.1:0", "--log-level", "warning"]
        self._broker = BrokerProcess(self._folder, *flags, port=port)
        return self._broker

    def create_topics(self, *names: str, partitions: int) -> None:
        create_topics(self.connection, *names, partitions=partitions)

    def clear(self) -> None:
        if self._broker is not None:
            self._broker.stop()

    def chapter(self, title: str) -> None:
        self._out.print(f"\n[bold]{title}[/bold]")

    def say(self, line: str) -> None:
        self._out.print(f"  [green]✓[/green] {line}")

    def show(self, part: object) -> None:
        self._out.print(part)

    def figure(self, name: str, label: str, value: float) -> None:
        """Something measured, for the end: `name` for programs, `label` for people."""
        self.figures.append(Figure(name=name, label=label, value=round(value)))

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A spinner on a terminal, nothing elsewhere."""
        if self._out.is_terminal and not self._out.quiet:
            with self._out.status(what):
                yield
        else:
            yield
