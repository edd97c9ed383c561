"""`python -m penstock.spark.lake.background_process`: the process by which a node writes tables. `serve` starts it.

Its standard input has a line with `WriterSettings`, and then one with the names of the topics each time that these
change. When the input ends, the node has ended, and so does this process, in whatever it does: a table is never half
written.
"""

import logging
import os
import sys
import threading
from typing import IO, Final

import msgspec

from penstock.client.wire import ClientSettings, Cluster
from penstock.errors import PenstockError
from penstock.spark.lake.background_writer import BackgroundWriter
from penstock.spark.lake.folder import DELTA, Lake
from penstock.spark.security_options import security_of

log = logging.getLogger("penstock.lake")

NICENESS: Final = 10
"""The node's own threads come first."""


class WriterSettings(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap_servers: str
    root: str
    interval_ms: int
    batch_bytes: int
    client_config: str = ""
    """A file."""
    log_level: str = "INFO"


class _Topics:
    """The topics that the node wants written."""

    def __init__(self, lines: IO[bytes]) -> None:
        self._lines = lines
        self._names: frozenset[str] = frozenset()
        self._changed = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def after(self, wait_s: float) -> frozenset[str]:
        """The names, when they change or the time is over."""
        self._changed.wait(wait_s)
        self._changed.clear()
        return self._names

    def _follow(self) -> None:
        for line in self._lines:
            self._names = frozenset(msgspec.json.decode(line, type=list[str]))
            self._changed.set()
        os._exit(0)


def read_client_config(path: str) -> dict[str, str]:
    """Lines of NAME=VALUE, as Kafka's tools have them."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def client_settings(settings: WriterSettings) -> ClientSettings:
    given = read_client_config(settings.client_config) if settings.client_config else {}
    return ClientSettings(
        bootstrap_servers=given.get("bootstrap.servers", settings.bootstrap_servers),
        client_id="penstock-lake",
        security=security_of(given),
    )


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=WriterSettings)
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    os.nice(NICENESS)
    try:
        _write(settings, sys.stdin.buffer)
    except (PenstockError, OSError) as problem:
        log.error("no table is written at present: %s", problem)
        sys.exit(1)


def _write(settings: WriterSettings, lines: IO[bytes]) -> None:
    lake = Lake(settings.root, table_format=DELTA)
    with Cluster(client_settings(settings)) as cluster:
        writer = BackgroundWriter(cluster, lake, batch_bytes=settings.batch_bytes)
        topics = _Topics(lines)
        while True:
            writer.write_all(topics.after(settings.interval_ms / 1000))


if __name__ == "__main__":
    main()
