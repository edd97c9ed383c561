"""A whole benchmark: which runs, in which order, against which brokers."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from penstock.cli.bench import procfs
from penstock.cli.bench.figures import Run
from penstock.cli.bench.load import Kind
from penstock.cli.bench.runner import (
    WARM_UP_SECONDS,
    Say,
    Shape,
    Target,
    fresh_topic,
    run_consume,
    run_latency,
    run_produce,
)
from penstock.cli.broker_process import BrokerProcess
from penstock.cli.connection import Connection
from penstock.cli.output import console

NO_HTTP = ("--http", "none")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@contextmanager
def own_broker(
    *, memory: bool, data_dir: str | None = None, flags: Sequence[str] = NO_HTTP
) -> Iterator[Target]:
    """A broker for this benchmark alone; its data goes away with it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=data_dir))
    storage = ["--memory"] if memory else ["--data-dir", str(folder / "data")]
    try:
        broker = BrokerProcess(folder, *storage, *flags, "--log-level", "warning")
        try:
            yield Target(name="penstock", bootstrap=broker.bootstrap, pid=broker.pid)
        finally:
            broker.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def broker_for(
    bootstrap: str | None,
    pid: int | None,
    memory: bool,
    data_dir: str | None,
    flags: Sequence[str] = NO_HTTP,
) -> Iterator[Target]:
    """The broker that a person named, or one of our own."""
    if bootstrap is None:
        with own_broker(memory=memory, data_dir=data_dir, flags=flags) as target:
            yield target
    else:
        yield outside_broker(bootstrap, pid)


def outside_broker(bootstrap: str, pid: int | None = None, name: str | None = None) -> Target:
    """A broker that runs already; its process is looked for when it is on this machine."""
    Connection(bootstrap=bootstrap).check_reachable()
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    if pid is None and host in LOOPBACK:
        pid = procfs.listener_pid(int(port))
    return Target(name=name or bootstrap, bootstrap=bootstrap, pid=pid)


def rounds(kinds: Sequence[Kind], targets: Sequence[Target], shape: Shape, count: int) -> list[Run]:
    """Alternates between the brokers, so that whatever else the machine does hits all of them alike.

    With several rounds a first one that is not counted warms everything up.
    """
    plan = [target for _ in range(count) for target in targets]
    warm_up = list(targets) if count > 1 else []
    found: list[Run] = []
    with progress(len(plan) + len(warm_up)) as step:
        for index, target in enumerate([*warm_up, *plan]):
            label = "warming up" if index < len(warm_up) else f"run {index - len(warm_up) + 1} of {len(plan)}"
            runs = one_round(kinds, target, shape, step(f"{target.name}: {label}"))
            found += runs if index >= len(warm_up) else []
    return found


def one_round(kinds: Sequence[Kind], target: Target, shape: Shape, say: "Step") -> list[Run]:
    """The asked kinds of load, once. Consuming needs something to consume, so it produces first."""
    found: list[Run] = []
    if "produce" in kinds or "consume" in kinds:
        with fresh_topic(target, shape.partitions) as topic:
            found.append(run_produce(target, shape, topic, say("producing", shape.messages)))
            if "consume" in kinds:
                found.append(run_consume(target, shape, topic, say("consuming", shape.messages)))
    if "latency" in kinds:
        total = (shape.seconds + WARM_UP_SECONDS) * shape.rate_per_second
        with fresh_topic(target, shape.partitions) as topic:
            found.append(run_latency(target, shape, topic, say("latency", total)))
    return [run for run in found if run.kind in kinds]


Step = Callable[[str, int], Say]
"""Announces what is done next and how many messages it has; returns what to tell about its progress."""


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], Step]]:
    """A progress bar on stderr; nothing where that is not a terminal."""
    out = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bars:
        overall = bars.add_task("all", total=total)
        current = bars.add_task("")
        started = 0

        def next_run(label: str) -> Step:
            nonlocal started
            bars.update(overall, completed=started)
            started += 1

            def step(what: str, messages: int) -> Say:
                bars.reset(current, total=messages, description=f"{label}, {what}")
                return lambda done: bars.update(current, completed=done)

            return step

        yield next_run
