"""Cliques by hand, over HTTP and WebSocket: a worker is served the slots that it owns, and nothing else."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import httpx
import pytest

from penstock import Broker
from penstock.ring import SLOTS, HeartbeatStatus
from tests.web.clique_members import (
    SHORT_LEASE_MS,
    CliqueMember,
    errors,
    heartbeat_until,
    is_served_nothing,
    keys_of,
    publish_keys,
    settled,
)
from tests.web.workers import working

Unique = Callable[[str], str]


@pytest.fixture
def stream(http: httpx.Client, unique: Unique) -> str:
    """A topic with two partitions."""
    name = unique("orders")
    http.post("/v1/topics", json={"name": name, "partitions": 2}).raise_for_status()
    return name


@pytest.fixture
def clique(unique: Unique) -> str:
    return unique("pricing")


# --- deliveries


def test_each_worker_gets_the_messages_of_its_slots(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one, two = (CliqueMember(http, clique, name, stream).join() for name in ("one", "two"))
    settled(one, two)
    mine, theirs = one.keys(20), two.keys(20)
    publish_keys(http, stream, *mine, *theirs)
    with one.working(broker.http_url) as first, two.working(broker.http_url) as second:
        jobs, others = first.jobs(20), second.jobs(20)
        assert sorted(keys_of(jobs)) == sorted(mine)
        assert sorted(keys_of(others)) == sorted(theirs)
        assert errors(first.settle(jobs, epoch=one.epoch)) == []
        assert errors(second.settle(others, epoch=two.epoch)) == []
        publish_keys(http, stream, theirs[0], mine[0])
        assert keys_of(first.jobs(1)) == [mine[0]]
        assert keys_of(second.jobs(1)) == [theirs[0]]


def test_a_clique_that_is_new_to_a_topic_begins_at_its_beginning(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    publish_keys(http, stream, "before", "the", "clique")
    one = CliqueMember(http, clique, "one", stream).join()
    with one.working(broker.http_url) as worker:
        assert sorted(keys_of(worker.jobs(3))) == ["before", "clique", "the"]


def test_jobs_come_with_the_epoch_of_the_table_by_which_the_worker_gets_them(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    settled(one)
    publish_keys(http, stream, "a")
    with one.working(broker.http_url) as worker:
        assert worker.hear("jobs")["epoch"] == one.epoch


def test_messages_without_a_key_are_spread_by_their_offsets(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one, two = (CliqueMember(http, clique, name, stream).join() for name in ("one", "two"))
    settled(one, two)
    owners = one.table.owner_indexes[:200]
    records = [{"value": number, "partition": 0} for number in range(200)]
    http.post(f"/v1/topics/{stream}/records", json={"records": records}).raise_for_status()
    with (
        one.working(broker.http_url, credit=200) as first,
        two.working(broker.http_url, credit=200) as second,
    ):
        mine, theirs = first.jobs(owners.count(0)), second.jobs(owners.count(1))
    assert [job["offset"] for job in mine] == [slot for slot in range(200) if owners[slot] == 0]
    assert [job["offset"] for job in theirs] == [slot for slot in range(200) if owners[slot] == 1]


def test_a_slow_worker_does_not_hold_up_the_others(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one, two = (CliqueMember(http, clique, name, stream).join() for name in ("one", "two"))
    settled(one, two)
    [mine], [theirs] = one.keys(1), two.keys(1)
    publish_keys(http, stream, *[mine] * 500, theirs, partition=0)
    with one.working(broker.http_url, credit=1) as slow, two.working(broker.http_url) as quick:
        assert keys_of(slow.jobs(1)) == [mine]
        assert keys_of(quick.jobs(1)) == [theirs]


def test_a_worker_is_not_served_before_it_knows_a_table(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    publish_keys(http, stream, "a")
    with one.working(broker.http_url, epoch=0) as worker:
        worker.hear("working")
        assert is_served_nothing(worker)
        worker.say(type="epoch", epoch=one.epoch)
        assert keys_of(worker.jobs(1)) == ["a"]


def test_a_worker_that_knows_a_later_table_than_the_leader_waits_until_the_leader_knows_it(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    publish_keys(http, stream, *one.keys(50), partition=0)
    with one.working(broker.http_url, epoch=one.epoch + 1) as worker:
        worker.hear("working")
        assert is_served_nothing(worker)
        CliqueMember(http, clique, "two", stream).join()
        one.heartbeat()
        kept = [key for key in one.keys(100) if key in {f"key-{number}" for number in range(50)}]
        assert keys_of(worker.jobs(len(kept))) == kept


@pytest.mark.parametrize("says_it_later", [False, True])
def test_a_worker_that_claims_to_know_an_impossible_epoch_is_refused(
    http: httpx.Client, broker: Broker, clique: str, stream: str, says_it_later: bool
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    with one.working(broker.http_url, epoch=0 if says_it_later else 2**62) as worker:
        if says_it_later:
            worker.say(type="epoch", epoch=2**62)
        last, code = worker.ending()
    assert (last["code"], code) == ("unknown_epoch", 4400)
    assert f"claims to know epoch {2**62}, and clique '{clique}' is at {one.epoch}" in last["message"]


# --- handover


def test_a_slot_is_handed_over_when_its_owner_has_drained_it_and_keys_stay_in_order(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    keys = one.keys(30)
    publish_keys(http, stream, *keys * 3)
    with one.working(broker.http_url) as first:
        jobs = first.jobs(90)
        begun = [job for job in jobs if job["value"][1] == 1]
        one.start(begun)
        two = CliqueMember(http, clique, "two", stream).join()
        one.heartbeat()
        moving = [key for key in keys if one.revoked(key)]
        assert 5 < len(moving) < 25
        with two.working(broker.http_url) as second:
            assert not two.heartbeat().table or not any(map(two.owns, moving))
            publish_keys(http, stream, *moving)
            assert is_served_nothing(second)
            assert errors(first.settle(begun, epoch=one.epoch)) == []
            unbegun = [job for job in jobs if job["key"] in moving and job not in begun]
            assert errors(first.settle(unbegun, "return", epoch=one.epoch)) == []
            one.finish(begun)
            one.heartbeat()
            heartbeat_until(two, lambda member: all(map(member.owns, moving)))
            second.say(type="epoch", epoch=two.epoch)
            handed = second.jobs(3 * len(moving))
    for key in moving:
        mine = [job for job in handed if job["key"] == key]
        assert [job["value"][1] for job in mine] == [2, 3, 1], "the last one was published later"
        assert {job["deliveries"] for job in mine} == {1}
        assert len({job["partition"] for job in mine}) == 1


def test_messages_of_a_slot_that_was_given_up_go_to_its_next_owner_without_being_counted(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    keys = one.keys(30)
    publish_keys(http, stream, *keys)
    with one.working(broker.http_url) as first:
        jobs = first.jobs(30)
        two = CliqueMember(http, clique, "two", stream).join()
        settled(one, two)
        moved = [key for key in keys if two.owns(key)]
        with two.working(broker.http_url) as second:
            again = second.jobs(len(moved))
            assert sorted(keys_of(again)) == sorted(moved)
            assert {job["deliveries"] for job in again} == {1}
            late = [job for job in jobs if job["key"] in moved]
            assert set(errors(first.settle(late, epoch=one.epoch))) == {"fenced"}
            assert errors(second.settle(again, epoch=two.epoch)) == []
            kept = [job for job in jobs if job["key"] not in moved]
            assert errors(first.settle(kept, epoch=one.epoch)) == []


def test_a_settlement_of_an_earlier_epoch_than_the_slot_is_refused(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    """The worker was to hand the slot over, and kept it because the other one has gone: the slot has a new epoch."""
    one = CliqueMember(http, clique, "one", stream).join()
    keys = one.keys(30)
    publish_keys(http, stream, *keys)
    with one.working(broker.http_url) as worker:
        jobs = worker.jobs(30)
        one.start(jobs)
        earlier = one.epoch
        two = CliqueMember(http, clique, "two", stream).join()
        one.heartbeat()
        moving = [job for job in jobs if one.revoked(job["key"])]
        two.leave()
        one.heartbeat()
        again = worker.jobs(len(moving))
        assert sorted(keys_of(again)) == sorted(keys_of(moving))
        assert set(errors(worker.settle(again, epoch=earlier))) == {"fenced"}
        assert errors(worker.settle(again, epoch=one.epoch)) == []
        kept = [job for job in jobs if job not in moving]
        assert errors(worker.settle(kept, epoch=earlier)) == []


# --- members that are gone


def test_a_member_whose_lease_has_ended_is_fenced_and_its_messages_go_to_the_next_owner(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream, lease_ms=SHORT_LEASE_MS).join()
    publish_keys(http, stream, *one.keys(10))
    with one.working(broker.http_url) as first:
        jobs = first.jobs(10)
        two = CliqueMember(http, clique, "two", stream).join()
        heartbeat_until(two, lambda member: len(member.core.held) == SLOTS)
        with two.working(broker.http_url) as second:
            again = second.jobs(10)
            assert sorted(keys_of(again)) == sorted(keys_of(jobs))
            assert {job["deliveries"] for job in again} == {1}, "none was announced"
            assert all(job["announce"] for job in again)
            assert not any("announce" in job for job in jobs)
        last, code = first.ending()
        assert (last["code"], code) == ("fenced", 4409)
    assert one.send().json()["status"] == "fenced"
    with one.working(broker.http_url) as returned:
        assert returned.ending()[0]["code"] == "fenced"


def test_the_delivery_of_an_announced_message_counts_when_its_worker_crashes(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    first = CliqueMember(http, clique, "one", stream, lease_ms=SHORT_LEASE_MS).join()
    publish_keys(http, stream, *first.keys(5), partition=0)
    with first.working(broker.http_url) as worker:
        assert errors(worker.settle(worker.jobs(5), "announce")) == []
    second = CliqueMember(http, clique, "two", stream, lease_ms=SHORT_LEASE_MS).join()
    heartbeat_until(second, lambda member: len(member.core.held) == SLOTS)
    with second.working(broker.http_url, encoding="batch") as worker:
        head = worker.hear("jobs")
        assert (head["acquired"], head["announce"]) == ([[0, 4, 1]], [[0, 4]])
        assert head["epoch"] == second.epoch
        jobs = [{"topic": stream, "partition": 0, "offset": offset} for offset in (1, 3)]
        assert errors(worker.settle(jobs, "announce")) == []
        elsewhere = [{"topic": stream, "partition": 0, "offset": 7}]
        assert errors(worker.settle(elsewhere, "announce")) == ["lease_over"]
    third = CliqueMember(http, clique, "three", stream).join()
    heartbeat_until(third, lambda member: len(member.core.held) == SLOTS)
    with third.working(broker.http_url) as worker:
        assert [job["deliveries"] for job in worker.jobs(5)] == [1, 2, 1, 2, 1]


def test_a_worker_whose_connection_breaks_again_and_again_keeps_its_messages(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    """More often than the queue's limit of deliveries."""
    one = CliqueMember(http, clique, "one", stream).join()
    publish_keys(http, stream, "a", "b", "c")
    for _ in range(7):
        with one.working(broker.http_url) as worker:
            assert [job["deliveries"] for job in worker.jobs(3)] == [1, 1, 1]
    assert http.get(f"/v1/queues/{clique}/dead-letters").json()["dead_letters"] == []


def test_a_worker_that_comes_back_under_its_name_gets_its_slots_back(
    http: httpx.Client, clique: str, stream: str
) -> None:
    one, two = (CliqueMember(http, clique, name, stream).join() for name in ("one", "two"))
    settled(one, two)
    mine = set(one.core.held)
    one.leave()
    settled(two)
    assert len(two.core.held) == SLOTS
    again = CliqueMember(http, clique, "one", stream).join()
    settled(again, two)
    assert set(again.core.held) == mine


def test_another_incarnation_waits_for_its_name(http: httpx.Client, clique: str, stream: str) -> None:
    CliqueMember(http, clique, "one", stream).join()
    other = CliqueMember(http, clique, "one", stream)
    reply = other.heartbeat()
    assert reply.status is HeartbeatStatus.NAME_TAKEN
    assert reply.retry_ms > 0


def test_a_second_connection_of_a_member_replaces_the_first(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    publish_keys(http, stream, "a")
    with one.working(broker.http_url) as first:
        assert keys_of(first.jobs(1)) == ["a"]
        with one.working(broker.http_url) as second:
            last, code = first.ending()
            assert (last["code"], code) == ("replaced", 4409)
            assert keys_of(second.jobs(1)) == ["a"]


# --- restart


def test_epochs_and_members_survive_a_restart(tmp_path: Path, clique: str) -> None:
    with Broker(data_dir=tmp_path) as broker, httpx.Client(base_url=broker.http_url, timeout=30) as http:
        http.post("/v1/topics", json={"name": "orders"}).raise_for_status()
        one = CliqueMember(http, clique, "one", "orders").join()
        epoch = one.epoch
    with Broker(data_dir=tmp_path) as broker, httpx.Client(base_url=broker.http_url, timeout=30) as http:
        one.http = http
        assert one.heartbeat().status is HeartbeatStatus.OK
        assert one.epoch == epoch
        publish_keys(http, "orders", "a")
        with one.working(broker.http_url) as worker:
            assert keys_of(worker.jobs(1)) == ["a"]
        CliqueMember(http, clique, "two", "orders").join()
        one.heartbeat()
        assert one.epoch == epoch + 1


# --- wrong kinds of queues and consumers


def test_only_workers_of_the_clique_get_messages_of_its_queue(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    CliqueMember(http, clique, "one", stream).join()
    with working(broker.http_url, clique, stream) as stranger:
        last, code = stranger.ending()
        assert (last["code"], code) == ("clique_only", 4409)
    refused = http.post(f"/v1/queues/{clique}/receive", json={"topics": [stream]})
    assert refused.status_code == 409, refused.text
    assert "only the clique's workers" in refused.json()["error"]["message"]


def test_a_clique_cannot_have_the_name_of_another_queue(
    http: httpx.Client, unique: Unique, stream: str
) -> None:
    queue = unique("jobs")
    http.post("/v1/queues", json={"queue": queue, "topic": stream}).raise_for_status()
    refused = CliqueMember(http, queue, "one", stream).send()
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "not_a_clique"
    assert http.get(f"/v1/queues/{queue}").json()["settings"]["order"] == "none"


def test_a_worker_of_a_clique_is_refused_by_another_queue(
    http: httpx.Client,
    broker: Broker,
    unique: Unique,
    clique: str,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.web.clique_worker.QUEUE_SECONDS", 0.2)
    queue = unique("jobs")
    http.post("/v1/queues", json={"queue": queue, "topic": stream}).raise_for_status()
    one = CliqueMember(http, clique, "one", stream).join()
    with working(broker.http_url, queue, stream, clique=one.claim) as worker:
        last, code = worker.ending()
        assert (last["code"], code) == ("not_a_clique", 4409)


def test_an_epoch_frame_of_a_worker_without_a_clique_is_refused(
    http: httpx.Client, broker: Broker, unique: Unique, stream: str
) -> None:
    queue = unique("jobs")
    http.post("/v1/queues", json={"queue": queue, "topic": stream}).raise_for_status()
    with working(broker.http_url, queue, stream) as worker:
        worker.say(type="epoch", epoch=7)
        last, _ = worker.ending()
        assert last["code"] == "no_clique"


def test_an_announcement_of_a_worker_without_a_clique_is_refused(
    http: httpx.Client, broker: Broker, unique: Unique, stream: str
) -> None:
    queue = unique("jobs")
    http.post("/v1/queues", json={"queue": queue, "topic": stream}).raise_for_status()
    with working(broker.http_url, queue, stream) as worker:
        worker.say(type="settle", number=1, topic=stream, partition=0, announce=[[0, 0]])
        last, _ = worker.ending()
        assert last["code"] == "no_clique"


def test_a_failed_message_is_a_dead_letter_with_its_reason(
    http: httpx.Client, broker: Broker, clique: str, stream: str
) -> None:
    one = CliqueMember(http, clique, "one", stream).join()
    publish_keys(http, stream, "a", "a")
    with one.working(broker.http_url) as worker:
        jobs = worker.jobs(2)
        offset = jobs[0]["offset"]
        why = [{"first": offset, "last": offset, "error_type": "ValueError", "error_text": "no price"}]
        assert errors(worker.settle(jobs[:1], "reject", failures=why, epoch=one.epoch)) == []
        assert errors(worker.settle(jobs[1:], epoch=one.epoch)) == []
        letters: list[dict[str, object]] = []
        for _ in count():
            letters = http.get(f"/v1/queues/{clique}/dead-letters").json()["dead_letters"]
            if letters:
                break
    assert (letters[0]["error_text"], letters[0]["from_topic"]) == ("no price", stream)
    facts = http.get(f"/v1/cliques/{clique}").json()["streams"]
    assert [(row["stream"], row["undone"], row["dead_letters"]) for row in facts] == [(stream, 0, 1)]
