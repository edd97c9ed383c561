"""`kafka-transactions` lists, describes, finds and aborts transactions."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from penstock import Broker
from tests.kafka.programs.tools import TRANSACTIONS, run_at
from tests.transactional import TransactionalTopic

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

Unique = Callable[[str], str]
HANGING_PRODUCER = 900_101
"""No coordinator gives such an id in a test."""
PATIENCE_SECONDS = 60


@pytest.fixture
def topic(broker: Broker, unique: Unique) -> TransactionalTopic:
    return TransactionalTopic(broker, unique("payments"))


@pytest.fixture
def name(broker: Broker, topic: TransactionalTopic, unique: Unique) -> Iterator[str]:
    """A transactional id with an open transaction on the topic."""
    found = unique("billing")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": found})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic.name, b"x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    yield found
    producer.abort_transaction(PATIENCE_SECONDS)


def tool(broker: Broker, *arguments: str) -> list[list[str]]:
    """The rows of the table that it prints, without the head."""
    done = run_at(broker.bootstrap_servers, TRANSACTIONS, *arguments)
    assert done.code == 0, done.output
    return [line.split() for line in done.output.splitlines() if line.strip()][1:]


def test_kafka_transactions_lists_and_describes_an_open_transaction(
    broker: Broker, topic: TransactionalTopic, name: str
) -> None:
    [listed] = [row for row in tool(broker, "list") if row[0] == name]
    assert listed[-1] == "Ongoing"
    assert [row[0] for row in tool(broker, "list", "--transactional-id-pattern", f"{name}.*")] == [name]
    [described] = tool(broker, "describe", "--transactional-id", name)
    assert "Ongoing" in described
    assert f"{topic.name}-0" in described
    place = ("--topic", topic.name, "--partition", "0")
    [producer] = tool(broker, "describe-producers", *place)
    assert producer[0] == listed[2], "the id of the producer"


def test_kafka_transactions_finds_and_aborts_a_transaction_that_no_coordinator_knows(
    broker: Broker, topic: TransactionalTopic
) -> None:
    start = topic.send(HANGING_PRODUCER, "stuck")
    place = ("--topic", topic.name, "--partition", "0")
    [found] = tool(broker, "find-hanging", "--topic", topic.name)
    assert found[:3] == [topic.name, "0", str(HANGING_PRODUCER)]
    tool(broker, "abort", *place, "--start-offset", str(start))
    assert tool(broker, "find-hanging", *place) == []


def test_kafka_transactions_terminates_the_transaction_of_an_id(broker: Broker, unique: Unique) -> None:
    """KIP-1073: it takes the id over, which aborts."""
    found = unique("billing")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": found})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(unique("payments"), b"x")
    assert producer.flush(PATIENCE_SECONDS) == 0
    tool(broker, "forceTerminateTransaction", "--transactionalId", found)
    [described] = tool(broker, "describe", "--transactional-id", found)
    assert "Ongoing" not in described
