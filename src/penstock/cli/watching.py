"""`--watch`: the same display again and again, until Ctrl-C."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import click
from rich.console import Console

from penstock.cli.common_options import Command
from penstock.cli.output import note
from penstock.cli.problem import Problem
from penstock.cli.stopping import Stop

POLL_SECONDS = 0.1

T = TypeVar("T")


def watch_options(command: Command) -> Command:
    """Gives a command --watch and --interval."""
    interval = click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True,
                            help="Seconds between two displays with --watch.")  # fmt: skip
    return click.option("--watch", is_flag=True, help="Repeat it until Ctrl-C.")(interval(command))


def repeated(ask: Callable[[], T], stop: Stop, interval: float | None) -> Iterator[T]:
    """One answer, or with an interval one after the other until the person interrupts it. Failures after the first
    answer are printed and tried again: a cluster is watched when things go wrong."""
    yield ask()
    while interval is not None and not stop:
        again_at = time.monotonic() + interval
        while not stop and time.monotonic() < again_at:
            time.sleep(min(POLL_SECONDS, interval))
        if stop:
            return
        try:
            yield ask()
        except Problem as trouble:
            note(f"{time.strftime('%H:%M:%S')} {trouble.message}")


def clear(out: Console, *, is_first: bool) -> None:
    """Begins the next display: on a clear screen, or under the time of day where there is no terminal."""
    if out.is_terminal:
        out.clear()
    else:
        out.print(("" if is_first else "\n") + time.strftime("%H:%M:%S"))
