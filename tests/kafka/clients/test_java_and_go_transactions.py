"""Java's producer and franz-go's speak the newer dialect of transactions: they add no partitions themselves, and their
epoch grows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Broker
from penstock.kafka.wire import ApiKey
from penstock.kafka.wire.messages import describe_transactions
from tests.kafka.clients.test_transactions import committed_offset
from tests.kafka.committed_records import committed_values
from tests.kafka.programs.builds import franz_go_client, java_client
from tests.kafka.programs.pipe import Program, Refused
from tests.kafka.raw import RawClient
from tests.kafka.requests import ask, create
from tests.kafka.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("programs")]

Unique = Callable[[str], str]
FENCED = ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")


def test_java_commits_and_aborts_and_fences(broker: Broker, unique: Unique, tmp_path: Path) -> None:
    topics, group, name = [unique("orders"), unique("stock")], unique("group"), unique("java")
    with RawClient(broker) as client, Program(java_client(), tmp_path / "java.log") as program:
        for topic in topics:
            create(client, topic, replicas=1)
        first = program.connect(bootstrap=broker.bootstrap_servers)
        for offset in range(1, 8):
            first.transact(name, topics, str(offset), group=group, offset=offset, commit=offset % 2 == 1)
        for topic in topics:
            wait_until(lambda topic=topic: committed_values(client, topic) == ["1", "3", "5", "7"])
        assert committed_offset(broker, group, topics[0]) == 7
        assert epoch(client, name) == 7, "every end of a transaction has raised it"
        second = program.connect(bootstrap=broker.bootstrap_servers)
        second.transact(name, topics, "8", group=group, offset=8, commit=True)
        with pytest.raises(Refused) as refused:
            first.transact(name, topics, "zombie", group=group, offset=9, commit=True)
        assert refused.value.name in FENCED
        for topic in topics:
            wait_until(lambda topic=topic: committed_values(client, topic)[-1] == "8")


def test_franz_go_commits_and_aborts_and_fences(broker: Broker, unique: Unique, tmp_path: Path) -> None:
    topics, name = [unique("orders"), unique("stock")], unique("franz-go")
    with RawClient(broker) as client, Program(franz_go_client(), tmp_path / "go.log") as program:
        for topic in topics:
            create(client, topic, replicas=1)
        first = program.connect(bootstrap=broker.bootstrap_servers)
        for number in range(1, 8):
            first.transact(name, topics, str(number), commit=number % 2 == 1)
        for topic in topics:
            wait_until(lambda topic=topic: committed_values(client, topic) == ["1", "3", "5", "7"])
        assert epoch(client, name) == 7, "every end of a transaction has raised it"
        second = program.connect(bootstrap=broker.bootstrap_servers)
        second.transact(name, topics, "8", commit=True)
        with pytest.raises(Refused) as refused:
            first.transact(name, topics, "zombie", commit=True)
        assert refused.value.name in FENCED
        for topic in topics:
            wait_until(lambda topic=topic: committed_values(client, topic)[-1] == "8")


def epoch(client: RawClient, transactional_id: str) -> int:
    request = describe_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    response = describe_transactions.DescribeTransactionsResponse
    answer = ask(client, ApiKey.DESCRIBE_TRANSACTIONS, 0, request, response)
    return answer.transaction_states[0].producer_epoch
