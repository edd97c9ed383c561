"""Transactions that earlier versions stored have their outcome in this one, and the open ones get theirs."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ErrorCode
from tests.faults.waiting import eventually
from tests.kafka.raw import RawClient
from tests.kafka.transactional_producer import TransactionalProducer, persist
from tests.upgrade.brokers import Brokers
from tests.upgrade.transactions import GROUP, OTHER, TOPIC, TRANSACTIONS, describe, everything, stable_offset

pytestmark = pytest.mark.xdist_group("upgrade")

ARCHIVES = sorted((Path(__file__).parent / "fixtures").glob(f"*/{TRANSACTIONS}.tar.xz"))
Json = dict[str, Any]


class Opened:
    """A fixture that this version serves, and what clients saw of it before."""

    def __init__(self, client: RawClient, before: Json) -> None:
        self.client = client
        self.before = before

    def producer_of(self, transactional_id: str) -> TransactionalProducer:
        """The producer of the old version, as if its program had not noticed anything."""
        producer = TransactionalProducer(self.client, transactional_id)
        known = self.before["transactions"][transactional_id]
        producer.producer_id, producer.epoch = known["producer_id"], known["epoch"]
        return producer


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.parent.name)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    archive: Path = request.param
    folder = tmp_path_factory.mktemp("upgrade")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    before = json.loads(archive.with_name(f"{TRANSACTIONS}.json").read_text())
    with Brokers(folder, 1) as brokers, RawClient(brokers.nodes[1]) as client:
        # Its time is over since long; a fixture that was just made takes some seconds more.
        eventually(lambda: describe(client, "open")["state"] == "CompleteAbort", "the end of the open one")
        yield Opened(client, before)
        brokers.stop()


def test_there_is_a_fixture() -> None:
    assert ARCHIVES


def test_each_transaction_has_its_outcome_and_an_open_one_is_aborted(opened: Opened) -> None:
    before, now = opened.before["transactions"], everything(opened.client)["transactions"]
    for name in ("committed", "aborted"):
        assert now[name] == before[name]
    fields = ("producer_id", "timeout_ms", "start_ms")
    assert {name: now["open"][name] for name in fields} == {name: before["open"][name] for name in fields}
    assert now["open"]["epoch"] == before["open"]["epoch"] + 1


def test_readers_of_committed_records_see_what_was_committed_and_reach_the_end(opened: Opened) -> None:
    before, now = opened.before["topics"], everything(opened.client)["topics"]
    for topic in (TOPIC, OTHER):
        assert now[topic]["committed"] == before[topic]["committed"]
        assert now[topic]["last_stable"] == before[topic]["last_stable"] + 3  # two records and the marker


def test_the_offset_of_the_committed_transaction_counts_and_no_pending_one(opened: Opened) -> None:
    assert opened.before["offset"][0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    eventually(lambda: stable_offset(opened.client) == [0, 1], "the offset of the committed transaction")


def test_the_producer_of_the_open_transaction_is_fenced(opened: Opened) -> None:
    producer = opened.producer_of("open")
    persist(producer.find_coordinator)
    assert producer.end(commit=True) == ErrorCode.PRODUCER_FENCED


def test_each_id_goes_on_with_the_next_epoch(opened: Opened) -> None:
    for name, known in opened.before["transactions"].items():
        producer = TransactionalProducer(opened.client, name)
        producer.begin()
        assert producer.producer_id == known["producer_id"]
        assert producer.epoch == known["epoch"] + (2 if name == "open" else 1)
        producer.write(TOPIC, f"new of {name}")
        producer.commit_offset(GROUP, TOPIC, 10)
        producer.finish(commit=True)
    eventually(lambda: stable_offset(opened.client) == [0, 10], "the offset of the new transactions")
    news = [f"new of {name}" for name in opened.before["transactions"]]
    assert everything(opened.client)["topics"][TOPIC]["committed"][-3:] == news
