"""`penstock demo`: the main job, end to end, in chapters with real processes and real clients."""

import shutil
import tempfile
import time
from pathlib import Path

import click

from penstock.cli.demo_chapters import clients, cliques, cluster, crash, groups, queues, spark, start
from penstock.cli.demo_stage import Stage
from penstock.cli.help import examples
from penstock.cli.output import show, show_json, table

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


@click.command(epilog=examples("penstock demo", "penstock demo --messages 1000000", "penstock demo --json"))
@click.option("-n", "--messages", type=click.IntRange(min=1000), default=200_000, show_default=True)
@click.option("--data-dir", metavar="DIR", help="Where its temporary folder goes.  [default: the system's]")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, and nothing else.")
def demo(messages: int, data_dir: str | None, as_json: bool) -> None:
    """Show the main job in about a minute.

    It starts a broker, produces and consumes with real clients, and shows a group's lag. It kills the broker with
    kill -9 while a producer writes, and finds every acknowledged message afterwards, once. It uses a topic as a work
    queue whose worker is killed, and pushes it to a subscriber. The workers of a clique own customers, while one
    worker joins and another one is killed. Then it starts a cluster of three nodes and kills a leader in the same
    way. If Java is installed, a Spark pipeline copies a topic to another topic and to Parquet. At the end it removes
    everything that it created.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-", dir=data_dir))
    stage = Stage(folder=folder, messages=messages, quiet=as_json)
    began = time.perf_counter()
    try:
        for chapter in CHAPTERS:
            chapter(stage)
    finally:
        stage.clear()
        shutil.rmtree(folder, ignore_errors=True)
    stage.figure("demo_ms", "the whole demo, ms", (time.perf_counter() - began) * 1000)
    if as_json:
        show_json({figure.name: figure.value for figure in stage.figures})
    else:
        rows = [[figure.label, figure.value] for figure in stage.figures]
        show("", table("figure", "measured", rows=rows, numbers=["measured"]))
