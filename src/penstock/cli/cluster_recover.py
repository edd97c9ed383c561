"""`penstock cluster recover`: partitions whose other replicas are lost for good continue with those of one node."""

import click
import msgspec

from penstock.cli.cluster_api import ClusterApi
from penstock.cli.common_options import json_option
from penstock.cli.help import examples
from penstock.cli.http_api import asks
from penstock.cli.output import counted, note, show, table
from penstock.cli.problem import Problem
from penstock.node.replication.recovery import LostPartition, RecoveryReport

WARNING = """\
This gives up every other replica of these partitions. Records that only the lost replicas had are gone, also
acknowledged ones; records that were never acknowledged may appear. Lost nodes must return with empty folders: with
their old data they could serve another version of the same partitions."""


@click.command(
    epilog=examples(
        "penstock cluster recover --http 10.0.0.3:8080",
        "penstock cluster recover --http 10.0.0.3:8080 --accept-data-loss",
        "penstock cluster recover --http 10.0.0.3:8080 --topic orders --discard 2 --accept-data-loss",
    )
)
@click.option("--topic", metavar="NAME", help="Only this topic's partitions.")
@click.option("--discard", metavar="NODE", type=click.IntRange(min=0), multiple=True,
              help="Give up the copies on this node too, although it is connected. Repeatable.")  # fmt: skip
@click.option("--accept-data-loss", is_flag=True, help="Do it. Without this, only show what would be done.")
@json_option
@asks(ClusterApi)
def recover(
    api: ClusterApi, topic: str | None, discard: tuple[int, ...], accept_data_loss: bool, as_json: bool
) -> None:
    """Continue with one node's replicas when the others are lost for good.

    UNSAFE: only for partitions (and the cluster's metadata) that have lost a majority of their replicas for ever. The
    node at --http keeps its copies and goes on alone; compare the copies of all nodes that are left first. Lost nodes
    must return with empty folders: then they are filled again.
    """
    report = api.recover(topic, discard, accept_data_loss=accept_data_loss)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    elif report.partitions:
        show(table("topic", "partition", "term", "from", "to", "replicas", "connected", "",
                   rows=[_row(one) for one in report.partitions],
                   numbers=["partition", "term", "from", "to"]))  # fmt: skip
    _conclude(report)


def _row(one: LostPartition) -> list[object]:
    return [
        one.topic, one.partition, one.last_term, one.start_offset, one.end_offset, one.voters, one.connected,
        one.obstacle or "",
    ]  # fmt: skip


def _conclude(report: RecoveryReport) -> None:
    possible = [one for one in report.partitions if one.obstacle is None]
    left = len(report.partitions) - len(possible)
    if not report.partitions:
        note(f"nothing to do: every partition of which node {report.node_id} has a replica has a leader")
    elif not report.recovered and possible:
        note(WARNING)
        note(f"nothing was changed; --accept-data-loss recovers {counted(len(possible), 'partition')}")
    elif report.recovered and possible:
        note(f"{counted(len(possible), 'partition')} recovered: node {report.node_id} leads them alone")
    if left:
        raise Problem(
            f"{counted(left, 'partition')} cannot be recovered on node {report.node_id}",
            "the table says why; --discard gives up the copies of a connected node",
        )
