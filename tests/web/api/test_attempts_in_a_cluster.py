"""Attempts in a cluster: any node takes requests, and the next coordinator decides as the one before would have."""

from collections.abc import Iterator

import pytest

from penstock.client.wire import ClientSettings, Cluster
from penstock.cluster import TRANSACTIONS_TOPIC
from tests.spark.committed import committed_values
from tests.web.api.test_transactions_api import PARTITIONS, Query
from tests.web.web_trio import WebTrio

OWNER = "query"


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    with WebTrio() as trio:
        yield trio


def coordinator(trio: WebTrio, owner: str) -> tuple[int, int]:
    """The partition of an owner, and the node that leads it."""
    index = trio.call(lambda: trio.node(1).transactions.cores.index_of(owner))
    return index, trio.leader(TRANSACTIONS_TOPIC, index)


def test_attempts_outlive_their_coordinator_and_are_decided_by_the_next(trio: WebTrio) -> None:
    with Cluster(ClientSettings(bootstrap_servers=trio.bootstrap_servers)) as cluster:
        with trio.caller(1) as http:
            query = Query(http, cluster, OWNER)
            won, _lost = query.task(0, "won"), query.task(0, "lost")
            index, leader = coordinator(trio, OWNER)
        successor, other = (node_id for node_id in trio.running if node_id != leader)
        trio.hand_over(TRANSACTIONS_TOPIC, successor, index)
        with trio.caller(other) as http:
            query.http = http
            late = query.task(0, "late")
            assert late["producer_id"] != won["producer_id"]
            assert query.commit(0, won) is False
            trio.hand_over(TRANSACTIONS_TOPIC, other, index)
            assert query.commit(0, won) is True, "the answer was lost with the coordinator"
            query.commit(1, query.task(1, "next"))
    found = committed_values(trio.bootstrap_servers, query.topic, PARTITIONS)
    assert sorted(found) == ["next"] * PARTITIONS + ["won"] * PARTITIONS
