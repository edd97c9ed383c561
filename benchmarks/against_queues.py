"""Penstock beside RabbitMQ (a quorum queue) and NATS JetStream (a work queue) as a queue: `make bench-queue`.

Every system publishes the same messages with confirmation and then works them off with an acknowledgement each, through
its usual Python client, on the same disk. Rounds alternate between the systems; figures are medians. Then Penstock
alone pushes to 1, 100 and 1,000 subscribers, as `penstock bench push` does. Results go to .cache/bench/ as JSON and as
Markdown.
"""

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
import page
from queue_systems import SYSTEMS, Nats, Penstock, RabbitMq, System, Unavailable, running

import penstock
from penstock.cli.bench.commands import DEFAULT_SUBSCRIBERS, push_rounds
from penstock.cli.bench.figures import PushRun, medians, written
from penstock.cli.bench.push_runner import PushShape, broker_flags
from penstock.cli.bench.runner import own_broker
from penstock.cli.problem import Problem

CACHE = Path(__file__).parents[1] / ".cache" / "bench"


class Figure(msgspec.Struct, kw_only=True):
    """Messages per second of every round."""

    system: str
    published: list[float] = []
    worked_off: list[float] = []


def main() -> None:
    options = _options()
    figures = _queues(options)
    pushed = _push(options)
    text = _render(figures, options) + _render_push(pushed, options)
    CACHE.mkdir(parents=True, exist_ok=True)
    found = {"queues": list(figures.values()), "push": pushed}
    (CACHE / "queues.json").write_bytes(msgspec.json.encode(found))
    (CACHE / "queues.md").write_text(text)
    if options.publish:
        page.publish("bench-queue", text)
    print(text)


def _queues(options: argparse.Namespace) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for number in range(options.rounds):
        for system in SYSTEMS:
            print(f"round {number + 1}: {system.name}", file=sys.stderr, flush=True)
            try:
                _measure(system, options, figures)
            except Unavailable as missing:
                print(f"  left out: {missing}", file=sys.stderr, flush=True)
    return figures


def _measure(system: type[System], options: argparse.Namespace, figures: dict[str, Figure]) -> None:
    with running(system) as one:
        one.publish(options.messages // 10, options.size)
        one.work_off(options.messages // 10)
        published = options.messages / one.publish(options.messages, options.size)
        worked_off = options.messages / one.work_off(options.messages)
    figure = figures.setdefault(system.name, Figure(system=system.name))
    figure.published.append(published)
    figure.worked_off.append(worked_off)


def _push(options: argparse.Namespace) -> list[PushRun]:
    """Every run. A machine that has no room for so many subscribers gets no figures, and is told why."""
    print("push", file=sys.stderr, flush=True)
    shape = PushShape(size_bytes=options.size, seconds=options.push_seconds, messages=options.push_messages)
    try:
        with own_broker(memory=False, flags=broker_flags(max(options.subscribers))) as target:
            return push_rounds(target, shape, options.subscribers, options.rounds)
    except Problem as problem:
        print(f"  left out: {problem.message}", file=sys.stderr, flush=True)
        return []


def _render_push(runs: Sequence[PushRun], options: argparse.Namespace) -> str:
    if not runs:
        return ""
    lines = [
        "",
        f"Push over WebSocket, {options.size} B, with acks; medians of {options.rounds} runs. A delivery is a message "
        "to one subscriber. First a burst; then a steady rate, with the time from publishing to arrival.",
        "",
        "| subscribers | burst, deliveries/s | broker us each | steady messages/s | broker us each | p50 ms | p99 ms |",
        "|---:|---:|---:|---:|---:|---:|---:|",
        *_push_rows(medians(runs, "subscribers")),
    ]
    return "\n".join(lines) + "\n"


def _push_rows(runs: Sequence[PushRun]) -> Iterator[str]:
    for run in runs:
        cells = (
            f"{run.subscribers:,}",
            f"{run.deliveries_per_second:,.0f}",
            written(run.broker_us_per_delivery),
            f"{run.rate_per_second:,.0f}",
            written(run.steady_broker_us_per_delivery),
            f"{run.delivered.p50_ms:.2f}",
            f"{run.delivered.p99_ms:.2f}",
        )
        yield "| " + " | ".join(cells) + " |"


def _render(figures: dict[str, Figure], options: argparse.Namespace) -> str:
    lines = [
        f"Penstock {penstock.__version__} on {platform.machine()}, {options.messages:,} messages of {options.size} B, "
        f"one publisher, then one consumer; medians of {options.rounds} runs in turns. All flush to the disk before "
        "they confirm, except where it says otherwise.",
        "",
        "| system | published and confirmed /s | received and acknowledged /s |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {figure.system} | {median(figure.published):,.0f} | {median(figure.worked_off):,.0f} |"
        for figure in figures.values()
    ]
    ours = figures.get(Penstock.name)
    flushing = (RabbitMq.name, Nats.name)
    others = [median(one.worked_off) for name, one in figures.items() if name in flushing]
    if ours is not None and others:
        ratio = median(ours.worked_off) / max(others)
        lines += ["", f"Acknowledged, against the better of the two that flush: **{ratio:.1f} x**."]
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of each message")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--subscribers", type=int, nargs="+", default=list(DEFAULT_SUBSCRIBERS))
    parser.add_argument("--push-messages", type=int, help="of a burst; by default fewer for more subscribers")
    parser.add_argument("--push-seconds", type=int, default=10, help="how long at a steady rate")
    return parser.parse_args()


if __name__ == "__main__":
    main()
