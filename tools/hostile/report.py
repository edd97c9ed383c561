"""The outcomes as a table for people, as JSON for programs, and as the table of docs/hardening.md."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from penstock.cli.output import table
from tools.hostile.brokers import MEBIBYTE
from tools.hostile.run import Outcome

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hardening.md"
BEGIN, END = "<!-- hostile -->", "<!-- /hostile -->"
HEADINGS = (
    "scenario",
    "worst stall",
    "busy",
    "slow turns",
    "peak memory",
    "canary's worst ack",
    "acked",
    "lost",
    "result",
)


def draw(outcomes: Sequence[Outcome]) -> Table:
    return table(
        *HEADINGS,
        rows=[
            (
                one.name,
                _seconds(one.stall_seconds),
                _seconds(one.busy_seconds),
                one.slow_turns,
                _memory(one),
                _seconds(one.canary_ack_seconds),
                one.acked,
                one.lost,
                _result(one),
            )
            for one in outcomes
        ],
        numbers=HEADINGS[1:6],
    )


def explain(outcomes: Sequence[Outcome]) -> str:
    """The problems, and the details of each scenario, one in a line; empty if there are none."""
    lines = [f"{one.name} FAILED: {problem}" for one in outcomes for problem in one.problems]
    lines += [f"{one.name}: {detail}" for one in outcomes for detail in one.details]
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome], seed: int) -> bytes:
    failed = [one.name for one in outcomes if one.problems]
    return msgspec.json.format(msgspec.json.encode({"seed": seed, "failed": failed, "scenarios": outcomes}))


def write_page(outcomes: Sequence[Outcome], seed: int, page: Path = PAGE) -> None:
    """Replaces the table between the markers."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{_markdown(outcomes, seed)}\n{END}{after}")


def _markdown(outcomes: Sequence[Outcome], seed: int) -> str:
    lines = [
        f"One run on {os.cpu_count()} cores with Python {platform.python_version()}, seed {seed}:",
        "",
        "| one client does | worst stall | busy | peak memory | canary's worst ack | lost | result |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for one in outcomes:
        cells = (
            one.does,
            _seconds(one.stall_seconds),
            _seconds(one.busy_seconds),
            _memory(one),
            _seconds(one.canary_ack_seconds),
            f"{one.lost} of {one.acked:,}",
            _result(one).replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _seconds(value: float) -> str:
    return f"{value * 1000:,.0f} ms" if value < 1 else f"{value:.1f} s"


def _memory(one: Outcome) -> str:
    more = one.memory_peak_bytes - one.memory_before_bytes
    return f"{one.memory_peak_bytes / MEBIBYTE:,.0f} MiB (+{max(more, 0) / MEBIBYTE:,.0f})"


def _result(one: Outcome) -> str:
    verdict = "FAILED" if one.problems else "held"
    return f"{verdict}: {one.note}" if one.note else verdict
