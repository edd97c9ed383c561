"""Clients of three nodes that require login and TLS: the login goes with them to the node that serves them."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.client import AsyncClient, Client
from penstock.config import Address
from penstock.node.calls import Calls
from penstock.types import Caller, Operation
from penstock.types import ResourceType as Resource
from tests.faults.waiting import eventually
from tests.kafka.trio import Trio
from tests.secured import GROUP, READ, TOPIC, WRITE
from tests.tls import Certificates

PATIENCE_SECONDS = 60
PASSWORDS = {"admin": "admin-password", "alice": "alice-password"}
Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(Path(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def trio(certificates: Certificates) -> Iterator[Trio]:
    tls = {"tls_cert": certificates.cert, "tls_key": certificates.key}
    with Trio(users=PASSWORDS, settings={"http": Address("127.0.0.1", 0), **tls}) as running:
        running.eventually(
            lambda: all(
                PASSWORDS.keys() <= running.node(one).metadata.state.access.users.keys() for one in (1, 2, 3)
            )
        )
        yield running


@pytest.fixture
def arguments(certificates: Certificates) -> dict[str, Any]:
    return {"user": "admin", "password": PASSWORDS["admin"], "tls_ca": certificates.ca}


def test_queues_and_subscriptions_follow_leaders_and_coordinators(
    trio: Trio, arguments: dict[str, Any], unique: Unique
) -> None:
    topic = unique("orders")
    with Client(trio.bootstrap_servers, **arguments) as client:
        client.admin.create_queue(topic, partitions=3)
        for partition in range(3):
            client.publish(topic, b"one", partition=partition)
        with client.queue(topic) as queue:
            jobs = [queue.receive(PATIENCE_SECONDS) for _ in range(3)]
            assert sorted(job.partition for job in jobs if job is not None) == [0, 1, 2]
        for number in range(6):  # the coordinators of some of these names are other nodes than the first
            with client.subscribe(topic, name=f"{topic}-{number}", read_old=True) as subscription:
                assert subscription.receive(PATIENCE_SECONDS) is not None


def test_so_do_those_of_asyncio(trio: Trio, arguments: dict[str, Any], unique: Unique) -> None:
    topic = unique("orders")

    async def scenario() -> None:
        async with AsyncClient(trio.bootstrap_servers, **arguments) as client:
            await client.admin.create_topic(topic, partitions=3)
            await client.publish(topic, b"one")
            for number in range(6):
                async with client.subscribe(topic, name=f"{topic}-{number}", read_old=True) as subscription:
                    assert await subscription.receive(PATIENCE_SECONDS) is not None

    asyncio.run(scenario())


# --- transactions


def allow_alice(trio: Trio, certificates: Certificates, rows: list[tuple[Any, str, Any]]) -> None:
    login = {"sasl.username": "admin", "sasl.password": PASSWORDS["admin"], "sasl.mechanism": "SCRAM-SHA-256"}
    tls = {"security.protocol": "sasl_ssl", "ssl.ca.location": str(certificates.ca)}
    admin = AdminClient({"bootstrap.servers": trio.bootstrap_servers, **login, **tls})
    bindings = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW
        )
        for kind, name, operation in rows
    ]
    for created in admin.create_acls(bindings).values():
        created.result(PATIENCE_SECONDS)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, Caller]]:
    """The methods that nodes ask of each other and of themselves, and for whom."""
    noted: set[tuple[str, Caller]] = set()
    ask = Calls.ask

    async def note(
        calls: Calls, target: Any, method: Any, request: Any, *, caller: Caller, **more: Any
    ) -> Any:
        noted.add((method.name, caller))
        return await ask(calls, target, method, request, caller=caller, **more)

    monkeypatch.setattr(Calls, "ask", note)
    return noted


def test_nodes_ask_each_other_about_a_transaction_with_the_rights_of_its_user(
    trio: Trio,
    certificates: Certificates,
    arguments: dict[str, Any],
    unique: Unique,
    asked: set[tuple[str, Caller]],
) -> None:
    """The three leaders ask one coordinator, so two of them ask another node."""
    queue, results, billing = unique("orders"), unique("results"), unique("billing")
    rows = [(TOPIC, queue, READ), (GROUP, queue, READ), (TOPIC, results, WRITE)]
    alices = {**arguments, "user": "alice", "password": PASSWORDS["alice"]}
    with (
        Client(trio.bootstrap_servers, **arguments) as admin,
        Client(trio.bootstrap_servers, **alices) as alice,
    ):
        admin.admin.create_queue(queue, partitions=3)
        admin.admin.create_topic(results, partitions=3)
        for partition in range(3):
            admin.publish(queue, b"job", partition=partition)
        allow_alice(trio, certificates, [*rows, (ResourceType.TRANSACTIONAL_ID, billing, WRITE)])
        trio.eventually(lambda: all(may_write(trio, node, billing) for node in (1, 2, 3)))
        with alice.queue(queue) as jobs, alice.transaction(billing) as transaction:
            for partition in range(3):
                job = jobs.receive(PATIENCE_SECONDS)
                assert job is not None
                transaction.publish(results, "result", partition=partition)
                transaction.ack(job)
        eventually(lambda: admin.admin.queue(queue).undone == 0, "the jobs to be done")
    for name in ("join_transaction", "store_settlement"):
        callers = [caller for method, caller in asked if method == name]
        assert {(caller.principal, caller.host) for caller in callers} == {("User:alice", "127.0.0.1")}


def may_write(trio: Trio, node: int, transactional_id: str) -> bool:
    alice = Caller("User:alice", "127.0.0.1")
    return trio.node(node).access.allows(alice, Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id)
