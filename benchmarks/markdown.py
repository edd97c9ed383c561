"""A comparison as Markdown, for docs/benchmarks.md."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from results import CellResult, LatencyResult, Results

EDGE_STRETCHES = 3
"""A growing log's beginning and end are the medians of this many stretches."""


def render(results: Results) -> str:
    return "\n".join(_lines(results)) + "\n"


def _lines(results: Results) -> Iterator[str]:
    yield (
        f"Penstock {results.penstock_version} and Apache Kafka {results.kafka_version} on {results.machine}; "
        f"the client (librdkafka, one process) on the same cores; medians of {results.rounds} runs in turns. "
        "With `acks=all` Penstock flushes to the disk before it answers; Kafka, as by default, does not."
    )
    yield ""
    heads: tuple[str, ...] = (
        "load",
        "produce, Penstock",
        "Kafka",
        "ratio",
        "consume, Penstock",
        "Kafka",
        "ratio",
    )
    yield from _table(heads, (_cell(cell) for cell in results.cells))
    yield ""
    yield (
        "Thousands of messages per second. "
        f"Geometric mean of the ratios: **{results.geometric_mean:.2f}**; worst: {results.worst:.2f}."
    )
    yield ""
    heads = ("at 1,000 messages/s", "p50 ms, Penstock", "Kafka", "p99 ms, Penstock", "Kafka")
    flush = [
        "a flush of the disk alone",
        f"{results.flushes.p50_ms:.2f}",
        "-",
        f"{results.flushes.p99_ms:.2f}",
        "-",
    ]
    yield from _table(heads, [*(row for result in results.latencies for row in _latency(result)), flush])
    yield ""
    yield from _table(("", "Penstock", "Kafka", "ratio"), _rest(results))
    if results.log_us_per_message:
        yield ""
        yield _growth(results)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|---" + "|---:" * (len(heads) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _cell(result: CellResult) -> list[str]:
    row = [result.cell.label]
    for pair, ratio in zip((result.produce, result.consume), result.ratios, strict=True):
        row += [f"{pair[0] / 1000:,.0f}", f"{pair[1] / 1000:,.0f}", f"{ratio:.2f}"]
    return row


def _latency(result: LatencyResult) -> Iterator[list[str]]:
    for what, (ours, theirs) in (("acknowledged", result.acknowledged), ("delivered", result.delivered)):
        percentiles = (ours.p50_ms, theirs.p50_ms, ours.p99_ms, theirs.p99_ms)
        yield [f"{what}, acks={result.acks}", *(f"{value:.2f}" for value in percentiles)]


def _rest(results: Results) -> Iterator[list[str]]:
    start, idle = results.start_seconds, results.idle_bytes
    yield [
        "start to first answer, s",
        f"{start[0]:.2f}",
        f"{start[1]:.2f}",
        f"{start[1] / start[0]:.1f} x faster",
    ]
    yield [
        "idle memory, MB",
        *(f"{each / 1e6:.0f}" for each in idle),
        f"{idle[1] / max(1, idle[0]):.1f} x less",
    ]
    for each in results.scaling:
        ours, theirs = each.us_per_message
        plural = "" if each.partitions == 1 else "s"
        label = f"broker CPU per message, {each.partitions:,} partition{plural}, us"
        yield [label, f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.2f} x less" if ours else "-"]


def _growth(results: Results) -> str:
    costs = results.log_us_per_message
    first, last = median(costs[:EDGE_STRETCHES]), median(costs[-EDGE_STRETCHES:])
    return (
        f"A log that grows to {results.log_gb:g} GB costs Penstock {first:.2f} us per 1 KB message at its "
        f"beginning and {last:.2f} us at its end."
    )
