"""The results of the comparison with the connector, and their tables in Markdown."""

from collections.abc import Iterator

import msgspec

GOALS = {"noop": 2.0, "count": 2.0, "stream": 1.5, "sink": 1.0}


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
    figures: list[Figure] = msgspec.field(default_factory=list)
    history: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    decode: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)


def render(report: Report) -> str:
    lines = [*_head(report), "", *_figures(report), "", *_others(report)]
    if report.connector_version:
        lines += ["", _goals(report)]
    return "\n".join(lines) + "\n"


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
    for label, rates in report.history.items():
        yield _row(f"history, {label}", rates["history"], rates["parquet"], "Parquet", "0.8")
    for label, rates in report.decode.items():
        yield _row(f"decode, {label}", rates["penstock"], rates["aiokafka"], "aiokafka", "10")


def _row(label: str, ours: float, theirs: float, who: str, goal: str) -> str:
    return f"| {label} | {_millions(ours)} | {_millions(theirs)} ({who}) | {ours / theirs:.2f} | {goal} |"


def _goals(report: Report) -> str:
    parts = []
    for name, goal in GOALS.items():
        ratios = [each.ratio("connector") or 0.0 for each in report.figures if each.measure == name]
        parts.append(f"{name} **{min(ratios, default=0.0):.2f}** (goal {goal:g})")
    return "Least ratio to the connector: " + ", ".join(parts) + "."


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f}"
