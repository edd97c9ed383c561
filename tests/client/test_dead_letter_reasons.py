"""A dead letter says why: the error of its handler, the worker, and when it failed; over every interface."""

import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from confluent_kafka import AcknowledgeType

from penstock import Broker
from penstock.client import CallFailed, Client, ClientError, DeadLetter, Job, Reject
from penstock.client.queue_session import QueueSession
from tests.kafka.clients.queues import take
from tests.kafka.clients.queues import worker as share_consumer

PATIENCE_SECONDS = 60.0


def letters(client: Client, queue: str, count: int = 1) -> list[DeadLetter]:
    """They are copied after the job is settled."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found := client.admin.dead_letters(queue)) < count:
        assert time.monotonic() < deadline, f"{len(found)} dead letters"
        time.sleep(0.05)
    return found


@pytest.fixture
def queue(client: Client, unique: Callable[[str], str]) -> str:
    name = unique("mail")
    client.admin.create_queue(name, topic=name, max_deliveries=3)
    return name


@pytest.fixture
def runs(client: Client) -> Iterator[Callable[[], None]]:
    """Runs the client's workers in the background until the test ends."""
    threads: list[threading.Thread] = []

    def run() -> None:
        threads.append(threading.Thread(target=client.run))
        threads[0].start()

    yield run
    client.stop()
    for thread in threads:
        thread.join()


def test_a_rejected_job_has_the_error_of_its_handler(
    client: Client, queue: str, runs: Callable[[], None]
) -> None:
    @client.worker(queue)
    def send(job: Job) -> None:
        raise Reject("no such address: ada@example.com")

    before_ms = time.time() * 1000
    client.publish(queue, b"dear ada")
    runs()
    [letter] = letters(client, queue)
    assert (letter.reason, letter.deliveries) == ("rejected", 1)
    assert (letter.error_type, letter.error_text) == ("Reject", "no such address: ada@example.com")
    assert letter.worker is not None
    assert letter.worker in [one.name for one in client.admin.queue(queue).consumers]
    assert letter.first_failure_ms is not None
    assert letter.last_failure_ms == letter.first_failure_ms >= before_ms - 1000


def test_a_job_that_was_delivered_too_often_says_so_and_why_it_failed_last(
    client: Client, queue: str, runs: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    @client.worker(queue, backoff=0.01)
    def send(job: Job) -> None:
        raise ValueError(f"attempt {job.deliveries}: {'x' * 5000}")

    client.publish(queue, b"dear ada")
    runs()
    [letter] = letters(client, queue)
    assert (letter.reason, letter.deliveries, letter.error_type) == ("delivery_limit", 3, "ValueError")
    assert letter.error_text is not None
    assert letter.error_text.startswith("attempt 3: xxx")
    assert len(letter.error_text) == 1000
    assert letter.first_failure_ms is not None
    assert letter.last_failure_ms is not None
    assert letter.first_failure_ms < letter.last_failure_ms
    assert "the queue's delivery limit is reached: to the dead letters" in caplog.text


def test_a_job_whose_consumers_crashed_names_the_last_one(client: Client, queue: str) -> None:
    client.publish(queue, b"poison")
    for _ in range(3):
        with client.queue(queue) as consumer:
            assert consumer.receive(PATIENCE_SECONDS) is not None
            name = client.admin.queue(queue).consumers[0].name
    [letter] = letters(client, queue)
    assert (letter.reason, letter.worker, letter.error_type) == ("delivery_limit", name, None)


def test_jobs_over_http_have_their_reasons(broker: Broker, client: Client, queue: str) -> None:
    client.publish(queue, b"1")
    client.publish(queue, b"2")
    with httpx.Client(base_url=f"{broker.http_url}/v1/queues/{queue}", timeout=PATIENCE_SECONDS) as http:
        asked = {"consumer": "cron-7", "max": 2, "wait_ms": 30_000}
        first, second = http.post("/receive", json=asked).json()["jobs"]
        why = {"error_type": "Timeout", "error_text": "smtp: no answer"}
        body = {"reject": [{"receipt": first["receipt"], **why}, second["receipt"]]}
        http.post("/settle", json=body).raise_for_status()
        [explained, other] = letters(client, queue, 2)
        assert (explained.worker, explained.error_type, explained.error_text) == (
            "cron-7",
            "Timeout",
            "smtp: no answer",
        )
        assert (other.worker, other.error_type) == ("cron-7", None)
        shown = http.get(f"/dead-letters/{explained.topic}/0/{explained.offset}").json()
        assert shown["error_text"] == "smtp: no answer"
        headers = {row["name"]: row["value"] for row in shown["headers"]}
        assert headers["penstock-dead-error-type"] == "Timeout"
        assert headers["penstock-dead-worker"] == "cron-7"
        too_long = {"retry": [{"receipt": first["receipt"], "error_text": "x" * 1001}]}
        assert http.post("/settle", json=too_long).status_code == 400


def test_a_share_consumer_is_named_although_its_protocol_has_no_reason(
    broker: Broker, client: Client, queue: str
) -> None:
    client.publish(queue, b"1")
    with share_consumer(broker.bootstrap_servers, queue, queue) as consumer:
        [message] = take(consumer, bool)
        consumer.acknowledge(message, AcknowledgeType.REJECT)
        consumer.commit_sync()
    [letter] = letters(client, queue)
    assert (letter.reason, letter.error_type) == ("rejected", None)
    assert letter.worker
    assert letter.last_failure_ms is not None


def test_a_letter_that_fails_again_has_the_reason_of_that_failure(client: Client, queue: str) -> None:
    client.publish(queue, b"1")
    for reason in ("first", "second"):
        with client.queue(queue) as consumer:
            job = consumer.receive(PATIENCE_SECONDS)
            assert job is not None
            job.reject(error=reason).wait(PATIENCE_SECONDS)
        [letter] = letters(client, queue)
        assert (letter.error_type, letter.error_text) == ("", reason)
        if reason == "first":
            assert client.admin.send_back(queue) == 1


def test_more_attempts_than_the_queue_allows_are_an_error_when_the_worker_starts(
    client: Client, queue: str
) -> None:
    @client.worker(queue, max_attempts=10)
    def send(job: Job) -> None:
        """It does not get any."""

    expected = (
        rf"max_attempts=10.*delivery limit of queue '{queue}', 3.*alter_queue\('{queue}', max_deliveries=10\)"
    )
    with pytest.raises(ClientError, match=expected):
        client.run()


def test_as_many_attempts_as_the_queue_allows_are_none(
    client: Client, queue: str, runs: Callable[[], None]
) -> None:
    client.admin.alter_queue(queue, max_deliveries=10)
    done = threading.Event()

    @client.worker(queue, max_attempts=10)
    def send(job: Job) -> None:
        done.set()

    client.publish(queue, b"1")
    runs()
    assert done.wait(PATIENCE_SECONDS)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError("caf\udce9.txt is missing"), "caf?.txt is missing"),  # a name of a file that is not UTF-8
        (ValueError("x" * 10_000_000), "x" * 1000),
        (Unprintable(), "its text cannot be made: RuntimeError"),
    ],
    ids=["not UTF-8", "long", "unprintable"],
)
def test_any_error_can_be_told(
    client: Client,
    queue: str,
    runs: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    text: str,
) -> None:
    """An error whose text cannot be sent once ended the worker's connection thread: the queue stood still."""

    @client.worker(queue, max_attempts=1)
    def send(job: Job) -> None:
        if job.value == b"bad":
            raise error

    client.publish(queue, b"bad")
    client.publish(queue, b"good")
    runs()
    [letter] = letters(client, queue)
    assert (letter.error_type, letter.error_text) == (type(error).__name__, text)
    assert sum(len(record.getMessage()) for record in caplog.records) < 10_000
    assert all(record.exc_info is None for record in caplog.records)  # it would have the whole text
    with pytest.raises(CallFailed, match=type(error).__name__):
        client.call(queue, b"bad", timeout=PATIENCE_SECONDS)


def test_a_bug_in_the_driver_ends_run(
    client: Client, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Instead of a worker that keeps its leases and does nothing."""

    def broken(*_: object, **__: object) -> str:
        raise RuntimeError("broken")

    monkeypatch.setattr(QueueSession, "_send_settle", broken)

    @client.worker(queue)
    def send(job: Job) -> None: ...

    client.publish(queue, b"dear ada")
    with pytest.raises(ClientError, match="RuntimeError"):
        client.run(signals=False)
    assert "broken" in caplog.text
