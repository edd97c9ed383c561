"""Transactions with brokers that require login: the rights that each part needs."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import ResourceType

from penstock.client import Client, ClientError, Refused
from penstock.client.wire.producer import TransactionIdentity
from penstock.errors import ErrorCode
from tests.client.committed import PATIENCE_SECONDS
from tests.faults.waiting import eventually
from tests.secured import GROUP, READ, TOPIC, WRITE, SecuredNode, secured_node

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredNode]:
    with secured_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def admin(node: SecuredNode) -> Iterator[Client]:
    with Client(node.address("tls"), **node.arguments("admin")) as client:
        yield client


@pytest.fixture
def alice(node: SecuredNode) -> Iterator[Client]:
    with Client(node.address("tls"), **node.arguments("alice")) as client:
        yield client


@pytest.fixture
def queue(node: SecuredNode, admin: Client, unique: Unique) -> str:
    """A queue with one job, on the topic of its name, which alice may use."""
    name = unique("orders")
    admin.admin.create_queue(name)
    admin.publish(name, "job")
    node.allow("alice", TOPIC, name, READ, WRITE)
    node.allow("alice", GROUP, name, READ)
    return name


def test_a_user_with_all_rights_settles_and_publishes(
    node: SecuredNode, admin: Client, alice: Client, queue: str, unique: Unique
) -> None:
    results, name = unique("results"), unique("billing")
    admin.admin.create_topic(results)
    node.allow("alice", TOPIC, results, WRITE)
    node.allow("alice", ResourceType.TRANSACTIONAL_ID, name, WRITE)
    with alice.queue(queue) as jobs:
        job = jobs.receive(PATIENCE_SECONDS)
        assert job is not None
        with alice.transaction(name) as transaction:
            transaction.publish(results, "result")
            transaction.ack(job)
    eventually(lambda: admin.admin.queue(queue).undone == 0, "the job to be done")


def test_a_transactional_id_needs_the_right_to_write(alice: Client, unique: Unique) -> None:
    with pytest.raises(Refused) as refused, alice.transaction(unique("billing")):
        pass
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_job_cannot_be_settled_in_the_transaction_of_an_id_that_is_not_the_users(
    admin: Client, alice: Client, queue: str, unique: Unique
) -> None:
    name = unique("billing")
    with admin.transaction(name) as others, alice.queue(queue) as jobs:
        others.publish(queue, "other")
        others._store()
        assert others._identity is not None
        job = jobs.receive(PATIENCE_SECONDS)
        assert job is not None
        settlement = job.settle_in(TransactionIdentity(*others._identity), "accept")
        with pytest.raises(ClientError, match="transactional_id_authorization_failed"):
            settlement.wait(PATIENCE_SECONDS)
