"""`penstock cluster`: up, status, rebalance, decommission and recover."""

import click

from penstock.cli.cluster_moves import decommission, rebalance
from penstock.cli.cluster_recover import recover
from penstock.cli.cluster_status import status
from penstock.cli.cluster_up import up
from penstock.cli.help import examples


@click.group(
    epilog=examples(
        "penstock cluster up --nodes 3",
        "penstock cluster status",
        "penstock cluster decommission 3",
    )
)
def cluster() -> None:
    """Run a local cluster; look after any cluster."""


for command in (up, status, rebalance, decommission, recover):
    cluster.add_command(command)
