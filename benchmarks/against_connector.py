"""Penstock's Spark source and sink beside Spark's own Kafka connector: `make bench-spark`.

Three systems on the same records:

    penstock            format("penstock") on a Penstock broker
    connector           Spark's Kafka connector (spark-sql-kafka-0-10) on the same Penstock broker
    connector on Kafka  the same connector on Apache Kafka

    first     the first query and the first write of a session, each in a session of its own
    batch     read to noop, and count
    stream    available now in five micro-batches, to noop; the micro-batches' own time
    few       micro-batches of few records, while records come all the time
    sink      key and value from memory to a topic of four partitions; also exactly once against at least once
    archive   a topic to a Delta table, against Spark's Parquet writer on the same rows
    history   archive plus live tail, against reading the archive's Parquet files directly
    growth    batch, stream and archive with more and more records; --records 50 adds 50 million
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
import spark_first
import spark_streams
import spark_tables
from penstock_launcher import Penstock
from pyspark.sql import SparkSession
from spark_load import Cell, System, fill, frame, timed_count, timed_noop, timed_sink, timed_stream
from spark_report import Figure, Report, render
from spark_session import session

import penstock
from penstock.spark.java import why_not

CELLS = [
    Cell(records=records, size_bytes=size, compression=compression)
    for records, size in ((2_000_000, 100), (1_000_000, 1000))
    for compression in ("none", "zstd")
]
GROWTH = [Cell(records=records, size_bytes=100, compression="none") for records in (1_000_000, 10_000_000)]
BRIEF = 100
LARGE = 5_000_000
"""From this many records on, one round is enough: it averages over its own length."""


def main() -> None:
    options = _options()
    reason = why_not()
    if reason:
        sys.exit(f"error: {reason}")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    more = [msgspec.structs.replace(GROWTH[0], records=millions * 1_000_000) for millions in options.records]
    cells, growth = ([_divided(cell, options.divide) for cell in given] for given in (CELLS, GROWTH + more))
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-spark-"))
    try:
        with ExitStack() as stack:
            report = measure(stack, folder, cells, growth, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _save(report, to_page=options.publish)


def _divided(cell: Cell, by: int) -> Cell:
    return msgspec.structs.replace(cell, records=cell.records // by)


def measure(stack: ExitStack, folder: Path, cells: list[Cell], growth: list[Cell], rounds: int) -> Report:
    version, jars = _connector()
    ours = stack.enter_context(_running(Penstock(folder / "penstock")))
    systems = [System(name="penstock", format="penstock", bootstrap=ours)]
    if jars:
        systems.append(System(name="connector", format="kafka", bootstrap=ours))
    theirs = _kafka(stack, folder) if jars else None
    if theirs is not None:
        systems.append(System(name="connector on Kafka", format="kafka", bootstrap=theirs))
    report = Report(
        penstock_version=penstock.__version__,
        spark_version=pyspark.__version__,
        connector_version=version,
        kafka_version=kafka_launcher.VERSION if theirs else None,
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        rounds=rounds,
    )
    _fill(systems, cells[0])
    of_first(report, systems[:2], cells[0], jars, rounds)
    spark = stack.enter_context(session(jars))
    warm_up(spark, systems, cells[0], folder)
    for cell in cells:
        if cell is not cells[0]:
            _fill(systems, cell)
        report.figures += reads(spark, systems, cell, rounds, folder)
    for cell in (cell for cell in cells if cell.compression == "none"):
        report.figures.append(sinks(spark, systems, cell, rounds))
        report.once[cell.label] = of_exactly_once(spark, systems[0], cell, rounds)
        report.archive[cell.label] = spark_tables.of_archiving(spark, systems[0], cell, folder, rounds)
        report.history[cell.label] = spark_tables.of_history(spark, systems[0], cell, folder, rounds)
    for system in systems[:2]:
        at = folder / f"few-{system.format}"
        report.few[system.name] = spark_streams.of_few_records(spark, system, f"few-{system.format}", at)
    of_growth(report, spark, systems[:2], growth, folder)
    report.decode = of_decoding()
    return report


def _fill(systems: list[System], cell: Cell) -> None:
    for bootstrap in dict.fromkeys(system.bootstrap for system in systems):
        say(f"filling {cell.topic} at {bootstrap}")
        fill(bootstrap, cell)
    os.sync()  # Kafka has not flushed, and its writing would go on while others read


def of_first(report: Report, systems: list[System], cell: Cell, jars: list[Path], rounds: int) -> None:
    """In sessions of their own, before the one of all other measures takes the memory."""
    variants = [(system.name, system, False) for system in systems]
    variants.insert(1, ("penstock with quick_start", systems[0], True))
    found: dict[str, dict[str, list[spark_first.First]]] = {"query": {}, "write": {}}
    for number in range(rounds):
        for what, by_name in found.items():
            for name, system, quick in variants:
                topic = cell.topic if what == "query" else f"first-{system.format}-{quick}-{number}"
                task = spark_first.Task(
                    what=what, system=system, topic=topic, jars=list(map(str, jars)), quick=quick
                )
                by_name.setdefault(name, []).append(spark_first.measured(task))
    report.first = {
        what: {name: _middle(all_of) for name, all_of in by_name.items()} for what, by_name in found.items()
    }
    say(f"first   {report.first}")


def _middle(found: list[spark_first.First]) -> spark_first.First:
    return spark_first.First(
        first_s=median(each.first_s for each in found),
        python_cpu_s=median(each.python_cpu_s for each in found),
        later_s=median(each.later_s for each in found),
    )


def of_growth(
    report: Report, spark: SparkSession, systems: list[System], cells: list[Cell], folder: Path
) -> None:
    for cell in cells:
        _fill(systems, cell)
        once = 1 if cell.records >= LARGE else report.rounds
        report.growth += reads(spark, systems, cell, once, folder / "growth")
        rates = spark_tables.of_archiving(spark, systems[0], cell, folder / "growth", 1)
        beside = {"penstock": rates["archive"], "Parquet": rates["parquet"]}
        report.growth.append(Figure(measure="archive", label=cell.label, rates=beside))


def warm_up(spark: SparkSession, systems: list[System], cell: Cell, folder: Path) -> None:
    """The JVM compiles, Python workers start: nothing of this is counted."""
    small = msgspec.structs.replace(cell, records=cell.records // 10)
    for bootstrap in dict.fromkeys(system.bootstrap for system in systems):
        fill(bootstrap, small)
    list(reads(spark, systems, small, 2, folder))
    rows = frame(spark, systems[0], small.topic).select("key", "value")
    for system in systems:
        timed_sink(
            rows, system, f"warm-{system.format}"
        )  # the first write of a session is a measure of its own


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
    if cell.records >= LARGE or cell.size_bytes > BRIEF:
        del jobs["count"]  # as long as noop, and of no other use
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


def of_exactly_once(spark: SparkSession, system: System, cell: Cell, rounds: int) -> dict[str, float]:
    """The sink with and without exactly-once writes, in turns."""
    rows = frame(spark, system, cell.topic).select("key", "value").persist()
    timed_count(rows, cell.records)
    seconds: dict[str, list[float]] = {"exactly once": [], "at least once": []}
    for number in range(rounds):
        for name, times in seconds.items():
            topic = f"{name.replace(' ', '-')}-{cell.size_bytes}-{number}"
            once = {"txnAppId": "bench", "txnVersion": "0"} if name == "exactly once" else {}
            times.append(timed_sink(rows, system, topic, **once))
    rows.unpersist()
    rates = {name: cell.records / median(times) for name, times in seconds.items()}
    say(f"sink    {cell.label}: " + ", ".join(f"{name} {rate / 1e6:.2f} M/s" for name, rate in rates.items()))
    return rates


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
    parser.add_argument(
        "--records",
        type=int,
        action="append",
        default=[],
        metavar="MILLIONS",
        help="a further size for the growth of cost, such as 50",
    )
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--divide", type=int, default=1, help="fewer records, for a quick look")
    return parser.parse_args()


if __name__ == "__main__":
    main()
