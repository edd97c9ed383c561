"""`penstock cluster rebalance` and `decommission`: they start the change, and then watch it until it is done.

Interrupting the watching is safe. A decommission goes on by itself; a rebalance finishes the moves that have begun and
begins no more.
"""

import time
from collections.abc import Callable

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from penstock.cli.cluster_api import ClusterApi
from penstock.cli.cluster_status import last_wait, named_moves
from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import asks
from penstock.cli.output import console, counted, note, show, table
from penstock.cli.problem import Problem
from penstock.cli.stopping import Stop, stop_on_signals
from penstock.node.calls.messages.controller import RebalanceStep
from penstock.node.status.cluster_status import ClusterStatus

LOOK_SECONDS = 0.5
STUCK_SECONDS = 30.0
"""After so long without any progress, the command says what it waits for."""


@click.command(
    epilog=examples(
        "penstock cluster rebalance --dry-run",
        "penstock cluster rebalance",
        "penstock cluster rebalance --http 10.0.0.2:8080",
    )
)
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@json_option
@asks(ClusterApi)
def rebalance(api: ClusterApi, dry_run: bool, as_json: bool) -> None:
    """Spread replicas and leaders evenly over the nodes and racks.

    A cluster does this by itself when nodes come and go, unless replication.auto_rebalance is off. Safe to
    interrupt: moves that have begun are finished, and no more begin.
    """
    plan = api.rebalance(dry_run=True)
    if dry_run:
        _show_plan(plan, as_json)
        return
    if plan.done:
        note("nothing to do: replicas and leaders are balanced")
        return
    with stop_on_signals() as stop, Watch("rebalancing", stop) as watch:
        _rebalance(api, watch)
    note("done: replicas and leaders are balanced")
    if as_json:
        click.echo(_json(api.rebalance(dry_run=True)))


def _rebalance(api: ClusterApi, watch: "Watch") -> None:
    while True:
        step = api.rebalance(dry_run=False)
        left = len(step.moves_left) + step.under_way + len(step.leads_left)
        watch.tell(left, f"{step.under_way} under way, {_behind(api.snapshot())}", lambda: _blocking(api))
        if step.done:
            return
        watch.pause(
            "interrupted: moves that have begun are finished; `penstock cluster rebalance` goes on with the rest"
        )


def _show_plan(plan: RebalanceStep, as_json: bool) -> None:
    if as_json:
        click.echo(_json(plan))
        return
    moves = [[one.topic, one.partition, one.replicas, one.target, one.reason] for one in plan.moves_left]
    leads = [[one.topic, one.partition, one.leader, one.to] for one in plan.leads_left]
    if moves:
        show(table("topic", "partition", "replicas", "become", "why", rows=moves, numbers=["partition"]))
    if leads:
        numbers = ["partition", "leader", "becomes"]
        show("" if moves else "lead to be handed over:")
        show(table("topic", "partition", "leader", "becomes", rows=leads, numbers=numbers))
    if plan.under_way:
        note(f"{counted(plan.under_way, 'move')} under way")
    if plan.done:
        note("nothing to do: replicas and leaders are balanced")


def _json(step: RebalanceStep) -> str:
    return msgspec.json.format(msgspec.json.encode(step), indent=2).decode()


@click.command(
    epilog=examples(
        "penstock cluster decommission 3",
        "penstock cluster decommission 3 --cancel",
        "penstock cluster decommission 3 --no-wait --http 10.0.0.1:8080",
    )
)
@click.argument("node", type=click.IntRange(min=0))
@click.option("--cancel", is_flag=True, help="Cancel: the node stays.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the node is empty.")
@asks(ClusterApi)
def decommission(api: ClusterApi, node: int, cancel: bool, no_wait: bool) -> None:
    """Move everything off a node and remove it from the cluster.

    Refused when the topics' replicas would not fit on the nodes that stay. Keep the node running until this says
    that it is removed. Safe to interrupt: the cluster goes on by itself, and the same command watches it again.
    """
    if cancel:
        api.decommission(node, on=False)
        note(f"node {node} stays; replicas that have left it come back when the cluster is rebalanced")
        return
    api.decommission(node, on=True)
    if no_wait:
        note(f"node {node} is being emptied; `penstock cluster status` shows how far that is")
        return
    with stop_on_signals() as stop, Watch(f"emptying node {node}", stop) as watch:
        _empty(api, node, watch)
    note(f"node {node} is removed from the cluster and holds no data that is needed: stop it")


def _empty(api: ClusterApi, node: int, watch: "Watch") -> None:
    was_leaving = False
    while True:
        snapshot = api.snapshot(avoid=node)
        found = next((one for one in snapshot.nodes if one.node_id == node), None)
        if found is None:
            return
        if was_leaving and not found.decommissioning:
            raise Problem(
                f"the decommission was cancelled: node {node} stays", f"penstock cluster decommission {node}"
            )
        was_leaving = found.decommissioning  # the node that was asked may apply it a moment later
        left = sum(map(len, found.hosts.values()))
        doing = _behind(snapshot) if left else last_wait(snapshot, found)
        watch.tell(left + 1, doing, lambda: _blocking(api))
        watch.pause(
            f"interrupted: the cluster goes on emptying node {node}; "
            f"`penstock cluster decommission {node}` watches it again, --cancel lets the node stay"
        )


def _behind(snapshot: ClusterStatus) -> str:
    """How many bytes the current moves still have to copy."""
    if not snapshot.moves:
        return "nothing is being copied"
    known = [move.bytes_behind for move in snapshot.moves if move.bytes_behind is not None]
    return f"{counted(len(snapshot.moves), 'partition')} on the way, {_size(sum(known))} behind"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _blocking(api: ClusterApi) -> str:
    """The most likely reason why nothing happens."""
    snapshot = api.snapshot()
    missing = [str(node.node_id) for node in snapshot.nodes if node.fenced or node.state != "alive"]
    if missing:
        return f"node {', '.join(missing)} is down: start it, or wait until the cluster replaces it"
    if snapshot.leaderless:
        return f"{snapshot.leaderless[0]} has no leader: a majority of its replicas must be there"
    waits = f"{named_moves(snapshot)} under way; " if snapshot.moves else ""
    return f"{waits}the nodes' logs may say why; `penstock cluster status --trouble` shows what is left"


class Watch:
    """Progress on stderr: a bar on a terminal, else a line at every change."""

    def __init__(self, title: str, stop: Stop) -> None:
        self._stop = stop
        self._title = title
        out = console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[doing]}"),
        )
        self._bar = Progress(*columns, console=out) if out.is_terminal else None
        self._most = 0
        self._last: tuple[int, str] | None = None
        self._changed_at = time.monotonic()

    def __enter__(self) -> "Watch":
        if self._bar is not None:
            self._task = self._bar.add_task(self._title, total=None, doing="")
            self._bar.start()
        return self

    def __exit__(self, *trouble: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tell(self, left: int, doing: str, why_stuck: Callable[[], str]) -> None:
        """`left` is the number of remaining steps, `doing` the present one in words."""
        self._most = max(self._most, left)
        changed = (left, doing) != self._last
        self._last = (left, doing)
        now = time.monotonic()
        if changed:
            self._changed_at = now
        elif now - self._changed_at >= STUCK_SECONDS:
            self._changed_at = now
            self._say(f"no progress for {STUCK_SECONDS:.0f} s: {why_stuck()}")
        if self._bar is not None:
            self._bar.update(self._task, total=self._most, completed=self._most - left, doing=doing)
        elif changed:
            note(f"{self._title}: {left} left, {doing}")

    def pause(self, farewell: str) -> None:
        """Waits until the next check. If the person interrupts it, prints `farewell` and aborts."""
        if not self._stop:
            time.sleep(LOOK_SECONDS)
        if self._stop:
            self._say(farewell)
            raise click.Abort

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False)
        else:
            note(line)
