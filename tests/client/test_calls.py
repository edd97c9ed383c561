"""Values as JSON, and calls: the result of a handler comes back to the caller, or its failure, or nothing in time."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from penstock import Broker
from penstock.client import AsyncClient, AsyncJob, CallFailed, Client, ClientError, Job, Reject, calls
from penstock.client.error_texts import ERROR_TEXT_MAX

SOON = 60.0
Unique = Callable[[str], str]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.client")


@pytest.fixture
def name(client: Client, unique: Unique) -> str:
    """A queue on the topic of its name."""
    made = unique("sums")
    client.admin.create_queue(made, topic=made)
    return made


@contextmanager
def working(client: Client) -> Iterator[None]:
    runner = threading.Thread(target=lambda: client.run(signals=False))
    runner.start()
    try:
        yield
    finally:
        client.stop()
        runner.join(SOON)
        assert not runner.is_alive()


@dataclass
class Order:
    number: int
    items: list[str]


def test_values_are_published_as_json(client: Client, name: str) -> None:
    client.publish(name, json={"amount": 12, "for": "ada"})
    client.publish_soon(name, json=Order(7, ["book"])).result(SOON)
    client.publish(name, json=None)
    with client.queue(name) as queue:
        jobs = [queue.receive(SOON) for _ in range(3)]
        values = [job.json() for job in jobs if job is not None]
    assert values == [{"amount": 12, "for": "ada"}, {"number": 7, "items": ["book"]}, None]


def test_a_message_has_a_value_or_json(client: Client, name: str) -> None:
    with pytest.raises(TypeError, match="json="):
        client.publish(name)
    with pytest.raises(TypeError, match="not both"):
        client.publish(name, b"x", json=1)
    with pytest.raises(TypeError, match="json=<object"):
        client.publish(name, json=object())


def test_a_call_returns_the_result_of_the_handler(client: Client, name: str) -> None:
    @client.worker(name, concurrency=4)
    def add(job: Job) -> object:
        numbers = job.json()
        return sum(numbers) if numbers else "nothing"

    with working(client):
        assert client.call(name, json=[1, 2, 3], timeout=SOON).json() == 6
        assert client.call(name, json=[], timeout=SOON).text() == "nothing"
        results: dict[int, int] = {}

        def call(number: int) -> None:
            results[number] = client.call(name, json=[number, number], timeout=SOON).json()

        callers = [threading.Thread(target=call, args=(number,)) for number in range(20)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(SOON)
        assert results == {number: 2 * number for number in range(20)}
    assert client.admin.queue(name).undone == 0


def test_a_call_fails_when_its_handler_has_failed_for_good(client: Client, name: str) -> None:
    attempts: list[int] = []

    @client.worker(name, max_attempts=2, backoff=0.01)
    def fail(job: Job) -> object:
        attempts.append(job.deliveries)
        match job.text():
            case "reject":
                raise Reject("never")
            case "settle":
                job.reject()
            case "large":
                return bytes(2_000_000)
            case "unsuitable":
                return object()
            case _:
                raise ValueError("too bad" * 1_000)
        return None

    with working(client):
        with pytest.raises(CallFailed, match="ValueError: too bad") as failed:
            client.call(name, b"fail", timeout=SOON)
        assert attempts == [1, 2]
        assert len(str(failed.value)) <= ERROR_TEXT_MAX
        for value, message in {
            "reject": "Reject: never",
            "settle": "rejected the job",
            "large": r"PublishFailed: .*message\.max\.bytes",
            "unsuitable": "TypeError: the handler's result cannot be sent",
        }.items():
            with pytest.raises(CallFailed, match=message):
                client.call(name, value, timeout=SOON)


def test_a_call_that_no_worker_takes_times_out_and_its_job_expires(client: Client, name: str) -> None:
    client.publish(name, b"before")
    with pytest.raises(TimeoutError, match="no reply within"):
        client.call(name, b"late", timeout=5)
    client.publish(name, b"after")
    time.sleep(1.0)  # the job's own clock starts a moment after the call's
    with client.queue(name) as queue:
        first, second = queue.receive(SOON), queue.receive(SOON)
        assert first is not None
        assert second is not None
        assert (first.value, second.value) == (b"before", b"after")


def test_calls_under_way_are_bounded_and_end_with_the_client(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CALLS_MAX", 1)
    outcome: list[BaseException] = []
    with Client(broker.bootstrap_servers) as client:

        def wait() -> None:
            try:
                client.call(name, b"x", timeout=SOON)
            except ClientError as problem:
                outcome.append(problem)

        waiting = threading.Thread(target=wait)
        waiting.start()
        with client.queue(name) as queue:
            assert queue.receive(SOON) is not None  # the call is under way
            with pytest.raises(ClientError, match="1 calls are under way"):
                client.call(name, b"x", timeout=SOON)
    waiting.join(SOON)
    assert [str(problem) for problem in outcome] == ["the client was closed"]


def test_an_asynchronous_client_calls_and_replies(broker: Broker, name: str) -> None:
    async def work() -> None:
        async with AsyncClient(broker.bootstrap_servers) as client:

            @client.worker(name, concurrency=10, max_attempts=1)
            async def double(job: AsyncJob) -> dict[str, int]:
                return {"doubled": 2 * job.json()}

            running = asyncio.create_task(client.run())
            replies = await asyncio.gather(
                *(client.call(name, json=number, timeout=SOON) for number in range(50))
            )
            assert [reply.json()["doubled"] for reply in replies] == [2 * number for number in range(50)]
            with pytest.raises(CallFailed, match="TypeError"):
                await client.call(name, json={}, timeout=SOON)
            client.stop()
            assert await running
            with pytest.raises(TimeoutError, match="no reply"):
                await client.call(name, json=1, timeout=5)

    asyncio.run(work())
