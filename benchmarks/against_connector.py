"""Penstock's Spark source and sink beside Spark's own Kafka connector: `make bench-spark`.

Three systems in one Spark session, on the same records:

    penstock            format("penstock") on a Penstock broker
    connector           Spark's Kafka connector (spark-sql-kafka-0-10) on the same Penstock broker
    connector on Kafka  the same connector on Apache Kafka

    batch     read to noop, and count
    stream    available now in five micro-batches, to noop; the micro-batches' own time
    sink      key and value from memory to a topic of four partitions
    history   archive plus live tail, against reading the archive's Parquet files directly
    decode    record batches to Arrow, against aiokafka's parser

Systems take turns within each round; figures are medians (of two, means). Without Maven or Kafka, what can be measured
is. Results go to .cache/bench/ as JSON and as Markdown.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import connector_jars
import decode
import kafka_launcher
import msgspec
import page
import pyspark
from penstock_launcher import Penstock
from pyspark.sql import DataFrame, SparkSession
from spark_load import Cell, System, fill, frame, timed_count, timed_noop, timed_sink, timed_stream
from spark_report import Figure, Report, render

import penstock
from penstock.spark import archive, history
from penstock.spark.java import why_not

CELLS = [
    Cell(records=records, size_bytes=size, compression=compression)
    for records, size in ((2_000_000, 100), (2_000_000, 1000), (20_000_000, 100))
    for compression in ("none", "zstd")
]
LARGE = 10_000_000
"""From this many records on, one round is enough: it averages over its own length."""


def main() -> None:
    options = _options()
    reason = why_not()
    if reason:
        sys.exit(f"error: {reason}")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    cells = [msgspec.structs.replace(cell, records=cell.records // options.divide) for cell in CELLS]
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-spark-"))
    try:
        with ExitStack() as stack:
            report = measure(stack, folder, cells, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _save(report, to_page=options.publish)


def measure(stack: ExitStack, folder: Path, cells: list[Cell], rounds: int) -> Report:
    version, jars = _connector()
    ours = stack.enter_context(_running(Penstock(folder / "penstock")))
    systems = [System(name="penstock", format="penstock", bootstrap=ours)]
    if jars:
        systems.append(System(name="connector", format="kafka", bootstrap=ours))
    theirs = _kafka(stack, folder) if jars else None
    if theirs is not None:
        systems.append(System(name="connector on Kafka", format="kafka", bootstrap=theirs))
    spark = stack.enter_context(_session(jars))
    report = Report(
        penstock_version=penstock.__version__,
        spark_version=pyspark.__version__,
        connector_version=version,
        kafka_version=kafka_launcher.VERSION if theirs else None,
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        rounds=rounds,
    )
    warm_up(spark, systems, cells[0], folder)
    for cell in cells:
        for bootstrap in dict.fromkeys(system.bootstrap for system in systems):
            say(f"filling {cell.topic} at {bootstrap}")
            fill(bootstrap, cell)
        os.sync()  # Kafka has not flushed, and its writing would go on while others read
        report.figures += reads(spark, systems, cell, 1 if cell.records >= LARGE else rounds, folder)
    for cell in (cell for cell in cells[:4] if cell.compression == "none"):
        report.figures.append(sinks(spark, systems, cell, rounds))
        report.history[cell.label] = of_history(spark, systems[0], cell, folder, rounds)
    report.decode = of_decoding()
    return report


def warm_up(spark: SparkSession, systems: list[System], cell: Cell, folder: Path) -> None:
    """The JVM compiles, Python workers start: nothing of this is counted."""
    small = msgspec.structs.replace(cell, records=cell.records // 10)
    for bootstrap in dict.fromkeys(system.bootstrap for system in systems):
        fill(bootstrap, small)
    list(reads(spark, systems, small, 2, folder))


def reads(
    spark: SparkSession, systems: list[System], cell: Cell, rounds: int, folder: Path
) -> Iterator[Figure]:
    jobs: dict[str, Callable[[System, int], float]] = {
        "noop": lambda system, _: timed_noop(frame(spark, system, cell.topic)),
        "count": lambda system, _: timed_count(frame(spark, system, cell.topic), cell.records),
        "stream": lambda system, number: timed_stream(
            spark,
            system,
            cell,
            folder / f"checkpoint-{system.format}-{cell.topic}-{abs(hash(system.name))}-{number}",
        ),
    }
    if cell.records >= LARGE:
        del jobs["count"]  # as long as noop, and of no other use at this size
    for measure, job in jobs.items():
        yield _turns(measure, cell, systems, rounds, job)


def sinks(spark: SparkSession, systems: list[System], cell: Cell, rounds: int) -> Figure:
    rows = frame(spark, systems[0], cell.topic).select("key", "value").persist()
    timed_count(rows, cell.records)
    try:
        return _turns(
            "sink", cell, systems, rounds, lambda system, number: timed_sink(
                rows, system, f"sink-{system.format}-{cell.size_bytes}-{number}"
            )
        )  # fmt: skip
    finally:
        rows.unpersist()


def _turns(
    measure: str, cell: Cell, systems: list[System], rounds: int, job: Callable[[System, int], float]
) -> Figure:
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    for number in range(rounds):
        for system in systems:
            try:
                seconds[system.name].append(job(system, number))
            except Exception:
                say(f"{measure} of {cell.label} by {system.name} failed")
                raise
    figure = Figure(
        measure=measure,
        label=cell.label,
        rates={name: cell.records / median(times) for name, times in seconds.items()},
    )
    say(f"{measure:7} {cell.label}: " + ", ".join(f"{n} {r / 1e6:.2f} M/s" for n, r in figure.rates.items()))
    return figure


def of_history(
    spark: SparkSession, system: System, cell: Cell, folder: Path, rounds: int
) -> dict[str, float]:
    path = str(folder / f"archive-{cell.topic}")
    archive(spark, cell.topic, path, bootstrap_servers=system.bootstrap)
    jobs: dict[str, Callable[[], DataFrame]] = {
        "history": lambda: history(spark, path, bootstrap_servers=system.bootstrap),
        "parquet": lambda: spark.read.parquet(path),
    }
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 1):
        for name, rows in jobs.items():
            took = timed_noop(rows())
            if number:
                seconds[name].append(took)
    rates = {name: cell.records / median(times) for name, times in seconds.items()}
    say(f"history {cell.label}: " + ", ".join(f"{name} {rate / 1e6:.2f} M/s" for name, rate in rates.items()))
    return rates


def of_decoding() -> dict[str, dict[str, float]]:
    found = {}
    for size in (100, 1000):
        for name, codec in decode.CODECS.items():
            count, batch = decode.make_batch(size, codec)
            found[f"{size} B, {name}"] = {
                "aiokafka": decode.records_per_second(decode.with_aiokafka, batch, count),
                "penstock": decode.records_per_second(decode.with_columns, batch, count),
            }
    return found


def _connector() -> tuple[str | None, list[Path]]:
    try:
        return connector_jars.fetch(pyspark.__version__)
    except kafka_launcher.Unavailable as reason:
        say(f"without the connector: {reason}")
        return None, []


def _kafka(stack: ExitStack, folder: Path) -> str | None:
    try:
        return stack.enter_context(_running(kafka_launcher.Kafka(kafka_launcher.fetch(), folder / "kafka")))
    except kafka_launcher.Unavailable as reason:
        say(f"without Apache Kafka: {reason}")
        return None


@contextmanager
def _running(broker: Penstock | kafka_launcher.Kafka) -> Iterator[str]:
    broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.stop()


@contextmanager
def _session(jars: list[Path]) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").appName("penstock-bench")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "6g",
        "spark.jars": ",".join(map(str, jars)),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _save(report: Report, *, to_page: bool) -> None:
    folder = kafka_launcher.CACHE / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "against-connector.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(report), indent=2)
    )
    text = render(report)
    (folder / "against-connector.md").write_text(text)
    if to_page:
        page.publish("bench-spark", text)
    print(text)
    say(f"written to {folder}/against-connector.json and .md")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--divide", type=int, default=1, help="fewer records, for a quick look")
    return parser.parse_args()


if __name__ == "__main__":
    main()
