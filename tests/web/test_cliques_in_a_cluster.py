"""Cliques on three nodes: one owner across all leaders, and a coordinator that may move."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from penstock.cluster import CLIQUES_TOPIC, offsets_partition
from penstock.node.cliques.cliques import PARTITIONS
from penstock.ring import SLOTS, HeartbeatStatus
from tests.web.clique_members import (
    CliqueMember,
    errors,
    heartbeat_until,
    is_served_nothing,
    keys_of,
    publish_keys,
    settled,
)
from tests.web.web_trio import WebTrio

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def trio() -> Iterator[WebTrio]:
    with WebTrio() as nodes:
        yield nodes


@pytest.fixture
def http(trio: WebTrio) -> Iterator[httpx.Client]:
    with trio.caller(1) as caller:
        yield caller


@pytest.fixture
def stream(trio: WebTrio, http: httpx.Client, unique: Unique) -> str:
    """A topic with two partitions, led by node 1 and node 2."""
    name = unique("orders")
    wish = {"name": name, "partitions": 2, "replication_factor": 3}
    http.post("/v1/topics", json=wish).raise_for_status()
    for index, node in enumerate((1, 2)):
        trio.hand_over(name, node, index)
    return name


def coordinator_index(clique: str) -> int:
    return offsets_partition(clique, PARTITIONS)


def test_a_slot_drains_on_all_leaders_before_its_next_owner_gets_it(
    trio: WebTrio, http: httpx.Client, unique: Unique, stream: str
) -> None:
    one = CliqueMember(http, unique("pricing"), "one", stream).join()
    keys = one.keys(30)
    for partition in (0, 1):
        publish_keys(http, stream, *keys, *keys, partition=partition)
    with one.working(trio.url(1)) as first, one.working(trio.url(2)) as second:
        jobs = [*first.jobs(60), *second.jobs(60)]
        begun = [job for job in jobs if job["value"][1] == 1]
        one.start(begun)
        two = CliqueMember(http, one.clique, "two", stream).join()
        one.heartbeat()
        moving = [key for key in keys if one.revoked(key)]
        assert moving
        with two.working(trio.url(1)) as third, two.working(trio.url(2)) as fourth:
            # Node 1 has nothing left to drain, node 2 has.
            here, there = ([job for job in begun if job["partition"] == at] for at in (0, 1))
            assert errors(first.settle(here, epoch=one.epoch)) == []
            one.finish(here)
            one.heartbeat()
            two.heartbeat()
            assert not any(map(two.owns, moving))
            assert is_served_nothing(third)
            assert is_served_nothing(fourth)
            assert errors(second.settle(there, epoch=one.epoch)) == []
            one.finish(there)
            one.heartbeat()
            heartbeat_until(two, lambda member: all(map(member.owns, moving)))
            for worker in (third, fourth):
                worker.say(type="epoch", epoch=two.epoch)
                rest = worker.jobs(len(moving))
                assert sorted(keys_of(rest)) == sorted(moving)
                assert {job["value"][1] for job in rest} == {2}


def test_members_and_epochs_survive_a_change_of_the_coordinator(
    trio: WebTrio, http: httpx.Client, unique: Unique, stream: str
) -> None:
    one, two = (
        CliqueMember(http, clique, name, stream).join()
        for clique in [unique("pricing")]
        for name in ("one", "two")
    )
    settled(one, two)
    index, epoch = coordinator_index(one.clique), one.epoch
    publish_keys(http, stream, *one.keys(5), partition=1)
    with one.working(trio.url(2)) as worker:
        jobs = worker.jobs(5)
        for node in trio.followers(CLIQUES_TOPIC, index):
            trio.hand_over(CLIQUES_TOPIC, node, index)
            for member in (one, two):
                assert member.heartbeat().status is HeartbeatStatus.OK
                assert member.epoch == epoch
        assert errors(worker.settle(jobs, epoch=epoch)) == []
        two.leave()
        heartbeat_until(one, lambda member: len(member.core.held) == SLOTS)
        assert one.epoch > epoch
        worker.say(type="epoch", epoch=one.epoch)
        publish_keys(http, stream, *one.keys(7), partition=1)
        assert len(worker.jobs(7)) == 7, "the leader follows the new coordinator"


def test_a_coordinator_that_is_cut_off_is_replaced_and_refuses_heartbeats(
    trio: WebTrio, unique: Unique, stream: str
) -> None:
    with trio.caller(1) as first, trio.caller(2) as second:
        one = CliqueMember(first, unique("pricing"), "one", stream).join()
        index = coordinator_index(one.clique)
        trio.hand_over(CLIQUES_TOPIC, 3, index)
        assert one.heartbeat().status is HeartbeatStatus.OK
        epoch = one.epoch
        with trio.cut_off(3):
            trio.leader(CLIQUES_TOPIC, index, among=(1, 2))
            assert one.heartbeat().status is HeartbeatStatus.OK
            assert one.epoch == epoch
            two = CliqueMember(second, one.clique, "two", stream).join()
            settled(one, two)
            assert len(one.core.held) == len(two.core.held) == SLOTS // 2
        assert trio.leader(CLIQUES_TOPIC, index) != 3
        settled(one, two)


def test_every_node_lists_and_describes_all_cliques(
    trio: WebTrio, http: httpx.Client, unique: Unique, stream: str
) -> None:
    members = [CliqueMember(http, unique("clique"), "one", stream).join() for _ in range(6)]
    for node in (1, 2, 3):
        with trio.caller(node) as caller:
            listed = {row["clique"] for row in caller.get("/v1/cliques").json()["cliques"]}
            assert {member.clique for member in members} <= listed
            for member in members:
                facts = caller.get(f"/v1/cliques/{member.clique}").json()
                assert [row["slots"] for row in facts["members"]] == [SLOTS]


def test_messages_stay_in_order_and_none_is_lost_when_a_partition_gets_another_leader(
    trio: WebTrio, http: httpx.Client, unique: Unique, stream: str
) -> None:
    one = CliqueMember(http, unique("pricing"), "one", stream).join()
    publish_keys(http, stream, *["a"] * 6, partition=1)
    with one.working(trio.url(2)) as before:
        jobs = before.jobs(6)
        assert errors(before.settle(jobs[:2], epoch=one.epoch)) == []
        trio.hand_over(stream, 3, 1)
        with one.working(trio.url(3)) as after:
            assert [job["value"][1] for job in after.jobs(4)] == [3, 4, 5, 6]
