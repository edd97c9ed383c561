"""Cliques on a cluster of three processes: the nodes that coordinate and lead are killed and paused."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock.cluster import CLIQUES_TOPIC, offsets_partition
from penstock.node.cliques.cliques import PARTITIONS
from penstock.ring import SLOTS, HeartbeatStatus
from tests.faults.clients import create_topic, leader_of
from tests.faults.nodes import Cluster
from tests.faults.queue_workers import open_http, restart
from tests.faults.waiting import PATIENCE_SECONDS, eventually
from tests.web.clique_members import CliqueMember, errors, publish_keys, settled

Unique = Callable[[str], str]
LEASE_MS = 120_000
"""Elections, and a node that starts again, take less on any machine."""


class Trio(NamedTuple):
    cluster: Cluster
    urls: dict[int, str]
    callers: dict[int, httpx.Client]

    def member(self, at: int, clique: str, worker: str, *streams: str) -> CliqueMember:
        return CliqueMember(self.callers[at], clique, worker, *streams, lease_ms=LEASE_MS)

    def coordinator_of(self, clique: str, *, other_than: int = 0) -> int:
        index = offsets_partition(clique, PARTITIONS)
        return leader_of(self.cluster, CLIQUES_TOPIC, index, other_than=other_than)


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """All tests share it: each ends with all three nodes at work."""
    cluster = Cluster(Path(tmp_path_factory.mktemp("trio")))
    urls = open_http(cluster)
    with cluster, ExitStack() as stack:
        callers = {
            node_id: stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_SECONDS))
            for node_id, url in urls.items()
        }
        create_topic(cluster, "warm-up")
        CliqueMember(callers[1], "warm-up", "one", "warm-up").join().leave()
        yield Trio(cluster, urls, callers)
        assert cluster.bugs() == []


def clique_at(trio: Trio, unique: Unique, node_id: int) -> str:
    """The name of a clique that this node coordinates."""
    while True:
        name = unique("pricing")
        if trio.coordinator_of(name) == node_id:
            return name


def is_confirmed(member: CliqueMember) -> bool:
    """Whether a heartbeat is answered; the coordinator may be in an election."""
    answer = member.send()
    return answer.status_code == 200 and answer.json()["status"] == HeartbeatStatus.OK


def numbers(jobs: list[dict[str, Any]]) -> list[int]:
    return [job["value"][1] for job in jobs]


def test_one_owner_and_the_order_of_keys_outlive_the_leader_that_coordinates_too(
    trio: Trio, unique: Unique
) -> None:
    stream = unique("orders")
    create_topic(trio.cluster, stream)
    leader = leader_of(trio.cluster, stream)
    other = next(node_id for node_id in trio.urls if node_id != leader)
    clique = clique_at(trio, unique, leader)
    one, two = (trio.member(other, clique, name, stream).join() for name in ("one", "two"))
    settled(one, two)
    [mine], [theirs] = one.keys(1), two.keys(1)
    publish_keys(trio.callers[other], stream, *[mine, theirs] * 6)
    with one.working(trio.urls[leader]) as first:
        jobs = first.jobs(6)
        assert numbers(jobs) == [1, 2, 3, 4, 5, 6]
        assert errors(first.settle(jobs[:2], epoch=one.epoch)) == []
        trio.cluster[leader].kill()
    epoch = one.epoch
    for member in (one, two):
        eventually(lambda member=member: is_confirmed(member), "a heartbeat that is answered")  # type: ignore[misc]
        assert member.heartbeat().epoch == epoch, "the next coordinator knows the members and the owners"
    next_leader = leader_of(trio.cluster, stream, other_than=leader)
    with one.working(trio.urls[next_leader]) as first, two.working(trio.urls[next_leader]) as second:
        rest = first.jobs(4)
        assert (numbers(rest), {job["key"] for job in rest}) == ([3, 4, 5, 6], {mine})
        assert numbers(second.jobs(6)) == [1, 2, 3, 4, 5, 6]
        restart(trio.cluster, leader)


def test_a_coordinator_that_was_paused_and_wakes_up_gives_no_slot_away(trio: Trio, unique: Unique) -> None:
    stream = unique("orders")
    create_topic(trio.cluster, stream)
    paused = 3
    clique = clique_at(trio, unique, paused)
    one = trio.member(1, clique, "one", stream).join()
    trio.cluster[paused].pause()
    trio.coordinator_of(clique, other_than=paused)
    eventually(lambda: is_confirmed(one), "a heartbeat that is answered")
    two = trio.member(2, clique, "two", stream).join()
    settled(one, two)
    epoch = one.epoch
    trio.cluster[paused].resume()
    trio.cluster[paused].wait_ready()
    awake = trio.member(paused, clique, "three", stream).join()
    settled(one, two, awake)
    assert one.epoch > epoch, "it asked the new coordinator"
    assert len(one.core.held) + len(two.core.held) + len(awake.core.held) == SLOTS
