"""Data folders that earlier versions left behind are opened by this one, and clients find all that they stored.

tools/make_upgrade_fixtures.py makes the folders. Each is opened once; the tests that only look come first, since those
behind them take jobs and write.
"""

import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from penstock.client import Client
from tests.faults.waiting import PATIENCE_SECONDS
from tests.upgrade import idempotence, visible
from tests.upgrade.brokers import Brokers
from tests.upgrade.secured import SECURED
from tests.upgrade.transactions import TRANSACTIONS

pytestmark = pytest.mark.xdist_group("upgrade")

FIXTURES = Path(__file__).parent / "fixtures"
SUFFIX = ".tar.xz"
OTHERS = {f"{SECURED}{SUFFIX}", f"{TRANSACTIONS}{SUFFIX}"}
"""Fixtures with tests of their own."""
ARCHIVES = [path for path in sorted(FIXTURES.glob(f"*/*{SUFFIX}")) if path.name not in OTHERS]
DAY_MS = 24 * 3600 * 1000
FORGETFUL_AFTER_SECONDS = 3.0
"""Nodes drop idempotent producers that were silent for a day, which is all producers of an old fixture. They do so
five seconds after they start; one node serves earlier than that, three rarely."""

Json = dict[str, Any]


class Opened:
    """A fixture that this version serves, and its contents as clients of the old version saw them."""

    def __init__(self, brokers: Brokers, before: Json) -> None:
        self.brokers = brokers
        self.before = before
        self.repeated: idempotence.Produced | None = None
        """The answer to the last batch of the idempotent producer, if it was sent again as soon as the nodes served."""

    def due(self, queue: str) -> list[Json]:
        """Jobs that are not done and that nothing holds back, in the order of their offsets."""
        return [one for one in self.before["queues"][queue]["undone"] if not _is_deferred(one)]

    def partition(self, topic: str, partition: int) -> Json:
        told = self.brokers.partitions(f"/v1/topics/{topic}")
        return next(one for one in told if one["partition"] == partition)

    def produce(self, batch: str) -> idempotence.Produced:
        """Sends one of the batches of the idempotent producer."""
        facts = self.before["producer"]
        address = self.partition(facts["topic"], 0)["leader_address"]
        return idempotence.produce(address, facts["topic"], 0, bytes.fromhex(facts[batch]))


@pytest.fixture(
    scope="module", params=ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name.removesuffix(SUFFIX)}"
)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    archive: Path = request.param
    before = json.loads(archive.with_name(archive.name.removesuffix(SUFFIX) + ".json").read_text())
    folder = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    began = time.monotonic()
    with Brokers(folder, before["nodes"]) as brokers:
        served = Opened(brokers, before)
        if time.monotonic() < began + FORGETFUL_AFTER_SECONDS:
            served.repeated = served.produce("last_batch")
        yield served
        brokers.stop()


def test_there_are_fixtures_of_one_node_and_of_three() -> None:
    assert {path.name.removesuffix(SUFFIX) for path in ARCHIVES} >= {
        "one_node",
        "one_node_killed",
        "three_nodes",
    }


# Reading


def test_every_record_is_at_its_offset(opened: Opened) -> None:
    before, now = opened.before["topics"], visible.topics(opened.brokers)
    status = now.pop(visible.STATUS_TOPIC)
    assert list(now) == list(before)
    for name in before:
        assert now[name] == before[name]
    count = opened.before["status"]["count"]
    assert visible.digest(status, count) == opened.before["status"]


def test_the_cluster_has_its_id(opened: Opened) -> None:
    assert visible.cluster_id(opened.brokers) == opened.before["cluster_id"]


def test_offsets_are_found_by_time(opened: Opened) -> None:
    for topic, partition, timestamp_ms, offset in opened.before["times"]:
        assert visible.offset_at(opened.brokers, topic, partition, timestamp_ms) == offset


def test_groups_have_their_committed_offsets(opened: Opened) -> None:
    assert visible.groups(opened.brokers) == opened.before["groups"]


def test_subscriptions_have_their_positions(opened: Opened) -> None:
    assert visible.subscriptions(opened.brokers) == opened.before["subscriptions"]


def test_queues_have_their_undone_scheduled_and_dead_messages(opened: Opened) -> None:
    before, now = opened.before["queues"], visible.queues(opened.brokers)
    assert list(now) == list(before)
    for name in before:
        assert now[name] == _without_past_times(before[name])


# Continuing


def test_a_queue_delivers_exactly_the_undone_messages(opened: Opened) -> None:
    for queue in opened.before["queues"]:
        due = opened.due(queue)
        jobs = _work_off(opened.brokers, queue, len(due))
        assert sorted(map(_place, jobs)) == list(map(_place, due))
        deliveries = {_place(one): one["deliveries"] + 1 for one in due}
        assert {_place(one): one["deliveries"] for one in jobs} == deliveries
        if queue in opened.before["handed_out_in_order"]:
            for key in {one["key"] for one in jobs}:
                of_key = [_place(one) for one in jobs if one["key"] == key]
                assert of_key == sorted(of_key)
        left = sum(one["undone"] for one in opened.brokers.partitions(f"/v1/queues/{queue}"))
        assert left == len(opened.before["queues"][queue]["undone"]) - len(due)


def test_a_message_id_is_recognised(opened: Opened) -> None:
    with Client(opened.brokers.servers) as client:
        for topic, partition, message_id, offset in opened.before["message_ids"]:
            stored = client.publish(topic, "again", message_id=message_id)
            assert (stored.partition, stored.offset) == (partition, offset)
        for topic in {one[0] for one in opened.before["message_ids"]}:
            ends = opened.before["topics"][topic]["partitions"]
            stored = client.publish(topic, "new", message_id="a new id")
            latest = {one: opened.partition(topic, int(one))["latest_offset"] for one in ends}
            grown = {one: ends[one]["end"] + (int(one) == stored.partition) for one in ends}
            # A producer that repeats a message leaves an empty batch, which has an offset but no record.
            assert all(latest[one] >= grown[one] for one in ends)
            assert stored.offset == latest[str(stored.partition)] - 1


def test_an_idempotent_producer_continues_its_sequence(opened: Opened) -> None:
    facts = opened.before["producer"]
    repeated = opened.repeated or opened.produce("last_batch")
    is_forgotten = opened.repeated is None and _is_older_than_a_day(opened.before)
    if not is_forgotten:
        assert repeated == (0, facts["last_offset"])
    end = opened.partition(facts["topic"], 0)["latest_offset"]
    assert end == facts["next_offset"] or is_forgotten
    assert opened.produce("next_batch") == (0, end)
    address = opened.partition(facts["topic"], 0)["leader_address"]
    assert idempotence.new_producer_id(address).id > facts["producer_id"]


def test_a_subscriber_is_pushed_its_unacked_messages(opened: Opened) -> None:
    wanted = opened.before["pushed_next"]
    with (
        Client(opened.brokers.servers) as client,
        client.subscribe("events", name="ledger", idle_s=PATIENCE_SECONDS) as following,
    ):
        got = [following.receive(timeout=PATIENCE_SECONDS) for _ in wanted]
        assert sorted([one.topic, one.partition, one.offset] for one in got if one is not None) == wanted


def test_a_consumer_continues_after_its_groups_committed_offset(opened: Opened) -> None:
    committed = {
        (one["topic"], one["partition"]): one["committed_offset"]
        for one in opened.before["groups"]["readers"]["offsets"]
    }
    settings = {"bootstrap.servers": opened.brokers.servers, "group.id": "readers"}
    member = Consumer({**settings, "auto.offset.reset": "error", "enable.auto.commit": False})
    member.subscribe(sorted({topic for topic, _ in committed}))
    first: dict[tuple[str, int], int] = {}
    try:
        while len(first) < len(committed):
            message = member.poll(PATIENCE_SECONDS)
            assert message is not None, f"nothing more after {first}"
            assert message.error() is None, message.error()
            first.setdefault((message.topic(), message.partition()), message.offset())
    finally:
        member.close()
    assert first == committed


def test_the_next_record_gets_the_next_offset(opened: Opened) -> None:
    with Client(opened.brokers.servers) as client:
        for topic in ("plain", "stamped", "recoded", "grown", "reborn", "compacted", "trimmed", "cut"):
            for partition, one in opened.before["topics"][topic]["partitions"].items():
                stored = client.publish(topic, "new", key="new", partition=int(partition))
                assert (stored.offset, topic) == (one["end"], topic)


def _is_older_than_a_day(before: Json) -> bool:
    return bool(time.time() * 1000 > before["made_at_ms"] + DAY_MS)


def _is_deferred(message: Json) -> bool:
    """Retry delays are bounded by days: in an old fixture they are over."""
    due_ms = message["due_ms"]
    return due_ms is not None and due_ms > time.time() * 1000


def _without_past_times(queue: Json) -> Json:
    undone = [{**one, "due_ms": one["due_ms"] if _is_deferred(one) else None} for one in queue["undone"]]
    return {**queue, "undone": undone}


def _place(job: Json) -> tuple[str, int, int]:
    return job["topic"], job["partition"], job["offset"]


def _work_off(brokers: Brokers, queue: str, count: int) -> list[Json]:
    """Accepts `count` jobs, one response after the other, and checks that there are no more."""
    jobs: list[Json] = []
    body = {"max": 100, "wait_ms": 20_000, "consumer": "reader"}
    while len(jobs) < count:
        got = brokers.queue(queue, "/receive", body)["jobs"]
        assert got, f"{queue} handed out {len(jobs)} jobs instead of {count}"
        settled = brokers.queue(queue, "/settle", {"accept": [one["receipt"] for one in got]})
        assert not settled["refused"]
        jobs += got
    assert brokers.queue(queue, "/receive", {**body, "wait_ms": 0})["jobs"] == []
    return jobs
