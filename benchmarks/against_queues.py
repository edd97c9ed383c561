"""Penstock beside RabbitMQ (a quorum queue) and NATS JetStream (a work queue) as a queue: `make bench-queue`.

Every system publishes the same messages with confirmation and then works them off with an acknowledgement each, through
its usual Python client, on the same disk. Rounds alternate between the systems; figures are medians. Results go to
.cache/bench/ as JSON and as Markdown.
"""

import argparse
import platform
import sys
from pathlib import Path
from statistics import median

import msgspec
from queue_systems import SYSTEMS, System, Unavailable, running

import penstock

CACHE = Path(__file__).parents[1] / ".cache" / "bench"


class Figure(msgspec.Struct, kw_only=True):
    """Messages per second of every round."""

    system: str
    published: list[float] = []
    worked_off: list[float] = []


def main() -> None:
    options = _options()
    figures: dict[str, Figure] = {}
    for number in range(options.rounds):
        for system in SYSTEMS:
            print(f"round {number + 1}: {system.name}", file=sys.stderr, flush=True)
            try:
                _measure(system, options, figures)
            except Unavailable as missing:
                print(f"  left out: {missing}", file=sys.stderr, flush=True)
    text = _render(figures, options)
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "queues.json").write_bytes(msgspec.json.encode(list(figures.values())))
    (CACHE / "queues.md").write_text(text)
    print(text)


def _measure(system: type[System], options: argparse.Namespace, figures: dict[str, Figure]) -> None:
    with running(system) as one:
        one.publish(options.messages // 10, options.size)
        one.work_off(options.messages // 10)
        published = options.messages / one.publish(options.messages, options.size)
        worked_off = options.messages / one.work_off(options.messages)
    figure = figures.setdefault(system.name, Figure(system=system.name))
    figure.published.append(published)
    figure.worked_off.append(worked_off)


def _render(figures: dict[str, Figure], options: argparse.Namespace) -> str:
    lines = [
        f"Penstock {penstock.__version__} on {platform.machine()}, {options.messages:,} messages of {options.size} B, "
        f"one publisher, then one consumer; medians of {options.rounds} runs in turns. All flush to the disk before "
        "they confirm, except where it says otherwise.",
        "",
        "| system | published and confirmed /s | received and acknowledged /s |",
        "|---|---|---|",
    ]
    lines += [
        f"| {figure.system} | {median(figure.published):,.0f} | {median(figure.worked_off):,.0f} |"
        for figure in figures.values()
    ]
    ours = figures.get("Penstock")
    others = [median(one.worked_off) for name, one in figures.items() if name in ("RabbitMQ", "NATS")]
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
    return parser.parse_args()


if __name__ == "__main__":
    main()
