"""`penstock transactions` against a broker."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from penstock import Broker
from penstock.cli import transactions
from tests.kafka.trio import Trio
from tests.transactional import TransactionalTopic

from .conftest import Cli, succeeded
from .secured import run_as, secured_broker

Unique = Callable[[str], str]
HANGING_PRODUCER = 900_001
"""No coordinator gives such an id in a test."""
PATIENCE_SECONDS = 60


@pytest.fixture
def topic(cli: Cli, unique: Unique) -> str:
    name = unique("payments")
    succeeded(cli("topics", "create", name))
    return name


@pytest.fixture
def producer_name(unique: Unique) -> str:
    return unique("billing")


@pytest.fixture
def producer(broker: Broker, topic: str, producer_name: str) -> Iterator[Producer]:
    """With an open transaction."""
    made = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": producer_name})
    made.init_transactions(PATIENCE_SECONDS)
    made.begin_transaction()
    made.produce(topic, b"x")
    made.flush(PATIENCE_SECONDS)
    yield made
    made.purge()


def rows(cli: Cli, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(succeeded(cli("transactions", *words, "--json")).stdout)
    return found


def names(cli: Cli, *filters: str) -> set[str]:
    return {row["transactional_id"] for row in rows(cli, "list", *filters)}


@pytest.mark.usefixtures("producer")
def test_ids_are_listed_by_state_duration_producer_and_pattern(cli: Cli, producer_name: str) -> None:
    [row] = rows(cli, "list", "--id-pattern", f"{producer_name}.*")
    assert (row["transactional_id"], row["state"]) == (producer_name, "Ongoing")
    number = str(row["producer_id"])
    assert names(cli, "--producer-id", number, "--state", "ongoing", "--state", "empty") == {producer_name}
    assert producer_name not in names(cli, "--state", "CompleteCommit")
    assert producer_name not in names(cli, "--longer-than", "1d")
    assert producer_name in names(cli, "--longer-than", "0")
    page = succeeded(cli("transactions", "list")).stdout
    assert [producer_name, str(row["coordinator"]), number, "Ongoing"] in [
        line.replace(",", "").split() for line in page.splitlines()
    ]


@pytest.mark.usefixtures("producer")
def test_an_open_transaction_is_described_with_its_partitions(
    cli: Cli, topic: str, producer_name: str
) -> None:
    [found] = rows(cli, "describe", producer_name)
    assert (found["state"], found["timeout_ms"]) == ("Ongoing", 60_000)
    assert found["partitions"] == [{"topic": topic, "partition": 0}]
    assert found["open_ms"] >= 0
    page = succeeded(cli("transactions", "describe", producer_name)).stdout
    assert f"{producer_name}  (Ongoing, open for " in page
    assert "timeout 1m" in page
    assert [topic, "0"] in [line.split() for line in page.splitlines()]


def test_an_id_without_a_transaction_has_no_age_and_cannot_be_aborted(
    cli: Cli, producer: Producer, producer_name: str
) -> None:
    producer.commit_transaction(PATIENCE_SECONDS)
    refused = cli("transactions", "abort", producer_name, "--yes")
    assert refused.exit_code == 1
    assert producer_name in refused.stderr
    [found] = rows(cli, "describe", producer_name)
    assert found["state"] in ("PrepareCommit", "CompleteCommit")
    assert (found["open_ms"] is None) == (found["state"] == "CompleteCommit")


def test_an_aborted_transaction_is_ended_and_its_producer_fenced(
    cli: Cli, producer: Producer, topic: str, producer_name: str
) -> None:
    done = succeeded(cli("transactions", "abort", producer_name, "--yes"))
    assert f"aborted the transaction of {producer_name}" in done.stderr
    assert rows(cli, "list", "--topic", topic) == []
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(PATIENCE_SECONDS)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


@pytest.mark.usefixtures("producer")
def test_without_a_confirmation_nothing_is_aborted(cli: Cli, producer_name: str) -> None:
    asked = cli("transactions", "abort", producer_name)
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr
    assert rows(cli, "describe", producer_name)[0]["state"] == "Ongoing"


def test_a_transaction_that_was_followed_by_another_during_the_question_is_left_alone(
    cli: Cli, producer: Producer, topic: str, producer_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(question: str) -> None:
        producer.commit_transaction(PATIENCE_SECONDS)
        producer.begin_transaction()
        producer.produce(topic, b"y")
        producer.flush(PATIENCE_SECONDS)

    monkeypatch.setattr(transactions, "confirm", answer)
    refused = cli("transactions", "abort", producer_name)
    assert refused.exit_code == 1
    assert "has begun another one" in refused.stderr
    producer.commit_transaction(PATIENCE_SECONDS)


@pytest.mark.usefixtures("producer")
def test_a_transaction_that_its_coordinator_knows_does_not_hang(
    cli: Cli, topic: str, producer_name: str
) -> None:
    [found] = rows(cli, "list", "--topic", topic)
    assert (found["transactional_id"], found["start_offset"], found["hanging"]) == (producer_name, 0, False)
    place = ("--topic", topic, "--partition", "0", "--start-offset", "0")
    refused = cli("transactions", "abort", *place, "--yes")
    assert refused.exit_code == 1
    assert f"penstock transactions abort {producer_name}" in refused.stderr


def test_a_transaction_that_no_coordinator_knows_is_found_and_ended(
    broker: Broker, cli: Cli, unique: Unique
) -> None:
    topic = unique("payments")
    written = TransactionalTopic(broker, topic)
    written.plain("before")
    written.send(HANGING_PRODUCER, "x")
    [found] = rows(cli, "list", "--topic", topic)
    assert (found["producer_id"], found["start_offset"], found["hanging"]) == (HANGING_PRODUCER, 1, True)
    page = succeeded(cli("transactions", "list", "--topic", topic))
    assert "penstock transactions abort --topic" in page.stderr
    place = ("--topic", topic, "--partition", "0", "--start-offset")
    assert cli("transactions", "abort", *place, "0", "--yes").exit_code == 1
    assert cli("transactions", "abort", *place, "1").exit_code == 2, "it asks"
    done = succeeded(cli("transactions", "abort", *place, "1", "--yes"))
    assert f"aborted the transaction of producer {HANGING_PRODUCER}" in done.stderr
    assert "no transaction is open" in succeeded(cli("transactions", "list", "--topic", topic)).stderr


def test_an_unknown_id_and_a_wrong_pattern_are_explained(cli: Cli, unique: Unique) -> None:
    unknown = cli("transactions", "describe", unique("nobody"))
    assert (unknown.exit_code, "penstock transactions list" in unknown.stderr) == (1, True)
    wrong = cli("transactions", "list", "--id-pattern", "(")
    assert (wrong.exit_code, "RE2" in wrong.stderr) == (1, True)
    absent = cli("transactions", "list", "--topic", unique("nothing"))
    assert (absent.exit_code, "penstock topics list" in absent.stderr) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("abort",),
        ("abort", "billing", "--topic", "orders"),
        ("abort", "--topic", "orders", "--partition", "0"),
        ("list", "--topic", "orders", "--state", "ongoing"),
        ("list", "--state", "sleeping"),
        ("describe",),
    ],
)
def test_an_incomplete_command_line_is_refused(words: tuple[str, ...], cli: Cli) -> None:
    assert cli("transactions", *words).exit_code == 2


def begin(bootstrap_servers: str, name: str, topic: str, **settings: str) -> Producer:
    config = {"bootstrap.servers": bootstrap_servers, "transactional.id": name, **settings}
    made = Producer(config)
    made.init_transactions(PATIENCE_SECONDS)
    made.begin_transaction()
    made.produce(topic, b"x")
    assert made.flush(PATIENCE_SECONDS) == 0
    return made


def test_a_user_without_rights_sees_no_id_and_aborts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with secured_broker() as broker:
        run = run_as(broker, monkeypatch, tmp_path)
        succeeded(run("admin", "topics", "create", "payments"))
        begin(broker.bootstrap_servers, "billing", "payments", **broker.client_settings("admin"))
        hidden = succeeded(run("alice", "transactions", "list"))
        assert "no transactional ids" in hidden.stderr
        refused = run("alice", "transactions", "abort", "billing", "--yes")
        assert (refused.exit_code, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in refused.stderr) == (1, True)
        assert "payments" in succeeded(run("admin", "transactions", "list", "--topic", "payments")).stdout
        succeeded(run("admin", "transactions", "abort", "billing", "--yes"))


def test_transactions_of_all_nodes_of_a_cluster_are_listed_and_aborted(plain_cli: Cli) -> None:
    with Trio() as trio:
        where = ("-b", trio.bootstrap_servers)
        succeeded(plain_cli("topics", "create", "payments", *where))
        ids = [f"billing-{number}" for number in range(4)]
        producers = [begin(trio.bootstrap_servers, name, "payments") for name in ids]
        listed = json.loads(succeeded(plain_cli("transactions", "list", "--json", *where)).stdout)
        assert [row["transactional_id"] for row in listed] == ids
        opened = plain_cli("transactions", "list", "--topic", "payments", "--json", *where)
        rows = json.loads(succeeded(opened).stdout)
        assert sorted(row["transactional_id"] for row in rows) == ids, "none hangs"
        for name in ids:
            succeeded(plain_cli("transactions", "abort", name, "--yes", *where))
        gone = succeeded(plain_cli("transactions", "list", "--topic", "payments", *where))
        assert "no transaction is open" in gone.stderr
        del producers
