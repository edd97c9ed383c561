"""`penstock cluster status`: nodes, leaders, replicas and lags, once or repeatedly."""

from collections.abc import Callable, Iterator

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.cluster_api import ClusterApi
from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import asks
from penstock.cli.output import console, counted, printable, table
from penstock.cli.parameters import in_words, rounded
from penstock.cli.problem import Problem
from penstock.cli.stopping import stop_on_signals
from penstock.cli.watching import clear, repeated, watch_options
from penstock.node.status.cluster_status import (
    ClusterStatus,
    HeldBackStatus,
    NodeStatus,
    OverdueTransaction,
    PartitionStatus,
)

EXIT_UNHEALTHY = 3
"""The exit code of --check when the cluster was reached and is not healthy."""
WIDE_COLUMNS = 110

MOVES_NAMED = 3
"""The most moves that are named in one line; the tables show the rest."""

COLOURS = {"alive": "green", "suspect": "yellow", "dead": "red", "left": "red", "unseen": "yellow"}


@click.command(
    epilog=examples(
        "penstock cluster status",
        "penstock cluster status --http 10.0.0.2:8080 --topic orders",
        "penstock cluster status --watch --trouble",
        "penstock cluster status --check && echo all is well",
        "penstock cluster status --json",
    )
)
@click.option("--topic", metavar="NAME", help="Only this topic's partitions.")
@click.option("--trouble", is_flag=True, help="Only partitions with problems, or that are moving.")
@click.option("--internal", is_flag=True, help="Also the broker's own topics.")
@watch_options
@click.option("--check", is_flag=True,
              help=f"Exit with {EXIT_UNHEALTHY} unless all nodes are up and every replica keeps up.")  # fmt: skip
@json_option
@asks(ClusterApi)
def status(
    api: ClusterApi,
    topic: str | None,
    trouble: bool,
    internal: bool,
    watch: bool,
    interval: float,
    check: bool,
    as_json: bool,
) -> None:
    """Show nodes, leaders, replicas, lag and under-replicated partitions.

    Any node can be asked. Lag counts the messages that the slowest replica has not flushed yet.
    """
    chosen = Chosen(topic=topic, trouble=trouble, internal=internal)
    with stop_on_signals() as stop:
        out = console()
        for number, snapshot in enumerate(repeated(api.snapshot, stop, interval if watch else None)):
            if as_json:
                click.echo(_as_json(chosen.of(snapshot), lines=watch))
                continue
            if watch:
                clear(out, is_first=number == 0)
            _show(out, snapshot, chosen)
    if check and not snapshot.healthy:
        raise click.exceptions.Exit(EXIT_UNHEALTHY)


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions to show."""

    topic: str | None
    trouble: bool
    internal: bool

    def of(self, snapshot: ClusterStatus) -> ClusterStatus:
        if self.topic is None and not self.trouble:
            return snapshot  # in JSON, internal topics are there unless something else was asked for
        return msgspec.structs.replace(snapshot, partitions=tuple(self.rows(snapshot)))

    def rows(self, snapshot: ClusterStatus) -> list[PartitionStatus]:
        known = {one.topic for one in snapshot.partitions}
        if self.topic is not None and self.topic not in known:
            raise Problem(f"there is no topic {self.topic!r}", "`penstock topics list` shows what there is")
        return [one for one in snapshot.partitions if self._wants(one)]

    def _wants(self, one: PartitionStatus) -> bool:
        if self.topic is not None:
            return one.topic == self.topic and (not self.trouble or _has_problems(one))
        if self.trouble:
            return _has_problems(one)
        return self.internal or not one.topic.startswith("__") or _has_problems(one)


def _has_problems(one: PartitionStatus) -> bool:
    wrong = one.under_replicated or one.leader is None
    return wrong or bool(one.adding or one.removing or one.offline or one.damaged)


def _as_json(snapshot: ClusterStatus, *, lines: bool) -> str:
    text = msgspec.json.encode(snapshot)
    return (text if lines else msgspec.json.format(text, indent=2)).decode()


def _show(out: Console, snapshot: ClusterStatus, chosen: Chosen) -> None:
    rows, folded = _folded(chosen.rows(snapshot), chosen)
    out.print(_headline(snapshot))
    out.print(_nodes(snapshot, wide=out.width >= WIDE_COLUMNS))
    if rows:
        out.print("")
        out.print(_partitions(rows))
    if folded:
        out.print(f"\n{_in_one_line(folded)}", markup=False)
    for line in _remainder(snapshot, chosen):
        out.print(printable(line), markup=False)


def _folded(
    rows: list[PartitionStatus], chosen: Chosen
) -> tuple[list[PartitionStatus], list[PartitionStatus]]:
    """The partitions of the table, and those of internal topics: hundreds of them have the same problem at once."""
    if not chosen.trouble or chosen.internal or chosen.topic is not None:
        return rows, []
    internal = [one for one in rows if one.topic.startswith("__")]
    return [one for one in rows if not one.topic.startswith("__")], internal


def _in_one_line(internal: list[PartitionStatus]) -> str:
    topics = dict.fromkeys(one.topic for one in internal)
    problems: dict[str, int] = {}
    for one in internal:
        for problem in _problems(one):
            problems[problem] = problems.get(problem, 0) + 1
    counts = ", ".join(f"{count:,} {problem}" for problem, count in problems.items())
    where = f"internal {'topic' if len(topics) == 1 else 'topics'} {', '.join(topics)}"
    return f"{counted(len(internal), 'partition')} of {where}: {counts}; --internal shows them"


def _problems(one: PartitionStatus) -> list[str]:
    found = {
        "without a leader": one.leader is None,
        "under-replicated": one.leader is not None and one.under_replicated,
        "with an offline replica": bool(one.offline),
        "with a damaged replica": bool(one.damaged),
        "moving": bool(one.adding or one.removing),
    }
    return [problem for problem, is_there in found.items() if is_there]


def _remainder(snapshot: ClusterStatus, chosen: Chosen) -> Iterator[str]:
    """Lines about single replicas and nodes."""
    lines = [
        f"{one.topic}-{one.partition} is {what} on node {one.node_id}: {one.reason}"
        for what, troubles in (("offline", snapshot.offline), ("damaged", snapshot.damaged))
        for one in troubles
        if chosen.topic in (None, one.topic)
    ]
    lines += [
        f"node {node.node_id} holds nothing any more: {last_wait(snapshot, node)}"
        for node in snapshot.nodes
        if node.decommissioning and not node.hosts
    ]
    lines += [_held_back(one) for one in snapshot.held_back if chosen.topic in (None, one.topic)]
    lines += [_hanging(one) for one in snapshot.hanging_transactions if chosen.topic is None]
    if snapshot.unanswered:
        lines.append(f"no lag from node {', '.join(map(str, snapshot.unanswered))}: no answer")
    if snapshot.troubles:
        lines.append(f"not healthy: {'; '.join(snapshot.troubles)}")
    yield from ["", *lines] if lines else []


def _held_back(one: HeldBackStatus) -> str:
    holder = f"queue {one.queue} has not settled them" if one.queue else "not all queues are known"
    age = f", the oldest by {rounded(one.overdue_ms)}" if one.overdue_ms else ""
    kept = f"keeps {counted(one.records, 'record')} ({one.size_bytes} bytes) beyond its retention{age}"
    return f"{one.topic}-{one.partition} {kept}: {holder}"


def _hanging(one: OverdueTransaction) -> str:
    times = f"open for {rounded(one.open_ms)}, its timeout is {in_words(one.timeout_ms)}"
    return f"the transaction of {one.transactional_id} hangs: {one.state}, {times}"


def last_wait(snapshot: ClusterStatus, node: NodeStatus) -> str:
    """Why a node that is leaving, and holds nothing any more, is still in the cluster. No node is removed while
    partitions move: a move that was redirected half way may have reached the node."""
    if snapshot.moves:
        return f"waiting for the end of {named_moves(snapshot)}"
    if node.metadata_role == "voter":
        return "waiting for its place in the metadata group"
    return "waiting for the controller to remove it"


def named_moves(snapshot: ClusterStatus) -> str:
    moves = snapshot.moves
    names = [
        f"{move.topic}-{move.partition} ({_listed(move.replicas)} to {_listed(move.target)})"
        for move in moves[:MOVES_NAMED]
    ]
    more = [f"{len(moves) - MOVES_NAMED} more"] if len(moves) > MOVES_NAMED else []
    return f"{counted(len(moves), 'move')}: {', '.join(names + more)}"


def _listed(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes))


def _headline(snapshot: ClusterStatus) -> str:
    parts = [f"cluster {snapshot.cluster_id}"]
    parts += ["one node, alone"] if snapshot.alone else []
    parts += [
        f"controller {snapshot.controller}" if snapshot.controller is not None else "[red]no controller[/red]"
    ]
    machines = {node.machine or node.node_id for node in snapshot.nodes}
    if len(machines) < len(snapshot.nodes):
        parts += [f"{counted(len(snapshot.nodes), 'node')} on {counted(len(machines), 'machine')}"]
    parts += [counted(len(snapshot.partitions), "partition")]
    if snapshot.leaderless:
        parts += [f"[red]{len(snapshot.leaderless)} without a leader[/red]"]
    if snapshot.under_replicated:
        parts += [f"[yellow]{len(snapshot.under_replicated)} under-replicated[/yellow]"]
    if snapshot.offline:
        parts += [f"[red]{counted(len(snapshot.offline), 'replica')} offline[/red]"]
    if snapshot.damaged:
        parts += [f"[red]{counted(len(snapshot.damaged), 'replica')} damaged[/red]"]
    if snapshot.moves:
        parts += [f"{len(snapshot.moves)} moving"]
    parts += ["[green]healthy[/green]"] if snapshot.healthy else []
    return "   ".join(parts) + "\n"


def _nodes(snapshot: ClusterStatus, *, wide: bool) -> Table:
    """Narrow terminals do not get the addresses that only other nodes and monitoring use."""
    columns: dict[str, Callable[[NodeStatus], object]] = {
        "machine": lambda node: node.machine,
        "node": lambda node: str(node.node_id),  # a name, not a quantity
        "state": lambda node: Text(node.state, COLOURS.get(node.state, "default")),
        "kafka": lambda node: node.kafka,
        "http": lambda node: node.http,
        "cluster": lambda node: node.cluster,
        "rack": lambda node: node.rack,
        "leads": lambda node: sum(map(len, node.leads.values())),
        "replicas": lambda node: sum(map(len, node.hosts.values())),
        "": lambda node: Text.from_markup(_remarks(node, snapshot)),
    }
    if not wide:
        del columns["http"], columns["cluster"]
    if not any(node.machine for node in snapshot.nodes):
        del columns["machine"]
    if all(node.rack in (None, node.machine) for node in snapshot.nodes):
        del columns["rack"]
    nodes = sorted(snapshot.nodes, key=lambda node: (node.machine or "", node.node_id))
    rows = [[cell(node) for cell in columns.values()] for node in nodes]
    return table(*columns, rows=rows, numbers=("node", "leads", "replicas"))


def _remarks(node: NodeStatus, snapshot: ClusterStatus) -> str:
    remarks = {
        "controller": node.controller,
        "[red]not in the cluster[/red]": not node.registered,
        "[red]fenced[/red]": node.fenced,
        "[yellow]leaving[/yellow]": node.decommissioning,
        "[yellow]not connected[/yellow]": not node.connected,
        "[yellow]behind as a metadata voter[/yellow]": node.node_id in snapshot.metadata.behind,
    }
    return ", ".join(remark for remark, holds in remarks.items() if holds)


def _partitions(partitions: list[PartitionStatus]) -> Table:
    rows = [
        [
            one.topic,
            one.partition,
            None if one.leader is None else str(one.leader),
            one.term,
            list(one.replicas),
            list(one.in_sync),
            one.lag,
            Text.from_markup(_state(one)),
        ]
        for one in partitions
    ]
    columns = ("topic", "partition", "leader", "term", "replicas", "in sync", "lag", "")
    return table(*columns, rows=rows, numbers=("partition", "leader", "term", "lag"))


def _state(one: PartitionStatus) -> str:
    words = []
    if one.leader is None:
        words.append("[red]no leader[/red]")
    elif one.under_replicated:
        words.append("[yellow]under-replicated[/yellow]")
    if one.offline:
        words.append(f"[red]offline on {','.join(map(str, one.offline))}[/red]")
    if one.damaged:
        words.append(f"[red]damaged on {','.join(map(str, one.damaged))}[/red]")
    if one.adding:
        words.append(f"coming to {','.join(map(str, one.adding))}")
    if one.removing:
        words.append(f"leaving {','.join(map(str, one.removing))}")
    return ", ".join(words)
