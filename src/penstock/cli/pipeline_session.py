"""A Spark session for one command: started without output, stopped at the end, each error reported in one sentence.

PySpark is imported when a session starts, never with the module: everything else works without it.

The JVM's output to stderr (its log, warnings about modules) goes to a file that is deleted at the end. If the JVM does
not start, the command shows the file's last lines. With `--verbose`, all output goes to stderr.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli import login
from penstock.cli.common_options import hand_over
from penstock.cli.connection import BOOTSTRAP_OPTION, Connection
from penstock.cli.key_values import key_values, key_values_or_files
from penstock.cli.problem import Misconfigured, Problem
from penstock.errors import ConfigError, PenstockError
from penstock.spark.java import why_not
from penstock.spark.spark_home import quick_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST_LINES = 5
"""How many lines of the JVM's output are shown when it does not start."""

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",  # of 200, a machine alone would spend its time on starting empty tasks
}


class OnSpark(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pipeline runs, and which brokers it talks to."""

    bootstrap: str
    master: str | None
    conf: dict[str, str]
    options: dict[str, str]
    verbose: bool

    @contextmanager
    def session(self, name: str) -> "Iterator[SparkSession]":
        """Errors within it become a Problem."""
        reason = why_not()
        if reason:
            raise Problem(reason)
        Connection(bootstrap=self.bootstrap).check_reachable()
        with _explained():
            spark = self._start(name)
            try:
                yield spark
            finally:
                spark.stop()

    def _start(self, name: str) -> "SparkSession":
        from pyspark.sql import SparkSession

        builder: Any = SparkSession.builder.appName(f"penstock-{name}")
        for key, value in self._settings().items():
            builder = builder.config(key, value)
        with _quiet(self.verbose) as said:
            try:
                spark: SparkSession = builder.getOrCreate()
            except Exception as problem:  # noqa: BLE001 - Java's reasons come as many kinds
                raise Problem(f"Spark does not start: {_first_line(problem)}", _last_lines(said)) from None
        return spark

    def _settings(self) -> dict[str, str]:
        master = self.master or self.conf.get("spark.master")
        if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has its own
            master = "local[*]"
        settings = {**QUIET, "spark.log.level": "WARN" if self.verbose else "ERROR"}
        if master is not None:
            settings["spark.master"] = master
        if master is not None and master.startswith("local"):
            quick_start()
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            settings |= LOCAL
        return {**settings, **self.conf}


@contextmanager
def _explained() -> Iterator[None]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from penstock.spark.pipelines.running import reason

    try:
        yield
    except ConfigError as problem:
        raise Misconfigured(str(problem)) from None
    except PenstockError as problem:
        raise Problem(str(problem)) from None
    except (PySparkException, Py4JError) as problem:
        raise Problem(reason(problem), "--verbose shows Spark's own log") from None


@contextmanager
def _quiet(verbose: bool) -> Iterator[IO[bytes] | None]:
    """While this lasts, new processes have another stderr."""
    if verbose:
        yield None
        return
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(before, 2)
            os.close(before)


def _first_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


def _last_lines(said: IO[bytes] | None) -> str:
    if said is None:
        return ""
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines()
    return "\n       ".join(["what Java said last:", *lines[-LAST_LINES:]]) if lines else ""


def _on_spark(
    bootstrap: str, master: str | None, conf: tuple[str, ...], options: tuple[str, ...], verbose: bool
) -> OnSpark:
    if master is not None and master.startswith("sc://"):
        raise click.UsageError(
            f"--master {master}: expected a master such as local[*], spark://HOST:PORT or yarn"
        )
    return OnSpark(
        bootstrap=bootstrap,
        master=master,
        conf=key_values(conf),
        options=login.java_settings(login.settings()) | key_values_or_files(options),
        verbose=verbose,
    )


SPARK_OPTIONS = [
    BOOTSTRAP_OPTION,
    click.option("--master", metavar="URL",
                 help="Spark's master: local[4], spark://HOST:PORT, yarn, k8s://...  [default: local[*]]"),
    click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting, as often as needed."),
    click.option("-o", "--option", "options", multiple=True, metavar="NAME=VALUE|@FILE",
                 help="An option of the data source, or a file with one in a line; as often as needed."),
    click.option("--verbose", is_flag=True, help="Show Spark's own log."),
]  # fmt: skip
on_spark = hand_over("where", _on_spark, SPARK_OPTIONS)
"""Gives a command --bootstrap, the login, --master, --conf, --option and --verbose, as one `where` argument."""
