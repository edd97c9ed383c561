"""A client that a forked process inherits raises at once, with advice, and does its parent no harm."""

import os
import sys
import traceback
import warnings
from collections.abc import Callable

import pytest

from penstock.client import AsyncClient, Client, ClientError


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a forked process that does this and then ends as any program does."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a process with threads was forked: that is the case
        child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a forked pytest must not go on
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _pid, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_every_use_raises_in_the_child_and_closing_is_harmless(
    client: Client, topic: str, group: str
) -> None:
    client.publish(topic, b"first")
    queue = client.queue(topic, group=group)
    job = queue.receive(30)
    assert job is not None
    uses: list[Callable[[], object]] = [
        lambda: client.publish(topic, b"x"),
        lambda: client.publish_soon(topic, b"x"),
        lambda: client.queue(topic, group=group),
        lambda: client.subscribe(topic, name="s"),
        lambda: client.admin.topics(),
        lambda: client.admin.queues(),
        client.flush,
        client.run,
        lambda: queue.receive(1),
        job.ack,
    ]

    def use_all() -> None:
        for use in uses:
            with pytest.raises(ClientError, match="after the fork"):
                use()
        queue.close()
        client.close()

    assert in_child(use_all) == 0
    assert client.publish(topic, b"second").offset == 1  # the parent's connections are as they were
    job.ack().wait(30)


def test_locks_that_were_taken_during_the_fork_do_not_matter(client: Client, topic: str) -> None:
    client.publish(topic, b"x")

    def use() -> None:
        with pytest.raises(ClientError, match="after the fork"):
            client.publish(topic, b"x")
        client.close()

    with client._lock:
        assert in_child(use) == 0


def test_an_asynchronous_client_raises_too(broker: object) -> None:
    made = AsyncClient("127.0.0.1:1")

    def use() -> None:
        with pytest.raises(ClientError, match="after the fork"):
            made.queue("orders", group="workers")

    assert in_child(use) == 0


def test_a_child_that_destroys_inherited_clients_ends_well(broker: object) -> None:
    """librdkafka's destructor waits for threads that the child does not have, and crashes."""
    import subprocess

    script = """
import os, sys
from penstock.client import Client
client = Client(sys.argv[1])
client.publish("forks", b"x")
client.admin.topics()
child = os.fork()
if child == 0:
    client._publisher = client._kafka_admin = None
    sys.exit(0)
print("child:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("parent:", client.publish("forks", b"x").offset)
client.close()
"""
    command = [sys.executable, "-c", script, broker.bootstrap_servers]  # type: ignore[attr-defined]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "child: 0\nparent: 1\n", done.stderr
