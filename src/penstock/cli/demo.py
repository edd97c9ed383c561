"""`penstock demo`: the main job, end to end, in chapters with real processes and real clients."""

import shutil
import signal
import tempfile
import time
from pathlib import Path

import click

from penstock.cli.demo_chapters import clients, cliques, cluster, crash, groups, queues, spark, start
from penstock.cli.demo_stage import Stage
from penstock.cli.help import examples
from penstock.cli.output import show, show_json, table
from penstock.cli.stopping import stop_on_signals

CHAPTERS = (
    start.play,
    groups.play,
    clients.play,
    crash.play,
    queues.play,
    cliques.play,
    cluster.play,
    spark.play,
)
"""The chapters in their order. They share one stage, with the broker that `start` starts."""


@click.command(
    epilog=examples(
        "penstock demo", "penstock demo --messages 1000000", "penstock demo --keep", "penstock demo --json"
    )
)
@click.option("-n", "--messages", type=click.IntRange(min=1000), default=200_000, show_default=True)
@click.option("--data-dir", metavar="DIR", help="Where its temporary folder goes.  [default: the system's]")
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the broker with all that it has until Ctrl-C: look at it in the console.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, and nothing else.")
def demo(messages: int, data_dir: str | None, keep: bool, as_json: bool) -> None:
    """Show the main job in about a minute.

    It starts a broker, produces and consumes with real clients, and shows a group's lag. It kills the broker with
    kill -9 while a producer writes, and finds every acknowledged message afterwards, once. It uses a topic as a work
    queue whose worker is killed, and pushes it to a subscriber. The workers of a clique own customers, while one
    worker joins and another one is killed. Then it starts a cluster of three nodes and kills a leader in the same
    way. If Java is installed, a Spark pipeline copies a topic to another topic and to a Delta table. At the end it
    removes everything that it created; with --keep, when you end it.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-", dir=data_dir))
    stage = Stage(folder=folder, messages=messages, quiet=as_json)
    began = time.perf_counter()
    try:
        for chapter in CHAPTERS:
            chapter(stage)
        stage.figure("demo_ms", "the whole demo, ms", (time.perf_counter() - began) * 1000)
        _show_figures(stage, as_json=as_json)
        if keep:
            _keep(stage)
    finally:
        stage.clear()
        shutil.rmtree(folder, ignore_errors=True)


def _show_figures(stage: Stage, *, as_json: bool) -> None:
    if as_json:
        show_json({figure.name: figure.value for figure in stage.figures})
    else:
        rows = [[figure.label, figure.value] for figure in stage.figures]
        show("", table("figure", "measured", rows=rows, numbers=["measured"]))


def _keep(stage: Stage) -> None:
    """Returns when a signal comes."""
    show(
        "",
        f"the console is at {stage.broker.console_url}, the broker at {stage.broker.bootstrap}; Ctrl-C ends both",
    )
    with stop_on_signals() as stop:
        while not stop:
            signal.pause()
