"""The HTTP API's operations on the cluster. Apart from `http_api`, because the types of their answers load the node."""

from penstock.cli.http_api import CommandApi, Facts
from penstock.config import Address
from penstock.config.address import UNREACHABLE_HOSTS
from penstock.node.calls.messages.controller import RebalanceStep
from penstock.node.replication.recovery import RecoveryReport
from penstock.node.status.cluster_status import ClusterStatus


class ClusterApi(CommandApi):
    """The operations on the cluster."""

    def snapshot(self, *, avoid: int | None = None) -> ClusterStatus:
        """The cluster as a node sees it. `avoid` is a node that is about to leave and may not know it."""
        snapshot = self.ask("GET", "/v1/cluster", ClusterStatus)
        others = [
            f"{'https' if node.https else 'http'}://{node.http}"
            for node in snapshot.nodes
            if node.http and node.state == "alive" and node.node_id != avoid and _is_reachable(node.http)
        ]
        if snapshot.node_id == avoid and others:
            self._urls = others
            return self.snapshot()
        self._urls = [*self._urls[:1], *(url for url in others if url != self._urls[0])]
        return snapshot

    def rebalance(self, *, dry_run: bool) -> RebalanceStep:
        return self.ask("POST", "/v1/cluster/rebalance", RebalanceStep, {"dry_run": dry_run}, repeatable=True)

    def recover(
        self, topic: str | None, discard: tuple[int, ...], *, accept_data_loss: bool
    ) -> RecoveryReport:
        body = {"topic": topic, "discard": discard, "accept_data_loss": accept_data_loss}
        return self.ask("POST", "/v1/cluster/recover", RecoveryReport, body)

    def decommission(self, node_id: int, *, on: bool) -> None:
        path = f"/v1/cluster/nodes/{node_id}/decommission"
        self.ask("POST" if on else "DELETE", path, Facts, {}, repeatable=True)


def _is_reachable(address: str) -> bool:
    return Address.parse("http", address).host not in UNREACHABLE_HOSTS
