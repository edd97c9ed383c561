"""The results of the comparison with the connector, and their tables in Markdown."""

from collections.abc import Iterator

import msgspec
from spark_first import First
from spark_streams import MicroBatches

RATIOS = (
    ("batch, 100 B", ("noop", "count"), "100 B", 3.0),
    ("batch, 1 KB", ("noop",), "1000 B", 2.0),
    ("stream, 100 B", ("stream",), "100 B", 2.0),
    ("stream, 1 KB", ("stream",), "1000 B", 1.5),
    ("sink, later writes", ("sink",), "100 B", 1.5),
)
"""Rows of the summary that compare with the connector on the same broker: name, measures, size of records, goal."""
FIRST_QUERY_CPU_S = 3.0
FEW_RECORDS_MS = 200.0
ARCHIVE_AT_MOST = 1.2
EXACTLY_ONCE_AT_LEAST = 0.9


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Rows per second of one measure, by system."""

    measure: str
    label: str
    rates: dict[str, float]

    def ratio(self, other: str) -> float | None:
        return self.rates["penstock"] / self.rates[other] if other in self.rates else None


class Report(msgspec.Struct, kw_only=True):
    penstock_version: str
    spark_version: str
    connector_version: str | None
    kafka_version: str | None
    machine: str
    rounds: int
    first: dict[str, dict[str, First]] = msgspec.field(default_factory=dict)
    few: dict[str, MicroBatches] = msgspec.field(default_factory=dict)
    figures: list[Figure] = msgspec.field(default_factory=list)
    growth: list[Figure] = msgspec.field(default_factory=list)
    archive: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    once: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    history: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    decode: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)


def render(report: Report) -> str:
    parts = [
        _head(report),
        _summary(report),
        _figures(report),
        _others(report),
        _first(report),
        _growth(report),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _head(report: Report) -> Iterator[str]:
    connector = report.connector_version
    beside = f"Spark's Kafka connector {connector}" if connector else "no connector"
    kafka = f", Apache Kafka {report.kafka_version}" if report.kafka_version else ""
    yield (
        f"Penstock {report.penstock_version} on Spark {report.spark_version} (local[2]), {beside}{kafka}; everything "
        f"on {report.machine}; four partitions; medians of {report.rounds} rounds in turns (long ones: one)."
    )


def _figures(report: Report) -> Iterator[str]:
    yield "| million rows a second | penstock | connector | ratio | connector on Kafka | ratio |"
    yield "|---|---:|---:|---:|---:|---:|"
    for figure in report.figures:
        cells = [f"{figure.measure}, {figure.label}", _millions(figure.rates["penstock"])]
        for other in ("connector", "connector on Kafka"):
            ratio = figure.ratio(other)
            cells += ["-", "-"] if ratio is None else [_millions(figure.rates[other]), f"{ratio:.2f}"]
        yield "| " + " | ".join(cells) + " |"


def _others(report: Report) -> Iterator[str]:
    yield "| million rows a second | Penstock | beside it | ratio | goal |"
    yield "|---|---:|---:|---:|---:|"
    for label, rates in report.once.items():
        yield _row(
            f"sink exactly once, {label}",
            rates["exactly once"],
            rates["at least once"],
            "at least once",
            "0.9",
        )
    for label, rates in report.archive.items():
        yield _row(f"archive, {label}", rates["archive"], rates["parquet"], "Spark's Parquet writer", "0.83")
    for label, rates in report.history.items():
        yield _row(f"history, {label}", rates["history"], rates["parquet"], "Parquet", "0.8")
    for label, rates in report.decode.items():
        yield _row(f"decode, {label}", rates["penstock"], rates["aiokafka"], "aiokafka", "10")


def _row(label: str, ours: float, theirs: float, who: str, goal: str) -> str:
    return f"| {label} | {_millions(ours)} | {_millions(theirs)} ({who}) | {ours / theirs:.2f} | {goal} |"


def _summary(report: Report) -> Iterator[str]:
    """The goals, each with the least or worst figure that was found."""
    yield "| measure | found | goal |"
    yield "|---|---:|---:|"
    for label, measures, size, goal in RATIOS:
        ratios = [
            ratio
            for each in report.figures
            if each.measure in measures and size in each.label and (ratio := each.ratio("connector"))
        ]
        if ratios:
            yield f"| {label}, times the connector | {_span(ratios)} | {goal:g} |"
    yield from _summary_of_first(report)
    if "penstock" in report.few:
        yield f"| micro-batch of few records, p50 ms | {report.few['penstock'].whole_ms:.0f} | {FEW_RECORDS_MS:g} |"
    times = [rates["parquet"] / rates["archive"] for rates in report.archive.values()]
    yield f"| archive, times the seconds of Spark's Parquet writer | {_span(times)} | {ARCHIVE_AT_MOST:g} |"
    once = [rates["exactly once"] / rates["at least once"] for rates in report.once.values()]
    yield f"| sink exactly once, times at least once | {_span(once)} | {EXACTLY_ONCE_AT_LEAST:g} |"


def _summary_of_first(report: Report) -> Iterator[str]:
    writes, queries = report.first["write"], report.first["query"]
    for name in (name for name in writes if name.startswith("penstock")):
        if "connector" in writes:
            ratio = writes["connector"].first_s / writes[name].first_s
            yield f"| sink, first write of a session ({name}), times the connector | {ratio:.2f} | 1 |"
        spent = queries[name].python_cpu_s
        yield f"| first query of a session ({name}), s of CPU in Python | {spent:.1f} | {FIRST_QUERY_CPU_S:g} |"


def _first(report: Report) -> Iterator[str]:
    yield "| in a session of its own, s | first query | CPU in Python | first write | CPU in Python | later writes |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name, query in report.first["query"].items():
        write = report.first["write"][name]
        yield (
            f"| {name} | {query.first_s:.1f} | {query.python_cpu_s:.1f} | {write.first_s:.1f} | "
            f"{write.python_cpu_s:.1f} | {write.later_s:.2f} |"
        )
    yield ""
    yield "| micro-batches of few records, p50 ms | whole | of that, addBatch |"
    yield "|---|---:|---:|"
    for name, few in report.few.items():
        yield f"| {name} | {few.whole_ms:.0f} | {few.add_batch_ms:.0f} |"


def _growth(report: Report) -> Iterator[str]:
    yield "| growth: seconds for each million rows | penstock | beside it |"
    yield "|---|---:|---:|"
    for figure in report.growth:
        others = [f"{1e6 / rate:.2f} ({name})" for name, rate in figure.rates.items() if name != "penstock"]
        label = f"{figure.measure}, {figure.label}"
        yield f"| {label} | {1e6 / figure.rates['penstock']:.2f} | {', '.join(others) or '-'} |"


def _span(found: list[float]) -> str:
    low, high = f"{min(found):.2f}", f"{max(found):.2f}"
    return low if low == high else f"{low} - {high}"


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f}"
