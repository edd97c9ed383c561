"""Nodes that stand still for longer than an election takes."""

import time

import msgspec

from tests.kafka.requests import create
from tests.kafka.trio import CALM, Trio

QUICK_ELECTIONS = msgspec.structs.replace(CALM, election_timeout_ms=1500, heartbeat_interval_ms=50)
PAUSE_SECONDS = 2.5 * QUICK_ELECTIONS.election_timeout_ms / 1000
"""Longer than the patience of every follower."""
PARTITIONS = 20


def terms(trio: Trio, topic: str) -> list[int]:
    """Each partition's newest term."""
    return [
        max(trio.replica(one, topic, index).replica.consensus.core.term for one in trio.running)
        for index in range(PARTITIONS)
    ]


def test_a_pause_of_all_nodes_deposes_no_leader() -> None:
    with Trio(QUICK_ELECTIONS) as trio:
        with trio.client(1) as client:
            create(client, "orders", partitions=PARTITIONS)
        for index in range(PARTITIONS):
            trio.leader("orders", index)
        before = trio.call(lambda: terms(trio, "orders"))
        trio.call(lambda: time.sleep(PAUSE_SECONDS))
        for index in range(PARTITIONS):
            trio.leader("orders", index)
        assert trio.call(lambda: terms(trio, "orders")) == before
