"""Draws the plots of docs/benchmarks.md, from the tables on that page.

The tables are the only copy of the figures: a benchmark writes its table (page.py), and the plots follow from it. Run
this file by itself to draw them again. The plots are plain SVG: they scale, need no library, and a change of a figure
is a change of one line.
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
FOLDER = PAGE.parent / "plots"

WIDTH, LABEL_WIDTH, VALUE_WIDTH = 760, 270, 90
BAR_HEIGHT, GROUP_GAP, TOP = 15, 9, 58
COLORS = ("#1f77b4", "#b0b7bf", "#d9a441", "#7a9e7e", "#9b7bb5")
TEXT, FAINT = "#444b54", "#9aa3ad"

Row = list[str]


class Group(NamedTuple):
    """One label with a bar for each series."""

    label: str
    values: Sequence[float]


class Plot(NamedTuple):
    title: str
    unit: str
    series: Sequence[str]
    groups: Sequence[Group]
    around_one: bool = False
    """Whether bars are ratios, drawn on a logarithmic scale from 1."""


# --- reading the page


def table(page: str, first_head: str) -> list[Row]:
    """The rows of the table whose first column has this head."""
    lines = iter(page.splitlines())
    for line in lines:
        if line.startswith("|") and _cells(line)[0] == first_head:
            next(lines)
            return list(_rows(lines))
    raise SystemExit(f"{PAGE.name} has no table that begins with the column {first_head!r}")


def _rows(lines: Iterator[str]) -> Iterator[Row]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield _cells(line)


def _cells(line: str) -> Row:
    return [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]


def number(cell: str) -> float:
    found = re.search(r"\d[\d,]*\.?\d*", cell)
    if found is None:
        raise SystemExit(f"{PAGE.name}: {cell!r} should be a number")
    return float(found[0].replace(",", ""))


# --- what is drawn


def plots(page: str) -> dict[str, Plot]:
    loads = table(page, "load")
    queues = table(page, "system")
    cluster = table(page, "acks=all, 3 replicas, 6 partitions")
    spark = [row for row in table(page, "million rows a second") if "20 M" not in row[0]]
    both = ("Penstock", "Apache Kafka")
    return {
        "overview": _overview(page),
        "kafka-produce": Plot(
            "Produce, one node", "thousand messages/s", both, [_pair(row, 1, 2) for row in loads]
        ),
        "kafka-consume": Plot(
            "Consume, one node", "thousand messages/s", both, [_pair(row, 4, 5) for row in loads]
        ),
        "cluster": Plot(
            "Produce, three nodes, acks=all", "messages/s", both, [_pair(row, 1, 2) for row in cluster]
        ),
        "queues": Plot(
            "A work queue: received and acknowledged, one consumer",
            "messages/s",
            ("",),
            [Group(row[0], (number(row[2]),)) for row in queues],
        ),
        "spark": Plot(
            "Spark",
            "million rows/s",
            ("Penstock", "Spark's Kafka connector"),
            [_pair(row, 1, 2) for row in spark],
        ),
    }


def _pair(row: Row, ours: int, theirs: int) -> Group:
    return Group(row[0], (number(row[ours]), number(row[theirs])))


def _overview(page: str) -> Plot:
    loads = table(page, "load")
    cluster = table(page, "acks=all, 3 replicas, 6 partitions")
    queues = {row[0]: number(row[2]) for row in table(page, "system")}
    spark = {row[0]: number(row[3]) for row in table(page, "million rows a second")}
    rest = {row[0]: row for row in table(page, "")}
    ours = queues["Penstock, its own client"]
    groups = [
        ("Kafka: produce, one node", _mean(number(row[3]) for row in loads)),
        ("Kafka: consume, one node", _mean(number(row[6]) for row in loads)),
        ("Kafka: produce, three nodes, 100 B", number(cluster[0][3])),
        ("Kafka: time to the first answer", number(rest["start to first answer, s"][3])),
        ("Kafka: idle memory", number(rest["idle memory, MB"][3])),
        ("RabbitMQ: queue, acknowledged", ours / queues["RabbitMQ, aio-pika"]),
        ("NATS: queue, acknowledged", ours / queues["NATS, nats-py"]),
        ("Spark's connector: read 100 B", spark["noop, 2 M of 100 B, none"]),
        ("Spark's connector: write 100 B", spark["sink, 2 M of 100 B, none"]),
    ]
    title = "Penstock against ... : how many times better (1 = equal)"
    return Plot(title, "", ("",), [Group(label, (value,)) for label, value in groups], around_one=True)


def _mean(ratios: Iterator[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


# --- drawing


def svg(plot: Plot) -> str:
    bars = len(plot.series)
    step = bars * BAR_HEIGHT + GROUP_GAP
    height = TOP + step * len(plot.groups) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="14" font-weight="600">{_escaped(plot.title)}</text>',
        *_legend(plot),
    ]
    scale = _Scale(plot)
    for place, group in enumerate(plot.groups):
        lines += _group(group, TOP + place * step, bars, scale)
    if plot.around_one:
        x = LABEL_WIDTH + scale.zero
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 8}" stroke="{FAINT}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


class _Scale:
    """Where a value's bar begins and ends."""

    def __init__(self, plot: Plot) -> None:
        values = [value for group in plot.groups for value in group.values]
        self._around_one = plot.around_one
        room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
        if plot.around_one:
            lowest, highest = min(0.0, *map(math.log, values)), max(map(math.log, values))
            self._per_unit = room / (highest - lowest)
            self.zero = -lowest * self._per_unit
        else:
            self._per_unit = room / max(values)
            self.zero = 0.0

    def bar(self, value: float) -> tuple[float, float]:
        end = self.zero + (math.log(value) if self._around_one else value) * self._per_unit
        return min(self.zero, end), max(self.zero, end)


def _legend(plot: Plot) -> Iterator[str]:
    x = 10.0
    for place, name in enumerate(plot.series):
        if name:
            yield f'<rect x="{x}" y="31" width="11" height="11" fill="{COLORS[place]}"/>'
            yield f'<text x="{x + 16}" y="41">{_escaped(name)}</text>'
            x += 32 + 7 * len(name)
    yield f'<text x="{x}" y="41" fill="{FAINT}">{_escaped(plot.unit)}</text>'


def _group(group: Group, y: float, bars: int, scale: _Scale) -> Iterator[str]:
    middle = y + bars * BAR_HEIGHT / 2 + 4
    yield f'<text x="{LABEL_WIDTH - 8}" y="{middle:.0f}" text-anchor="end">{_escaped(group.label)}</text>'
    for place, value in enumerate(group.values):
        left, right = scale.bar(value)
        top = y + place * BAR_HEIGHT
        yield (
            f'<rect x="{LABEL_WIDTH + left:.1f}" y="{top}" width="{max(right - left, 1):.1f}" '
            f'height="{BAR_HEIGHT - 2}" fill="{COLORS[place]}"/>'
        )
        yield f'<text x="{LABEL_WIDTH + right + 5:.1f}" y="{top + 11}" fill="{FAINT}">{_shown(value)}</text>'


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def draw() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, plot in plots(PAGE.read_text()).items():
        (FOLDER / f"{name}.svg").write_text(svg(plot))


if __name__ == "__main__":
    draw()
